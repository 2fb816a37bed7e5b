/** The service `graph` of an agent. The types are generated from its OpenAPI file. */

import { getJson, isAbort, request, RequestFailure } from "./client";
import type { components } from "./graph-types";
import { lines } from "./lines";

type Schemas = components["schemas"];
export type Node = Schemas["Node"];
export type HealthState = Schemas["HealthState"];
export type GraphEvent = Schemas["GraphEvent"];
export type HealthReport = Schemas["HealthReport"];
export type Attention = Schemas["Attention"];
export type Warning = Schemas["Warning"];
export type ComponentList = Schemas["ComponentList"];
export type ResourceStatus = Schemas["ResourceStatus"];

/** The longest pause before a watch begins again, in milliseconds. */
const MAX_PAUSE = 15_000;
/** The pause after a refusal. */
const REFUSED_PAUSE = 60_000;
/** The time after which a watch without a line is dead: agentk sends one every 15 s. */
const SILENCE = 40_000;

function graphPath(agent: string, path: string): string {
  return `/agents/${encodeURIComponent(agent)}/graph/v1/${path}`;
}

export function getHealth(agent: string, signal?: AbortSignal): Promise<HealthReport> {
  return getJson<HealthReport>(graphPath(agent, "health"), signal);
}

export function getComponents(agent: string, signal?: AbortSignal): Promise<ComponentList> {
  return getJson<ComponentList>(graphPath(agent, "components"), signal);
}

/** Receives the events of a watch, and the reasons for which it has no connection. */
export interface WatchListener {
  /** `size` is the number of characters of the event. */
  onEvent: (event: GraphEvent, size: number) => void;
  /** The watch begins again after a pause. */
  onFailure: (failure: RequestFailure) => void;
}

/** Follows the objects of an agent until `signal` is aborted. Continues after a lost connection where it was. */
export async function watch(
  agent: string,
  query: URLSearchParams,
  listener: WatchListener,
  signal: AbortSignal,
): Promise<void> {
  let token: string | null = null;
  let failures = 0;
  const isOver = () => signal.aborted;
  while (!isOver()) {
    const attempt = new AbortController();
    const stop = () => {
      attempt.abort();
    };
    signal.addEventListener("abort", stop);
    let timer = setTimeout(stop, SILENCE);
    let isRefused = false;
    try {
      const parameters = new URLSearchParams(query);
      if (token !== null) parameters.set("since", token);
      const response = await request(graphPath(agent, `watch?${parameters.toString()}`), {
        signal: attempt.signal,
      });
      for await (const line of lines(response)) {
        clearTimeout(timer);
        timer = setTimeout(stop, SILENCE);
        const event = JSON.parse(line) as GraphEvent;
        if (event.event === "commit") {
          token = event.token;
          failures = 0;
        }
        listener.onEvent(event, line.length);
      }
      if (!isOver()) listener.onFailure(asFailure(null));
    } catch (error) {
      if (isOver()) return;
      // A token that is not valid any more would fail for ever.
      if (error instanceof RequestFailure && error.status === 400) token = null;
      isRefused = error instanceof RequestFailure && [401, 403, 404].includes(error.status);
      listener.onFailure(asFailure(error));
    } finally {
      clearTimeout(timer);
      signal.removeEventListener("abort", stop);
      attempt.abort();
    }
    // Rights change, and an agent that is updated may serve the graph then.
    const longest = isRefused ? REFUSED_PAUSE : Math.min(MAX_PAUSE, 500 * 2 ** failures);
    await pause(longest * (0.5 + Math.random() / 2), signal);
    failures += 1;
  }
}

function asFailure(error: unknown): RequestFailure {
  if (error instanceof RequestFailure) return error;
  const what = isAbort(error) ? "The stream was silent for 40 s." : "The stream has ended.";
  return new RequestFailure(what, 0, null, null);
}

function pause(milliseconds: number, signal: AbortSignal): Promise<void> {
  return new Promise((resolve) => {
    const timer = setTimeout(done, milliseconds);
    function done(): void {
      clearTimeout(timer);
      signal.removeEventListener("abort", done);
      resolve();
    }
    signal.addEventListener("abort", done);
  });
}
