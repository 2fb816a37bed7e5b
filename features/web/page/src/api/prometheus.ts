/** The service `prometheus` of an agent: the HTTP API of the Prometheus server in its cluster. */

import { readJson, request } from "./client";
import { agentPath } from "./paths";

/** One line of a chart. */
export interface Series {
  labels: Readonly<Record<string, string>>;
  /** Times in seconds since 1970, and values. */
  points: [number, number][];
}

export interface RangeResult {
  series: Series[];
  /** Sentences of Prometheus about the query. */
  warnings: string[];
}

interface Answer {
  data?: { resultType?: string; result?: { metric?: Record<string, string>; values?: [number, string][] }[] };
  warnings?: string[];
  infos?: string[];
}

/** Runs a query for each step of a range. Times are in seconds. */
export async function queryRange(
  agent: string,
  query: string,
  { start, end, step }: { start: number; end: number; step: number },
  signal: AbortSignal,
): Promise<RangeResult> {
  const body = new URLSearchParams({
    query,
    start: `${start}`,
    end: `${end}`,
    step: `${step}`,
    timeout: "30s",
  });
  const path = agentPath(agent, "/prometheus/api/v1/query_range");
  const headers = { "Content-Type": "application/x-www-form-urlencoded", Accept: "application/json" };
  const response = await request(path, { method: "POST", headers, body: body.toString(), signal });
  const answer = await readJson<Answer>(response);
  const series = (answer.data?.result ?? []).map(({ metric = {}, values = [] }) => ({
    labels: metric,
    points: values.map(([time, value]): [number, number] => [time, Number(value)]),
  }));
  return { series, warnings: [...(answer.warnings ?? []), ...(answer.infos ?? [])] };
}
