/** The data of a chart. Pure. */

import type { Series } from "../../../api/prometheus";

/** The most lines of a chart. */
export const MAX_SERIES = 10;

/** A chart: times, and the values of each line at these times. `null` is a gap. */
export interface ChartData {
  times: number[];
  lines: { name: string; values: (number | null)[]; last: number | null }[];
  /** The number of lines that are left out, which have the smallest values. */
  omitted: number;
}

/** Aligns the series with the largest values. */
export function chartData(series: readonly Series[]): ChartData {
  const largest = (one: Series) => one.points.reduce((max, [, value]) => Math.max(max, value || 0), 0);
  const ranked = series
    .map((one) => ({ one, size: largest(one) }))
    .sort((a, b) => b.size - a.size)
    .slice(0, MAX_SERIES)
    .map(({ one }) => one);
  const times = [...new Set(ranked.flatMap(({ points }) => points.map(([time]) => time)))].sort(
    (a, b) => a - b,
  );
  const lines = ranked.map(({ labels, points }) => {
    const values = new Map(points);
    const aligned = times.map((time) => finite(values.get(time)));
    return { name: nameOf(labels), values: aligned, last: finite(points.at(-1)?.[1]) };
  });
  return { times, lines, omitted: series.length - ranked.length };
}

function finite(value: number | undefined): number | null {
  return value !== undefined && Number.isFinite(value) ? value : null;
}

/** Returns the labels of a series as text: the value alone, if there is one label. */
function nameOf(labels: Readonly<Record<string, string>>): string {
  const { __name__: metric = "", ...rest } = labels;
  const pairs = Object.entries(rest);
  const [only] = pairs;
  if (metric === "" && pairs.length === 1 && only) return only[1];
  const text = pairs.map(([name, value]) => `${name}="${value}"`).join(", ");
  return pairs.length === 0 ? metric || "value" : `${metric}{${text}}`;
}

export type Unit = "cores" | "bytes" | "bytes/s" | "";

const PREFIXES = ["", "Ki", "Mi", "Gi", "Ti", "Pi"];

/** Returns a value with its unit, of about three digits. */
export function format(value: number | null, unit: Unit): string {
  if (value === null) return "–";
  if (unit === "cores")
    return Math.abs(value) < 1 ? `${Math.round(value * 1000)} m` : `${round(value)} cores`;
  if (unit === "") return round(value);
  const power = Math.min(
    PREFIXES.length - 1,
    Math.max(0, Math.floor(Math.log2(Math.max(1, Math.abs(value))) / 10)),
  );
  return `${round(value / 1024 ** power)} ${PREFIXES[power] ?? ""}B${unit === "bytes/s" ? "/s" : ""}`;
}

function round(value: number): string {
  return Number(value.toPrecision(3)).toString();
}

/** Returns the seconds between two points, so that a chart has about 200 of them. */
export function stepOf(seconds: number): number {
  return Math.max(5, Math.ceil(seconds / 200));
}

/** Returns a value of a label within a query. */
export function quote(text: string): string {
  return `"${text.replaceAll("\\", "\\\\").replaceAll('"', '\\"').replaceAll("\n", "\\n")}"`;
}
