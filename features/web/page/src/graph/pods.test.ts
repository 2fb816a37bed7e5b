import { expect, it } from "vitest";
import { podsOf, workloads } from "./pods";
import { node, owner } from "./testing";

const deployment = node({ uid: "d", kind: "Deployment", group: "apps" });
const replicaSet = node({ uid: "r", kind: "ReplicaSet", group: "apps", ...owner(deployment) });
const old = node({ uid: "old", created: "2026-01-01T00:00:00Z", ...owner(replicaSet) });
const young = node({ uid: "young", created: "2026-01-02T00:00:00Z", ...owner(replicaSet) });
const stranger = node({ uid: "stranger" });
const graph = new Map([deployment, replicaSet, old, young, stranger].map((one) => [one.uid, one]));

it("finds the pods below a workload, the newest first", () => {
  expect(podsOf(deployment, graph)).toEqual([young, old]);
  expect(podsOf(replicaSet, graph)).toEqual([young, old]);
  expect(podsOf(old, graph)).toEqual([old]);
  expect(podsOf(node({ kind: "ConfigMap", uid: "c" }), graph)).toEqual([]);
});

it("finds the workloads that write logs, without those that another one owns", () => {
  const done = node({ uid: "done", kind: "Job", status: "Complete" });
  const other = node({ uid: "other", kind: "StatefulSet", namespace: "bank" });
  const config = node({ uid: "c", kind: "ConfigMap" });
  const nodes = new Map([...graph.values(), done, other, config].map((one) => [one.uid, one]));
  expect(workloads(nodes, "").map(({ uid }) => uid)).toEqual(["d", "stranger", "other"]);
  expect(workloads(nodes, "bank").map(({ uid }) => uid)).toEqual(["other"]);
});

it("ends with owners in a circle", () => {
  const one = node({ uid: "1", kind: "A" });
  const other = node({ uid: "2", kind: "B", ...owner(one) });
  const pod = node({ uid: "3", ...owner(other) });
  const circle = { ...one, ...owner(other) };
  const nodes = new Map([circle, other, pod].map((each) => [each.uid, each]));
  expect(podsOf(deployment, nodes)).toEqual([]);
  expect(podsOf(circle, nodes)).toEqual([pod]);
});
