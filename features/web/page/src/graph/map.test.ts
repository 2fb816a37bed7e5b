import { expect, it } from "vitest";
import type { Node } from "../api/graph";
import { layoutMap, type MapLayout } from "./map";
import { node, owner } from "./testing";

const edge = (relation: "routes" | "selects" | "uses" | "binds", { uid, kind }: Node) => ({
  relation,
  uid,
  kind,
});
const deployment = node({ uid: "web", kind: "Deployment" });
const replicaSet = node({
  uid: "web-1",
  kind: "ReplicaSet",
  ready: { ready: 1, desired: 1 },
  ...owner(deployment),
});
const old = node({ uid: "web-0", kind: "ReplicaSet", ready: { ready: 0, desired: 0 }, ...owner(deployment) });
const claim = node({
  ...{ uid: "data", kind: "PersistentVolumeClaim" },
  edges: [{ relation: "binds", kind: "PersistentVolume", uid: "pv" }],
});
const volume = node({ uid: "pv", kind: "PersistentVolume", namespace: "" });
const pod = node({ uid: "web-1-a", ...owner(replicaSet), edges: [edge("uses", claim)] });
const service = node({ uid: "svc", kind: "Service", edges: [edge("selects", pod)] });
const ingress = node({ uid: "ing", kind: "Ingress", edges: [edge("routes", service)] });
const config = node({ uid: "conf", kind: "ConfigMap" });
const stranger = node({ uid: "other", kind: "Deployment", namespace: "bank" });
const all = [stranger, config, pod, service, old, ingress, volume, claim, replicaSet, deployment];

function text({ items, lines }: MapLayout): [string[], string[]] {
  return [
    items.map(({ uid, column, row, count }) => `${column} ${row} ${uid}${count > 1 ? ` x${count}` : ""}`),
    lines.map(({ from, to }) => `${from}>${to}`),
  ];
}

it("a request goes from left to right, and parts of a workload or a claim are no items", () => {
  const layout = layoutMap(all, "shop");
  expect(layout.columns).toEqual(["routes", "services", "workloads", "pods", "storage"]);
  expect(text(layout)).toEqual([
    ["routes 0 ing", "services 0 svc", "workloads 0 web", "pods 0 web-1-a", "storage 0 data"],
    ["ing>svc", "svc>web", "web>web-1-a", "web-1-a>data"],
  ]);
  expect(layout.leftOut.size).toBe(0);
});

it("all namespaces are shown without a filter, and a volume without a claim", () => {
  const loose = node({ uid: "loose", kind: "PersistentVolume", namespace: "" });
  const [items] = text(layoutMap([...all, loose], ""));
  expect(items).toContain("workloads 1 other");
  expect(items.filter((item) => item.startsWith("storage"))).toEqual(["storage 0 data", "storage 1 loose"]);
});

it("many pods of a workload are one item with the worst health", () => {
  const pods = Array.from({ length: 12 }, (_, index) =>
    node({ uid: `p${index}`, health: index === 7 ? "degraded" : "healthy", ...owner(replicaSet) }),
  );
  const loose = node({ uid: "alone" });
  const layout = layoutMap([deployment, replicaSet, ...pods, loose], "");
  expect(text(layout)).toEqual([["workloads 0 web", "pods 0 p7 x12", "pods 1 alone"], ["web>p7"]]);
  expect(layout.items.find(({ uid }) => uid === "p7")?.health).toBe("degraded");
});

it("items are near their neighbours, without needless crossings", () => {
  const services = ["a", "b", "c"].map((name, index) => {
    const target = node({ uid: `${3 - index}`, kind: "Deployment" });
    const one = node({ uid: `pod-${name}`, ...owner(target) });
    return [node({ uid: name, kind: "Service", edges: [edge("selects", one)] }), target, one];
  });
  const [items] = text(layoutMap(services.flat(), ""));
  expect(items.filter((item) => item.startsWith("workloads"))).toEqual([
    "workloads 0 3",
    "workloads 1 2",
    "workloads 2 1",
  ]);
});

it("with a budget, what is not healthy and its neighbours stay, and the rest is counted", () => {
  const others = Array.from({ length: 50 }, (_, index) => node({ uid: `s${index}`, kind: "Service" }));
  const broken = { ...pod, health: "degraded" as const };
  const graph = [...others, ...all.filter(({ uid }) => uid !== pod.uid), broken];
  const layout = layoutMap(graph, "shop", 4);
  expect(layout.items.map(({ uid }) => uid)).toEqual(["ing", "web", "web-1-a", "data"]);
  expect(layout.lines).toHaveLength(2);
  expect(Object.fromEntries(layout.leftOut)).toEqual({ Service: 51 });
});

it("ends with owners in a circle, and draws no line to what it does not show", () => {
  const one = node({ uid: "1", kind: "Deployment" });
  const other = node({ uid: "2", kind: "ReplicaSet", ...owner(one) });
  const circle = { ...one, ...owner(other), edges: [edge("uses", config)] };
  expect(layoutMap([circle, other, config], "").lines).toEqual([]);
});

it("5,000 objects are placed in time", () => {
  const many = Array.from({ length: 5000 }, (_, index) =>
    node({ uid: `${index}`, kind: index % 2 ? "Service" : "Pod" }),
  );
  const begun = performance.now();
  expect(layoutMap(many, "").items).toHaveLength(150);
  expect(performance.now() - begun).toBeLessThan(1000);
});
