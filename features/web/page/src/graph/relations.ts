/** The relations of an object. Pure. */

import type { HealthState, Node } from "../api/graph";

/** An object that has to do with another one. */
export interface Related {
  /** The UID, if the object is known. */
  uid?: string | undefined;
  kind: string;
  namespace: string;
  name: string;
  health?: HealthState | undefined;
}

export interface RelationGroup {
  title: string;
  related: Related[];
}

/** The relations in words, seen from their beginning and from their end. */
const TITLES: Record<string, readonly [string, string]> = {
  owns: ["Owns", "Owned by"],
  selects: ["Selects", "Selected by"],
  routes: ["Routes to", "Receives requests from"],
  uses: ["Uses", "Used by"],
  "runs-on": ["Runs on", "Runs"],
  binds: ["Binds", "Bound by"],
  scales: ["Scales", "Scaled by"],
  protects: ["Protects", "Protected by"],
};

/** Returns the relations of an object with the objects of a graph, grouped in the order of {@link TITLES}, owners first. */
export function relations(node: Node, nodes: ReadonlyMap<string, Node>): RelationGroup[] {
  const groups = new Map<string, Map<string, Related>>();
  const add = (title: string, related: Related) => {
    const group = groups.get(title) ?? new Map<string, Related>();
    group.set(related.uid ?? `${related.kind}/${related.namespace}/${related.name}`, related);
    groups.set(title, group);
  };
  const [owns, ownedBy] = ["Owns", "Owned by"];
  for (const { uid, kind, name } of node.owners ?? []) {
    const owner = nodes.get(uid);
    const namespace = node.namespace ?? "";
    add(ownedBy, owner ? relatedOf(owner) : { kind, name, namespace });
  }
  for (const edge of node.edges ?? []) {
    const other = edge.uid === undefined ? undefined : nodes.get(edge.uid);
    const { kind, name = "", namespace = "" } = edge;
    add(titleOf(edge.relation, 0), other ? relatedOf(other) : { kind, name, namespace });
  }
  for (const other of nodes.values()) {
    if (other.uid === node.uid) continue;
    if (other.owners?.some(({ uid }) => uid === node.uid)) add(owns, relatedOf(other));
    for (const edge of other.edges ?? []) {
      if (edge.uid === node.uid) add(titleOf(edge.relation, 1), relatedOf(other));
    }
  }
  const order = Object.values(TITLES).flatMap(([from, to]) => [to, from]);
  return [...groups]
    .map(([title, related]) => ({ title, related: [...related.values()] }))
    .sort((one, other) => order.indexOf(one.title) - order.indexOf(other.title));
}

function titleOf(relation: string, end: 0 | 1): string {
  return TITLES[relation]?.[end] ?? relation;
}

function relatedOf({ uid, kind, namespace = "", name, health }: Node): Related {
  return { uid, kind, namespace, name, health };
}
