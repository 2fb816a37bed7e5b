/** The objects of an agent, as they change. */

import { signal, type ReadonlySignal } from "@preact/signals";
import { useEffect, useMemo } from "preact/hooks";
import type { RequestFailure } from "../api/client";
import { type GraphEvent, watch } from "../api/graph";
import { apply, EMPTY, type GraphState } from "./store";

export interface Followed {
  graph: ReadonlySignal<GraphState>;
  /** The failure of the connection, and the time since which the objects are not up to date. */
  failure: ReadonlySignal<{ error: RequestFailure; since: string } | null>;
}

/** The time for which events are collected before the page changes, in milliseconds. */
const BATCH = 100;

/** Follows an agent while the component is shown. */
export function useGraph(agent: string): Followed {
  const { graph, failure } = useMemo(
    () => ({ graph: signal<GraphState>(EMPTY), failure: signal<Followed["failure"]["value"]>(null) }),
    [agent],
  );
  useEffect(() => {
    const stop = new AbortController();
    let waiting: GraphEvent[] = [];
    let timer: ReturnType<typeof setTimeout> | undefined;
    const flush = () => {
      timer = undefined;
      // The snapshot of a new watch replaces the objects at its end, so that they do not vanish meanwhile.
      if (isInSnapshot(waiting)) return;
      graph.value = apply(graph.value, waiting);
      waiting = [];
    };
    const listener = {
      onEvent: (event: GraphEvent) => {
        if (event.event === "alive") return;
        waiting.push(event);
        timer ??= setTimeout(flush, BATCH);
      },
      onConnection: (error: RequestFailure | null) => {
        if (error !== null) waiting = waiting.slice(0, lastCommit(waiting) + 1);
        const since = failure.value?.since ?? new Date().toISOString();
        failure.value = error === null ? null : { error, since };
      },
    };
    void watch(agent, new URLSearchParams(), listener, stop.signal);
    return () => {
      stop.abort();
      clearTimeout(timer);
    };
  }, [agent]);
  return { graph, failure };
}

function lastCommit(events: readonly GraphEvent[]): number {
  return events.findLastIndex(({ event }) => event === "commit");
}

function isInSnapshot(events: readonly GraphEvent[]): boolean {
  const begin = events.findLastIndex(({ event }) => event === "begin");
  return begin >= 0 && lastCommit(events) < begin;
}
