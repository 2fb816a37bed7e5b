/** Lines of several logs in the order of their times. Pure. */

export interface Line {
  /** The UID of the pod, whose name another pod may get later. */
  uid: string;
  pod: string;
  /** The number within the log of the pod. */
  number: number;
  /** The time at which it was written, as text that sorts; empty if it is not known. */
  time: string;
  text: string;
}

/** Splits a line with `timestamps=true`. */
export function parse(uid: string, pod: string, number: number, line: string): Line {
  const end = line.indexOf(" ");
  const time = end < 0 ? line : line.slice(0, end);
  if (!/^\d{4}-\d\d-\d\dT[\d:.]+(Z|[+-]\d\d:\d\d)$/.test(time))
    return { uid, pod, number, time: "", text: line };
  return { uid, pod, number, time, text: end < 0 ? "" : line.slice(end + 1) };
}

/** The newest lines of a log. */
export interface Log {
  lines: readonly Line[];
  /** The number of blocks of lines that were dropped before them. */
  dropped: number;
}

export const EMPTY_LOG: Log = { lines: [], dropped: 0 };

/** The lines that are shown, and dropped, together. */
export const BLOCK = 100;

/** Adds lines to a log, of which the newest `limit` stay, without parts of blocks. Lines of one pod keep their order. */
export function merge(log: Log, arrived: readonly Line[], limit: number): Log {
  const all = [...log.lines, ...arrived];
  const isSorted = all.every((line, index) => index === 0 || compare(all[index - 1], line) <= 0);
  if (!isSorted) all.sort(compare);
  const blocks = Math.ceil(Math.max(0, all.length - limit) / BLOCK);
  return { lines: all.slice(blocks * BLOCK), dropped: log.dropped + blocks };
}

/** Returns the blocks of a log, with the number of each one from the beginning. */
export function blocksOf({ lines, dropped }: Log): { number: number; lines: readonly Line[] }[] {
  const count = Math.ceil(lines.length / BLOCK);
  return Array.from({ length: count }, (_, index) => ({
    number: dropped + index,
    lines: lines.slice(index * BLOCK, (index + 1) * BLOCK),
  }));
}

function compare(one: Line | undefined, other: Line | undefined): number {
  if (one === undefined || other === undefined || one.time === "" || other.time === "") return 0;
  if (one.uid === other.uid) return one.number - other.number;
  return one.time < other.time ? -1 : one.time > other.time ? 1 : 0;
}
