import { expect, it } from "vitest";
import type { Node } from "../../../api/graph";
import { node, owner } from "../../../graph/testing";
import { type ActionInput, actionsOf } from "./actions";

const input: ActionInput = { now: new Date("2026-01-02T03:04:05Z"), replicas: 3, object: null };
const deployment = node({
  uid: "d",
  kind: "Deployment",
  group: "apps",
  name: "web",
  ready: { ready: 2, desired: 2 },
});

function find(object: Node, name: string, nodes: Node[] = []) {
  const action = actionsOf(object, new Map(nodes.map((other) => [other.uid, other]))).find(
    (candidate) => candidate.name === name,
  );
  if (!action) throw new Error(`there is no action ${name}`);
  return action;
}

it.each<[Partial<Node>, string[]]>([
  [{ kind: "Pod" }, ["Delete"]],
  [{ kind: "Deployment", group: "apps" }, ["Restart", "Scale", "Pause"]],
  [{ kind: "Deployment", group: "apps", health: "suspended" }, ["Restart", "Scale", "Pause"]],
  [{ kind: "Deployment", group: "apps", details: { paused: "true" } }, ["Scale", "Resume"]],
  [{ kind: "StatefulSet", group: "apps" }, ["Restart", "Scale"]],
  [{ kind: "DaemonSet", group: "apps" }, ["Restart"]],
  [{ kind: "ReplicaSet", group: "apps" }, ["Scale"]],
  [
    { kind: "ReplicaSet", group: "apps", ready: { ready: 0, desired: 0 }, ...owner(deployment) },
    ["Roll back"],
  ],
  [{ kind: "ReplicaSet", group: "apps", ready: { ready: 2, desired: 2 }, ...owner(deployment) }, []],
  [{ kind: "Deployment", group: "example.com" }, []],
  [{ kind: "ConfigMap" }, []],
])("%o", (properties, names) => {
  expect(actionsOf(node(properties), new Map()).map(({ name }) => name)).toEqual(names);
});

it("changes the object of the reader and no other one of its name", () => {
  expect(find(deployment, "Restart").change(input)).toEqual({
    method: "PATCH",
    subresource: "",
    contentType: "application/merge-patch+json",
    body: {
      metadata: { uid: "d" },
      spec: {
        template: {
          metadata: { annotations: { "kubectl.kubernetes.io/restartedAt": "2026-01-02T03:04:05.000Z" } },
        },
      },
    },
  });
  expect(find(deployment, "Pause").change(input).body).toEqual({
    metadata: { uid: "d" },
    spec: { paused: true },
  });
  expect(find(node({ uid: "p" }), "Delete").change(input).body).toMatchObject({
    preconditions: { uid: "p" },
  });
});

it("scales by the subresource, and says who may scale it again", () => {
  const scale = find(deployment, "Scale");
  expect(scale.change(input)).toMatchObject({
    subresource: "scale",
    body: { metadata: { uid: "d" }, spec: { replicas: 3 } },
  });
  expect(scale.effect).toBe("It has 2 replicas now.");
  const scaler = node({
    uid: "h",
    kind: "HorizontalPodAutoscaler",
    name: "web",
    edges: [{ relation: "scales", uid: "d", kind: "Deployment", name: "web" }],
  });
  expect(find(deployment, "Scale", [scaler]).effect).toContain("HorizontalPodAutoscaler/web may change");
});

it("rolls no paused Deployment back", () => {
  const paused = { ...deployment, details: { paused: "true" } };
  const old = node({
    uid: "r",
    kind: "ReplicaSet",
    group: "apps",
    ready: { ready: 0, desired: 0 },
    ...owner(paused),
  });
  expect(actionsOf(old, new Map([[paused.uid, paused]]))).toEqual([]);
});

it("says what becomes of a pod", () => {
  expect(find(node({}), "Delete").effect).toBe("The pod ends, and nothing creates it again.");
  expect(find(node(owner(deployment)), "Delete").effect).toContain("Deployment/web may create another one");
});

it("rolls a Deployment back to the template of a ReplicaSet", () => {
  const old = node({
    uid: "r",
    kind: "ReplicaSet",
    group: "apps",
    ready: { ready: 0, desired: 0 },
    images: ["web:1"],
    ...owner(deployment),
  });
  const action = find(old, "Roll back");
  expect(action.target).toMatchObject({ uid: "d", kind: "Deployment", name: "web" });
  expect(action.effect).toBe("Deployment/web gets the pods of this revision again: web:1.");
  const template = {
    metadata: { labels: { app: "web", "pod-template-hash": "1" } },
    spec: { containers: [] },
  };
  const object = { spec: { template } };
  expect(action.change({ ...input, object }).body).toEqual([
    { op: "test", path: "/metadata/uid", value: "d" },
    {
      op: "replace",
      path: "/spec/template",
      value: { metadata: { labels: { app: "web" } }, spec: { containers: [] } },
    },
  ]);
  expect(template.metadata.labels).toHaveProperty("pod-template-hash");
});
