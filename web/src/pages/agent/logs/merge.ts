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

/** Adds lines to a log, of which the newest `limit` stay. Lines of one pod keep their order. */
export function merge(log: readonly Line[], arrived: readonly Line[], limit: number): Line[] {
  const all = [...log, ...arrived];
  const isSorted = all.every((line, index) => index === 0 || compare(all[index - 1], line) <= 0);
  if (!isSorted) all.sort(compare);
  return all.slice(-limit);
}

function compare(one: Line | undefined, other: Line | undefined): number {
  if (one === undefined || other === undefined || one.time === "" || other.time === "") return 0;
  if (one.uid === other.uid) return one.number - other.number;
  return one.time < other.time ? -1 : one.time > other.time ? 1 : 0;
}
