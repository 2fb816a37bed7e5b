/** The workloads that write logs, and their pods. Pure. */

import type { Node } from "../api/graph";
import { isHistory } from "./rows";

/** The kinds whose pods write logs. */
export const WITH_LOGS: ReadonlySet<string> = new Set([
  "Pod",
  "Deployment",
  "ReplicaSet",
  "StatefulSet",
  "DaemonSet",
  "Job",
]);

/** Returns the workloads of a namespace, or of all with the empty one, by kind and name. An object that such a one owns is left out. */
export function workloads(nodes: ReadonlyMap<string, Node>, namespace: string): Node[] {
  const isOwned = (node: Node) => node.owners?.some(({ uid }) => WITH_LOGS.has(nodes.get(uid)?.kind ?? ""));
  return [...nodes.values()]
    .filter((node) => namespace === "" || node.namespace === namespace)
    .filter((node) => WITH_LOGS.has(node.kind) && !isHistory(node) && isOwned(node) !== true)
    .sort(
      (one, other) =>
        one.kind.localeCompare(other.kind) ||
        one.name.localeCompare(other.name) ||
        (one.namespace ?? "").localeCompare(other.namespace ?? ""),
    );
}

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
