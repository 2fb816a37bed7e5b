/** The pods of a workload. Pure. */

import type { Node } from "../api/graph";

/** Returns the pod itself, or the pods below an object, the newest first. */
export function podsOf(node: Node, nodes: ReadonlyMap<string, Node>): Node[] {
  if (isPod(node)) return [node];
  const owned = new Map<string, Node[]>();
  for (const other of nodes.values()) {
    for (const { uid } of other.owners ?? []) {
      const list = owned.get(uid);
      if (list) list.push(other);
      else owned.set(uid, [other]);
    }
  }
  // Owners may be in a circle.
  const below = new Set<Node>();
  const waiting = [node.uid];
  for (let uid = waiting.pop(); uid !== undefined; uid = waiting.pop()) {
    for (const other of owned.get(uid) ?? []) {
      if (below.has(other)) continue;
      below.add(other);
      waiting.push(other.uid);
    }
  }
  const pods = [...below].filter(isPod);
  return pods.sort(
    (one, other) =>
      (other.created ?? "").localeCompare(one.created ?? "") || one.name.localeCompare(other.name),
  );
}

function isPod({ kind, group }: Node): boolean {
  return kind === "Pod" && !group;
}
