/** Objects for tests. */

import type { Node } from "../api/graph";

/** Returns an object that is healthy, with other properties. */
export function node(properties: Partial<Node>): Node {
  return {
    uid: "1",
    kind: "Pod",
    version: "v1",
    namespace: "shop",
    name: properties.uid ?? "web",
    health: "healthy",
    sequence: 1,
    ...properties,
  };
}

/** Returns an owner of an object. */
export function owner({ uid, kind, name }: Node): { owners: NonNullable<Node["owners"]> } {
  return { owners: [{ uid, kind, name }] };
}
