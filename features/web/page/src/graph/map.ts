/** The layout of the map: objects in columns, from the routes to the storage, and the lines between them. Pure. */

import type { HealthState, Node } from "../api/graph";
import { HEALTH_ORDER, isHistory, worse } from "./rows";

/** The columns from left to right. */
export const COLUMNS = ["routes", "services", "workloads", "pods", "storage"] as const;
export type Column = (typeof COLUMNS)[number];

/** An object of the map, or several pods of a workload. */
export interface MapItem {
  /** The UID of the object, or of the pod with the worst health. */
  uid: string;
  kind: string;
  namespace: string;
  name: string;
  health: HealthState;
  /** The number of pods that it stands for, or 1. */
  count: number;
  column: Column;
  /** The position in the column, from 0. */
  row: number;
}

/** A line between two items, by their UIDs, from left to right. */
export interface MapLine {
  from: string;
  to: string;
}

export interface MapLayout {
  /** The columns that have items. */
  columns: Column[];
  /** The items in order of columns and rows. */
  items: MapItem[];
  lines: MapLine[];
  /** The items that are left out because of the budget, by their kind. */
  leftOut: Map<string, number>;
}

/** The most items of a map. */
export const BUDGET = 150;
/** The most pods of a workload that are items of their own. */
const MAX_PODS = 3;
/** The most owners above an object that are followed. */
const MAX_DEPTH = 8;

const KINDS: Readonly<Record<string, Column>> = {
  Gateway: "routes",
  GRPCRoute: "routes",
  HTTPRoute: "routes",
  Ingress: "routes",
  IngressRoute: "routes",
  Route: "routes",
  TCPRoute: "routes",
  TLSRoute: "routes",
  UDPRoute: "routes",
  VirtualService: "routes",
  Service: "services",
  CronJob: "workloads",
  DaemonSet: "workloads",
  Deployment: "workloads",
  Job: "workloads",
  ReplicaSet: "workloads",
  ReplicationController: "workloads",
  Rollout: "workloads",
  StatefulSet: "workloads",
  Pod: "pods",
  PersistentVolume: "storage",
  PersistentVolumeClaim: "storage",
};

/** An item before it has a row. */
interface Draft extends Omit<MapItem, "row"> {
  neighbours: Set<string>;
}

/**
 * Places the objects of a namespace, or of all with the empty one. A ReplicaSet is a part of its Deployment, a Job of its CronJob, and a
 * volume of its claim. More than a few pods of a workload are one item. Of more items than the budget, those stay that are not healthy,
 * then their neighbours, then the others that have lines.
 */
export function layoutMap(nodes: Iterable<Node>, namespace: string, budget = BUDGET): MapLayout {
  const shown = new Map<string, Node>();
  for (const node of nodes) {
    const isThere = namespace === "" || (node.namespace ?? "") === namespace;
    if (isThere && KINDS[node.kind] !== undefined && !isHistory(node)) shown.set(node.uid, node);
  }
  for (const claim of [...shown.values()]) {
    if (claim.kind !== "PersistentVolumeClaim") continue;
    for (const { relation, uid } of claim.edges ?? []) if (relation === "binds") shown.delete(uid ?? "");
  }
  const drafts = new Map<string, Draft>();
  const parts = fold(shown, drafts);
  connect(shown, drafts, parts);
  const kept = choose(drafts, budget);
  const leftOut = new Map<string, number>();
  for (const [uid, { kind }] of drafts) if (!kept.has(uid)) leftOut.set(kind, (leftOut.get(kind) ?? 0) + 1);
  return { ...place(kept), leftOut };
}

/** Makes the items. Returns the UID of the item for the UID of each object. */
function fold(shown: ReadonlyMap<string, Node>, drafts: Map<string, Draft>): Map<string, string> {
  const parts = new Map<string, string>();
  const podsByOwner = new Map<string, Node[]>();
  for (const node of shown.values()) {
    if (node.kind === "Pod") {
      const owner = ownerOf(node, shown);
      const key = owner === undefined ? node.uid : wholeOf(owner, shown).uid;
      const others = podsByOwner.get(key);
      if (others) others.push(node);
      else podsByOwner.set(key, [node]);
      continue;
    }
    const whole = wholeOf(node, shown);
    parts.set(node.uid, whole.uid);
    if (whole.uid === node.uid) drafts.set(node.uid, draft(node));
  }
  for (const pods of podsByOwner.values()) {
    if (pods.length <= MAX_PODS) {
      for (const pod of pods) {
        drafts.set(pod.uid, draft(pod));
        parts.set(pod.uid, pod.uid);
      }
      continue;
    }
    const worst = pods.reduce((one, other) => (worse(one.health, other.health) === one.health ? one : other));
    drafts.set(worst.uid, { ...draft(worst), count: pods.length });
    for (const pod of pods) parts.set(pod.uid, worst.uid);
  }
  return parts;
}

/** Returns the object of which another one is a part, or the object itself. */
function wholeOf(node: Node, shown: ReadonlyMap<string, Node>): Node {
  let whole = node;
  // Owners may be in a circle.
  for (let depth = 0; depth < MAX_DEPTH && KINDS[whole.kind] === "workloads"; depth += 1) {
    const owner = ownerOf(whole, shown);
    if (owner === undefined || KINDS[owner.kind] !== "workloads") break;
    whole = owner;
  }
  return whole;
}

function ownerOf(node: Node, shown: ReadonlyMap<string, Node>): Node | undefined {
  return (node.owners ?? []).map(({ uid }) => shown.get(uid)).find((owner) => owner !== undefined);
}

function draft(node: Node): Draft {
  const { uid, kind, namespace = "", name, health } = node;
  const column = KINDS[kind] ?? "workloads";
  return { uid, kind, namespace, name, health, count: 1, column, neighbours: new Set() };
}

/** Finds the neighbours of the items: owners of pods, and the relations of objects. */
function connect(
  shown: ReadonlyMap<string, Node>,
  drafts: ReadonlyMap<string, Draft>,
  parts: ReadonlyMap<string, string>,
): void {
  const link = (one: string | undefined, other: string | undefined) => {
    const from = drafts.get(one ?? "");
    const to = drafts.get(other ?? "");
    if (!from || !to || from.column === to.column) return;
    from.neighbours.add(to.uid);
    to.neighbours.add(from.uid);
  };
  const workloadOf = (pod: Node) => parts.get(ownerOf(pod, shown)?.uid ?? "");
  for (const node of shown.values()) {
    const own = parts.get(node.uid);
    if (node.kind === "Pod") link(workloadOf(node), own);
    for (const { relation, uid } of node.edges ?? []) {
      const other = shown.get(uid ?? "");
      // A Service selects pods; the line ends at their workload, which is between the two columns.
      const workload = other?.kind === "Pod" && relation === "selects" ? workloadOf(other) : undefined;
      const target = workload ?? parts.get(uid ?? "");
      link(own, target);
    }
  }
}

/** Returns the items that fit the budget. */
function choose(drafts: ReadonlyMap<string, Draft>, budget: number): Map<string, Draft> {
  const isIll = ({ health }: Draft) => health !== "healthy" && health !== "suspended";
  const rank = (item: Draft) => {
    if (isIll(item)) return HEALTH_ORDER.indexOf(item.health);
    const neighbours = [...item.neighbours].flatMap((uid) => drafts.get(uid) ?? []);
    if (neighbours.some(isIll)) return -1;
    return neighbours.length > 0 ? -2 : -3;
  };
  const ranked = [...drafts.values()].map((item) => ({ item, rank: rank(item) }));
  ranked.sort((one, other) => other.rank - one.rank || byName(one.item, other.item));
  return new Map(ranked.slice(0, budget).map(({ item }) => [item.uid, item]));
}

/** Places each item near its neighbours of the columns to the left. */
function place(kept: ReadonlyMap<string, Draft>): Omit<MapLayout, "leftOut"> {
  const rows = new Map<string, number>();
  const columns: Column[] = [];
  const items: MapItem[] = [];
  for (const column of COLUMNS) {
    const members = [...kept.values()].filter((item) => item.column === column).sort(byName);
    if (members.length === 0) continue;
    columns.push(column);
    const weight = ({ neighbours }: Draft) => {
      const known = [...neighbours].flatMap((uid) => rows.get(uid) ?? []);
      return known.length === 0 ? Infinity : known.reduce((sum, row) => sum + row, 0) / known.length;
    };
    const weighted = members.map((item) => ({ item, weight: weight(item) }));
    // The sort is stable, so that equal ones stay in order of their names. Infinity minus itself is no number.
    weighted.sort((one, other) => (one.weight === other.weight ? 0 : one.weight - other.weight));
    weighted.forEach(({ item }, row) => {
      const { neighbours: _, ...shown } = item;
      rows.set(item.uid, row);
      items.push({ ...shown, row });
    });
  }
  const lines = items.flatMap(({ uid, column }) => {
    const right = [...(kept.get(uid)?.neighbours ?? [])].flatMap((other) => kept.get(other) ?? []);
    return right
      .filter((other) => COLUMNS.indexOf(other.column) > COLUMNS.indexOf(column))
      .map((other) => ({ from: uid, to: other.uid }));
  });
  return { columns, items, lines };
}

function byName(one: Draft, other: Draft): number {
  const key = ({ namespace, name, kind, uid }: Draft) => [namespace, name, kind, uid].join("\u0000");
  return key(one) < key(other) ? -1 : 1;
}
