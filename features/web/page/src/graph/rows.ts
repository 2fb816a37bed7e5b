/** The rows of the tree: which objects are shown, in which order, and which are folded. Pure. */

import type { HealthState, Node } from "../api/graph";

export interface Row {
  node: Node;
  level: number;
  /** The number of objects below it that the filter selects. */
  children: number;
  expanded: boolean;
  position: number;
  siblings: number;
  /** The worst health of the object and all below it. */
  worst: HealthState;
}

export interface Filter {
  text: string;
  namespace: string;
  health: ReadonlySet<HealthState>;
  /** Old ReplicaSets, completed Jobs and objects without a health are shown, too. */
  all: boolean;
}

/** The order from the best to the worst. */
export const HEALTH_ORDER: readonly HealthState[] = [
  "healthy",
  "suspended",
  "progressing",
  "unknown",
  "degraded",
];

/** Kinds that do nothing by themselves: they are shown with `all`, or if something is wrong with them. */
const PASSIVE = new Set([
  "ConfigMap",
  "Secret",
  "ServiceAccount",
  "Role",
  "RoleBinding",
  "ClusterRole",
  "ClusterRoleBinding",
  "EndpointSlice",
  "Endpoints",
  "ControllerRevision",
  "CustomResourceDefinition",
  "MutatingWebhookConfiguration",
  "ValidatingWebhookConfiguration",
  "StorageClass",
  "PriorityClass",
  "IngressClass",
  "Namespace",
  "Lease",
]);

export function worse(one: HealthState, other: HealthState): HealthState {
  return HEALTH_ORDER.indexOf(one) >= HEALTH_ORDER.indexOf(other) ? one : other;
}

/** Returns whether an object is history: an old ReplicaSet or a completed Job or Pod. */
export function isHistory(node: Node): boolean {
  if (node.kind === "ReplicaSet") return node.ready?.desired === 0 && (node.owners ?? []).length > 0;
  return (
    (node.kind === "Job" || node.kind === "Pod") && /^(Complete|Completed|Succeeded)/.test(node.status ?? "")
  );
}

function isShown(node: Node, filter: Filter): boolean {
  if (filter.all) return true;
  return !isHistory(node) && (!PASSIVE.has(node.kind) || node.health === "degraded");
}

/** Returns whether the filter selects an object by itself. */
export function isSelected(node: Node, filter: Filter): boolean {
  return isInNamespace(node, filter.namespace) && isShown(node, filter) && matches(node, filter);
}

function isInNamespace(node: Node, namespace: string): boolean {
  return namespace === "" || (node.namespace ?? "") === namespace;
}

function matches(node: Node, filter: Filter): boolean {
  if (filter.health.size > 0 && !filter.health.has(node.health)) return false;
  if (filter.text === "") return true;
  const text = filter.text.toLowerCase();
  const fields = [node.name, node.kind, node.status ?? "", node.message ?? "", ...(node.images ?? [])];
  return fields.some((field) => field.toLowerCase().includes(text));
}

/**
 * Returns the rows of the tree, the worst ones first. An object that the filter does not select is shown if an object below it is
 * selected. `toggled` says which objects the reader has opened or closed. Of the others, those are open that are not healthy, and those
 * above `current`, the object that is shown beside the tree.
 */
export function rows(
  nodes: Iterable<Node>,
  filter: Filter,
  toggled: ReadonlyMap<string, boolean>,
  current: string | null = null,
): Row[] {
  const shown = new Map<string, Node>();
  for (const node of nodes) {
    const isWanted = isShown(node, filter) || node.uid === current;
    if (isInNamespace(node, filter.namespace) && isWanted) shown.set(node.uid, node);
  }
  const { roots, children, parents } = forest(shown);
  const above = new Set<string>();
  for (let uid = parents.get(current ?? ""); uid !== undefined; uid = parents.get(uid)) above.add(uid);
  const selected = new Map<string, HealthState>();
  const select = (node: Node): HealthState | undefined => {
    let worst = matches(node, filter) ? node.health : undefined;
    for (const child of children.get(node.uid) ?? []) {
      const below = select(child);
      if (below !== undefined) worst = worst === undefined ? below : worse(worst, below);
    }
    if (worst !== undefined) selected.set(node.uid, worst);
    return worst;
  };
  roots.forEach(select);
  const isFiltered = filter.text !== "" || filter.health.size > 0;
  const result: Row[] = [];
  const add = (siblings: Node[], level: number): void => {
    const badness = ({ uid }: Node) => HEALTH_ORDER.indexOf(selected.get(uid) ?? "healthy");
    const visible = siblings
      .filter((node) => selected.has(node.uid))
      .sort((one, other) => badness(other) - badness(one) || compare(one, other));
    visible.forEach((node, index) => {
      const below = (children.get(node.uid) ?? []).filter((child) => selected.has(child.uid));
      const worst = selected.get(node.uid) ?? node.health;
      const isOpen = isFiltered || worst !== "healthy" || above.has(node.uid);
      const expanded = below.length > 0 && (toggled.get(node.uid) ?? isOpen);
      const position = index + 1;
      result.push({
        node,
        level,
        children: below.length,
        expanded,
        position,
        siblings: visible.length,
        worst,
      });
      if (expanded) add(below, level + 1);
    });
  };
  add(roots, 1);
  return result;
}

/** The deepest tree. A cluster may name owners in any way. */
const MAX_DEPTH = 32;

/** Returns the objects without an owner among `shown`, and the objects by their owners. An object of a circle, or too deep, is a root. */
function forest(shown: ReadonlyMap<string, Node>): {
  roots: Node[];
  children: Map<string, Node[]>;
  parents: Map<string, string>;
} {
  const parents = new Map<string, string>();
  for (const node of shown.values()) {
    const owner = (node.owners ?? []).find(({ uid }) => shown.has(uid) && uid !== node.uid);
    if (owner) parents.set(node.uid, owner.uid);
  }
  const depths = new Map<string, number>();
  for (const uid of shown.keys()) {
    const chain = new Set<string>();
    let top: string | undefined = uid;
    while (top !== undefined && !depths.has(top) && !chain.has(top)) {
      chain.add(top);
      top = parents.get(top);
    }
    if (top !== undefined && chain.has(top)) parents.delete(top);
    for (const below of [...chain].reverse()) {
      const parent = parents.get(below);
      const depth = parent === undefined ? 0 : (depths.get(parent) ?? 0) + 1;
      if (depth >= MAX_DEPTH) parents.delete(below);
      depths.set(below, depth >= MAX_DEPTH ? 0 : depth);
    }
  }
  const roots: Node[] = [];
  const children = new Map<string, Node[]>();
  for (const node of shown.values()) {
    const parent = parents.get(node.uid);
    if (parent === undefined) {
      roots.push(node);
      continue;
    }
    const siblings = children.get(parent);
    if (siblings) siblings.push(node);
    else children.set(parent, [node]);
  }
  return { roots, children, parents };
}

function compare(one: Node, other: Node): number {
  return (
    order(one.namespace ?? "", other.namespace ?? "") ||
    order(one.kind, other.kind) ||
    order(one.name, other.name) ||
    order(one.uid, other.uid)
  );
}

function order(one: string, other: string): number {
  return one < other ? -1 : one > other ? 1 : 0;
}

/** Counts the objects that have a health, by it. */
export function countByHealth(nodes: Iterable<Node>, namespace: string): Map<HealthState, number> {
  const counts = new Map<HealthState, number>();
  for (const node of nodes) {
    if (!isInNamespace(node, namespace)) continue;
    if (isHistory(node) || (PASSIVE.has(node.kind) && node.health !== "degraded")) continue;
    counts.set(node.health, (counts.get(node.health) ?? 0) + 1);
  }
  return counts;
}
