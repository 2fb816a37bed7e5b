/** Reads the logs of several pods at the same time. */

import { useEffect, useRef, useState } from "preact/hooks";
import { isAbort } from "../../../api/client";
import { getLog, keyOf } from "../../../api/kubernetes";
import { lines } from "../../../api/lines";
import type { Node } from "../../../api/graph";
import { EMPTY_LOG, type Line, type Log, merge, parse } from "./merge";
import { LogPosition } from "./resume";

/** The most lines that the page keeps. */
export const MAX_LINES = 5000;
/** The longest line, in characters. */
const MAX_LINE = 8192;
/** The longest pause before a log is read again, in milliseconds. */
const MAX_PAUSE = 30_000;
/** The time for which lines are collected before the page changes, in milliseconds. */
const BATCH = 150;

export interface LogOptions {
  container: string;
  previous: boolean;
  follow: boolean;
}

export interface Logs {
  log: Log;
  /** The errors of pods, by their names. */
  errors: ReadonlyMap<string, unknown>;
  /** True while a log may have further lines. */
  isOpen: boolean;
}

/** Follows the logs of pods. Pods may come and go meanwhile; other options begin anew. */
export function useLogs(agent: string, pods: readonly Node[], options: LogOptions): Logs {
  const [log, setLog] = useState<Log>(EMPTY_LOG);
  const [errors, setErrors] = useState<ReadonlyMap<string, unknown>>(new Map());
  const [open, setOpen] = useState<ReadonlySet<string>>(new Set());
  const streams = useRef(new Map<string, AbortController>());
  const waiting = useRef<Line[]>([]);
  /** The positions in the logs, by the UIDs of pods, which may leave the list and return. */
  const readers = useRef(new Map<string, { position: LogPosition; lines: number }>());
  const newest = useRef(pods);
  newest.current = pods;
  const { container, previous, follow } = options;

  useEffect(() => {
    const timer = setInterval(() => {
      const arrived = waiting.current;
      if (arrived.length === 0) return;
      waiting.current = [];
      setLog((last) => merge(last, arrived, MAX_LINES));
    }, BATCH);
    return () => {
      clearInterval(timer);
      for (const stream of streams.current.values()) stream.abort();
      streams.current.clear();
      readers.current.clear();
      waiting.current = [];
      setLog(EMPTY_LOG);
      setErrors(new Map());
      setOpen(new Set());
    };
  }, [agent, container, previous, follow]);

  const uids = pods.map(({ uid }) => uid).join();
  useEffect(() => {
    if (container === "") return;
    for (const [uid, stream] of streams.current) {
      if (pods.some((pod) => pod.uid === uid)) continue;
      stream.abort();
      streams.current.delete(uid);
      setOpen((last) => without(last, uid));
    }
    setErrors((last) => new Map([...last].filter(([name]) => pods.some((pod) => pod.name === name))));
    const tailLines = Math.ceil(MAX_LINES / Math.max(1, pods.length));
    for (const pod of pods) {
      if (streams.current.has(pod.uid)) continue;
      const stop = new AbortController();
      streams.current.set(pod.uid, stop);
      setOpen((last) => new Set(last).add(pod.uid));
      const read = async () => {
        const reader = readers.current.get(pod.uid) ?? { position: new LogPosition(), lines: 0 };
        readers.current.set(pod.uid, reader);
        for (let wait = 1000; ; wait = Math.min(2 * wait, MAX_PAUSE)) {
          try {
            const query = { container, previous, follow, tailLines, sinceTime: reader.position.time };
            const response = await getLog(agent, keyOf(pod), query, stop.signal);
            setErrors((last) => withoutKey(last, pod.name));
            reader.position.begin();
            for await (const text of lines(response, MAX_LINE, true)) {
              if (stop.signal.aborted) return;
              const line = parse(pod.uid, pod.name, reader.lines, text);
              if (!reader.position.accept(line)) continue;
              waiting.current.push(line);
              reader.lines += 1;
              if (line.time !== "") wait = 500;
              if (waiting.current.length > 2 * MAX_LINES) waiting.current.splice(0, MAX_LINES);
            }
          } catch (error) {
            if (stop.signal.aborted) return;
            if (!isAbort(error)) setErrors((last) => new Map(last).set(pod.name, error));
          }
          setOpen((last) => without(last, pod.uid));
          // A container that starts has no log yet, and one that has ended may start again.
          const now = newest.current.find(({ uid }) => uid === pod.uid);
          if (!follow || now === undefined || hasEnded(now)) return;
          await new Promise((resolve) => setTimeout(resolve, wait));
          // The pod may be gone meanwhile.
          if (stop.signal.aborted) return;
        }
      };
      void read();
    }
  }, [agent, uids, container, previous, follow]);
  return { log, errors, isOpen: open.size > 0 || waiting.current.length > 0 };
}

function hasEnded({ status }: Node): boolean {
  return /^(Complete|Completed|Succeeded|Failed|Evicted)/.test(status ?? "");
}

function withoutKey<T>(map: ReadonlyMap<string, T>, key: string): ReadonlyMap<string, T> {
  const next = new Map(map);
  next.delete(key);
  return next;
}

function without(set: ReadonlySet<string>, element: string): ReadonlySet<string> {
  const next = new Set(set);
  next.delete(element);
  return next;
}
