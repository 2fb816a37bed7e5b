/** The objects of a watch. Pure: events in, objects out. */

import type { GraphEvent, Node, ResourceStatus } from "../api/graph";

export interface GraphState {
  /** The objects by their UIDs. */
  nodes: ReadonlyMap<string, Node>;
  /** True once the first snapshot is complete. */
  complete: boolean;
  loaded: boolean;
  resources: ResourceStatus[];
  /** The reasons why objects are missing, one sentence each. */
  partial: string[];
  /** True if there are more objects than the page keeps. */
  isCut: boolean;
}

/** The most objects that the page keeps. */
export const MAX_NODES = 20_000;

export const EMPTY: GraphState = {
  nodes: new Map(),
  complete: false,
  loaded: false,
  resources: [],
  partial: [],
  isCut: false,
};

/** Applies a batch of events. Returns a new state, so that readers compare by identity. */
export function apply(state: GraphState, events: readonly GraphEvent[]): GraphState {
  const nodes = new Map(state.nodes);
  const next = { ...state, nodes };
  for (const event of events) {
    switch (event.event) {
      case "begin":
        if (event.mode !== "delta") {
          nodes.clear();
          next.complete = false;
        }
        break;
      case "node":
        if (nodes.size < MAX_NODES || nodes.has(event.node.uid)) nodes.set(event.node.uid, event.node);
        break;
      case "gone":
        nodes.delete(event.uid);
        break;
      case "state":
        next.loaded = event.loaded;
        next.resources = event.resources;
        next.partial = event.partial;
        break;
      case "commit":
        next.complete = true;
        break;
      default:
        break;
    }
  }
  return next;
}
