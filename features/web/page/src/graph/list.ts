/** The flat list of objects: which are shown, and in which order. Pure. */

import type { Node } from "../api/graph";
import { type Filter, HEALTH_ORDER, isSelected } from "./rows";

/** The columns by which the list is sorted. */
export const COLUMNS = ["kind", "namespace", "name", "health", "age", "reason"] as const;
export type Column = (typeof COLUMNS)[number];

export interface Sorting {
  column: Column;
  descending: boolean;
}

/** The order of a list that nobody has sorted: the worst health first. */
export const DEFAULT_SORTING: Sorting = { column: "health", descending: true };

/** Returns an order as the address has it: the name of the column, after a `-` if it is descending. */
export function sortingText({ column, descending }: Sorting): string {
  return `${descending ? "-" : ""}${column}`;
}

/** Returns the order that the address has. */
export function parseSorting(text: string | null): Sorting {
  const descending = text?.startsWith("-") ?? false;
  const column = COLUMNS.find((name) => name === text?.replace(/^-/, ""));
  return column === undefined ? DEFAULT_SORTING : { column, descending };
}

/** Returns the reason of the health of an object, or else its state. */
export function reasonOf({ message, status, deleted }: Node): string {
  return message || (deleted === undefined ? (status ?? "") : "Terminating");
}

/** Returns the objects that the filter selects, in the given order. Equal ones are in order of kind, namespace and name. */
export function list(nodes: Iterable<Node>, filter: Filter, { column, descending }: Sorting): Node[] {
  const sign = descending ? -1 : 1;
  return [...nodes]
    .filter((node) => isSelected(node, filter))
    .map((node) => ({ node, key: keyOf(node, column) }))
    .sort((one, other) => sign * compare(one.key, other.key) || byName(one.node, other.node))
    .map(({ node }) => node);
}

function keyOf(node: Node, column: Column): string | number {
  switch (column) {
    case "kind":
    case "name":
      return node[column];
    case "namespace":
      return node.namespace ?? "";
    case "health":
      return HEALTH_ORDER.indexOf(node.health);
    case "age":
      // An object without a time is the oldest.
      return -(Date.parse(node.created ?? "") || 0);
    case "reason":
      return reasonOf(node);
  }
}

function byName(one: Node, other: Node): number {
  return (
    compare(one.kind, other.kind) ||
    compare(one.namespace ?? "", other.namespace ?? "") ||
    compare(one.name, other.name)
  );
}

function compare<T extends string | number>(one: T, other: T): number {
  return one < other ? -1 : one > other ? 1 : 0;
}
