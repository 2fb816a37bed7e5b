/** The changes of an object that the page offers. Pure: each is one request of the Kubernetes API, as kubectl would send it. */

import type { Node } from "../../../api/graph";
import type { Change, KubernetesObject } from "../../../api/kubernetes";

export interface Action {
  /** Pause and resume have the same, because they are one button. */
  id: string;
  name: string;
  /** The object that changes, which another object may own. */
  target: Pick<Node, "uid" | "kind" | "name">;
  verb: "patch" | "delete";
  subresource: string;
  /** One sentence about what happens. */
  effect: string;
  /** True if the dialog asks for the number of replicas. */
  asksForReplicas: boolean;
  /** True if the request contains parts of the object. */
  needsObject: boolean;
  change: (input: ActionInput) => Change;
}

export interface ActionInput {
  now: Date;
  replicas: number;
  /** The object, for an action that needs it. */
  object: KubernetesObject | null;
}

const ROLLOUTS = new Set(["Deployment", "StatefulSet", "DaemonSet"]);
const SCALABLE = new Set(["Deployment", "StatefulSet", "ReplicaSet"]);

/** Returns what may be done with an object, if the caller has the rights. `nodes` are the objects around it. */
export function actionsOf(node: Node, nodes: ReadonlyMap<string, Node>): Action[] {
  if (node.kind === "Pod" && !node.group) return [deletion(node)];
  if (node.group !== "apps") return [];
  const owner = node.owners?.find(({ kind }) => kind === "Deployment");
  if (node.kind === "ReplicaSet" && owner) {
    const isOld = node.ready?.desired === 0 && !isPaused(nodes.get(owner.uid));
    return isOld ? [rollback(node, owner)] : [];
  }
  const actions: Action[] = [];
  // A paused Deployment would do it when it is resumed. kubectl refuses that, too.
  if (ROLLOUTS.has(node.kind) && !isPaused(node)) actions.push(restart(node));
  if (SCALABLE.has(node.kind)) actions.push(scaling(node, nodes));
  if (node.kind === "Deployment") actions.push(pausing(node));
  return actions;
}

function isPaused(node: Node | undefined): boolean {
  return node?.details?.paused === "true";
}

/** Returns a change of this object only: the API server refuses another UID (409 or 422). */
function merge(uid: string, body: object, subresource = ""): Change {
  const contentType = "application/merge-patch+json";
  return { method: "PATCH", subresource, contentType, body: { metadata: { uid }, ...body } };
}

function restart(node: Node): Action {
  const { uid } = node;
  return {
    ...defaults(node),
    id: "restart",
    name: "Restart",
    effect: "New pods replace all its pods, by its update strategy.",
    change: ({ now }) => {
      const annotations = { "kubectl.kubernetes.io/restartedAt": now.toISOString() };
      return merge(uid, { spec: { template: { metadata: { annotations } } } });
    },
  };
}

function scaling(node: Node, nodes: ReadonlyMap<string, Node>): Action {
  const isScaled = (edge: { relation: string; uid?: string }) =>
    edge.relation === "scales" && edge.uid === node.uid;
  const scaler = [...nodes.values()].find(({ edges }) => edges?.some(isScaled));
  const now = node.ready?.desired ?? 0;
  const again = scaler === undefined ? "" : ` ${scaler.kind}/${scaler.name} may change the number again.`;
  return {
    ...defaults(node),
    id: "scale",
    name: "Scale",
    subresource: "scale",
    effect: `It has ${now} ${now === 1 ? "replica" : "replicas"} now.${again}`,
    asksForReplicas: true,
    change: ({ replicas }) => merge(node.uid, { spec: { replicas } }, "scale"),
  };
}

function pausing(node: Node): Action {
  const paused = isPaused(node);
  return {
    ...defaults(node),
    id: "pause",
    name: paused ? "Resume" : "Pause",
    effect: paused
      ? "The rollout goes on with the newest version."
      : "Later versions wait until the rollout is resumed. The pods that run now stay.",
    change: () => merge(node.uid, { spec: { paused: !paused } }),
  };
}

function deletion(node: Node): Action {
  const owner = node.owners?.[0];
  return {
    ...defaults(node),
    id: "delete",
    name: "Delete",
    verb: "delete",
    effect:
      owner === undefined
        ? "The pod ends, and nothing creates it again."
        : `The pod ends. ${owner.kind}/${owner.name} may create another one.`,
    change: () => ({
      method: "DELETE",
      subresource: "",
      contentType: "application/json",
      body: { apiVersion: "v1", kind: "DeleteOptions", preconditions: { uid: node.uid } },
    }),
  };
}

function rollback(node: Node, owner: Action["target"]): Action {
  const images = (node.images ?? []).join(", ");
  return {
    ...defaults(node),
    id: "rollback",
    name: "Roll back",
    target: owner,
    effect: `${owner.kind}/${owner.name} gets the pods of this revision again${images === "" ? "." : `: ${images}.`}`,
    needsObject: true,
    change: ({ object }) => ({
      method: "PATCH",
      subresource: "",
      contentType: "application/json-patch+json",
      body: [
        { op: "test", path: "/metadata/uid", value: owner.uid },
        { op: "replace", path: "/spec/template", value: templateOf(object) },
      ],
    }),
  };
}

/** Returns the template of a ReplicaSet without the label that its Deployment has added. */
function templateOf(object: KubernetesObject | null): unknown {
  const spec = object?.spec as { template?: { metadata?: { labels?: Record<string, string> } } } | undefined;
  const template = structuredClone(spec?.template);
  const labels = template?.metadata?.labels;
  if (labels) delete labels["pod-template-hash"];
  return template;
}

function defaults(node: Node) {
  const { uid, kind, name } = node;
  return {
    target: { uid, kind, name },
    verb: "patch" as const,
    subresource: "",
    asksForReplicas: false,
    needsObject: false,
  };
}
