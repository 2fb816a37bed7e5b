import { expect, it } from "vitest";
import { relations } from "./relations";
import { node, owner } from "./testing";

it("relations have two ends, and an object that the caller may not see has no link", () => {
  const set = node({ uid: "rs", kind: "ReplicaSet" });
  const pod = node({
    uid: "p",
    ...owner(set),
    edges: [
      { relation: "uses", kind: "Secret", name: "hidden" },
      { relation: "runs-on", kind: "Node", name: "n", uid: "n" },
    ],
  });
  const service = node({
    uid: "s",
    kind: "Service",
    edges: [{ relation: "selects", kind: "Pod", uid: "p" }],
  });
  const machine = node({ uid: "n", kind: "Node", namespace: "" });
  const nodes = new Map([set, pod, service, machine].map((object) => [object.uid, object]));
  const found = relations(pod, nodes).map(({ title, related }) => [
    title,
    related.map(({ kind, uid }) => [kind, uid]),
  ]);
  expect(found).toEqual([
    ["Owned by", [["ReplicaSet", "rs"]]],
    ["Selected by", [["Service", "s"]]],
    ["Uses", [["Secret", undefined]]],
    ["Runs on", [["Node", "n"]]],
  ]);
  expect(relations(machine, nodes).map(({ title }) => title)).toEqual(["Runs"]);
});
