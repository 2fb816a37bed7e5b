/** The objects of an agent, as they change. */

import { signal, type ReadonlySignal } from "@preact/signals";
import { useEffect, useMemo } from "preact/hooks";
import { RequestFailure } from "../api/client";
import { type GraphEvent, type Scope, scopeQuery } from "../api/graph";
import { live } from "../api/live";
import { apply, EMPTY, type GraphState, MAX_NODES } from "./store";

export interface Followed {
  graph: ReadonlySignal<GraphState>;
  failure: ReadonlySignal<ConnectionFailure | null>;
}

/** The failure of the connection. */
export interface ConnectionFailure {
  error: RequestFailure;
  /** The time since which the objects are not up to date. */
  since: string;
  /** True if the page does not connect again. */
  isFinal: boolean;
}

/** The most characters of the objects of a snapshot. */
const MAX_SIZE = 64 << 20;
/** The time for which events are collected before the page changes, in milliseconds. */
const BATCH = 100;

/** Follows the objects of an agent, or a part of them, while the component is shown. */
export function useGraph(agent: string, scope: Scope | null): Followed {
  const selector = scopeQuery(scope).toString();
  const { graph, failure } = useMemo(
    () => ({ graph: signal<GraphState>(EMPTY), failure: signal<ConnectionFailure | null>(null) }),
    [agent, selector],
  );
  useEffect(() => {
    let waiting: GraphEvent[] = [];
    let timer: ReturnType<typeof setTimeout> | undefined;
    let isInSnapshot = false;
    let isCut = false;
    let kept = { nodes: 0, size: 0 };
    let lastLine = new Date().toISOString();
    const flush = () => {
      timer = undefined;
      // The snapshot of a new watch replaces the objects at its end, so that they do not vanish meanwhile.
      if (isInSnapshot) return;
      const events = waiting;
      waiting = [];
      try {
        const next = apply(graph.value, events);
        graph.value = { ...next, isCut: isCut || next.nodes.size >= MAX_NODES };
      } catch (error) {
        stop();
        failure.value = { error: unknownForm(error), since: lastLine, isFinal: true };
      }
    };
    const listener = {
      onEvent: (event: GraphEvent, size: number) => {
        lastLine = new Date().toISOString();
        if (event.event === "alive") return;
        if (event.event === "begin") {
          [isInSnapshot, kept] = [true, { nodes: 0, size: 0 }];
          // A delta adds to what was cut.
          if (event.mode !== "delta") isCut = false;
        }
        if (event.event === "commit") [isInSnapshot, failure.value] = [false, null];
        if (event.event === "node") {
          kept.nodes += 1;
          kept.size += size;
          // The page would not keep it, and an agent must not fill the memory of the browser.
          isCut ||= isInSnapshot && (kept.nodes > MAX_NODES || kept.size > MAX_SIZE);
          if (isInSnapshot && isCut) return;
        }
        waiting.push(event);
        timer ??= setTimeout(flush, BATCH);
      },
      onFailure: (error: RequestFailure) => {
        waiting = waiting.slice(0, waiting.findLastIndex(({ event }) => event === "commit") + 1);
        isInSnapshot = false;
        failure.value = { error, since: failure.value?.since ?? lastLine, isFinal: false };
      },
    };
    const stop = live.follow(agent, new URLSearchParams(selector), listener);
    return () => {
      stop();
      clearTimeout(timer);
    };
  }, [agent, selector]);
  return { graph, failure };
}

function unknownForm(error: unknown): RequestFailure {
  const what = "agentk has sent something that this page does not understand";
  return new RequestFailure(`${what}: ${String(error)}`, 0, null, null);
}
