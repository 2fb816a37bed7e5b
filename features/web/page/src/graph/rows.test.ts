import { describe, expect, it } from "vitest";
import type { Node } from "../api/graph";
import { countByHealth, type Filter, type Row, rows } from "./rows";
import { node, owner } from "./testing";

const NONE: Filter = { text: "", namespace: "", health: new Set(), all: false };

const deployment = node({ uid: "d", kind: "Deployment", health: "degraded" });
const current = node({
  uid: "rs2",
  kind: "ReplicaSet",
  health: "degraded",
  ready: { ready: 0, desired: 1 },
  ...owner(deployment),
});
const old = node({ uid: "rs1", kind: "ReplicaSet", ready: { ready: 0, desired: 0 }, ...owner(deployment) });
const pod = node({
  uid: "p",
  health: "degraded",
  status: "CrashLoopBackOff",
  images: ["shop/web:2"],
  ...owner(current),
});
const config = node({ uid: "c", kind: "ConfigMap" });
const other = node({ uid: "o", kind: "Service", namespace: "other" });
const all = [pod, config, old, current, other, deployment];

function tree(list: Row[]): string[] {
  return list.map(
    ({ node: { uid }, level, expanded }) => `${"-".repeat(level - 1)}${uid}${expanded ? "*" : ""}`,
  );
}

describe("rows", () => {
  it("are a tree in which the unhealthy is open, and history and configuration are folded away", () => {
    expect(tree(rows(all, NONE, new Map()))).toEqual(["d*", "-rs2*", "--p", "o"]);
    expect(tree(rows(all, { ...NONE, all: true }, new Map()))).toEqual([
      "d*",
      "-rs2*",
      "--p",
      "-rs1",
      "o",
      "c",
    ]);
  });

  it("are opened and closed by the reader", () => {
    expect(tree(rows(all, NONE, new Map([["d", false]])))).toEqual(["d", "o"]);
    const closed = rows(all, NONE, new Map([["d", false]])).at(0);
    expect([closed?.worst, closed?.children]).toEqual(["degraded", 1]);
  });

  it.each<[Partial<Filter>, string[]]>([
    [{ text: "CRASH" }, ["d*", "-rs2*", "--p"]],
    [{ text: "web:2" }, ["d*", "-rs2*", "--p"]],
    [{ namespace: "other" }, ["o"]],
    [{ health: new Set(["healthy"] as const) }, ["o"]],
    [{ text: "nothing" }, []],
  ])("are filtered by %j, with the owners of what is selected", (filter, expected) => {
    expect(tree(rows(all, { ...NONE, ...filter }, new Map()))).toEqual(expected);
  });

  it("begin with the worst, by the worst object below", () => {
    const fine = node({ uid: "a", kind: "Deployment" });
    const slow = node({ uid: "b", kind: "Deployment", health: "progressing" });
    const crashed = node({ uid: "z", kind: "StatefulSet" });
    const below = node({ uid: "p", health: "degraded", ...owner(crashed) });
    expect(tree(rows([fine, slow, crashed, below], NONE, new Map()))).toEqual(["z*", "-p", "b", "a"]);
  });

  it("show the object that is opened, with the objects above it", () => {
    const whole = node({ uid: "w", kind: "Deployment" });
    const set = node({ uid: "s", kind: "ReplicaSet", ready: { ready: 1, desired: 1 }, ...owner(whole) });
    const inside = node({ uid: "i", ...owner(set) });
    expect(tree(rows([whole, set, inside, config], NONE, new Map()))).toEqual(["w"]);
    expect(tree(rows([whole, set, inside, config], NONE, new Map(), "i"))).toEqual(["w*", "-s*", "--i"]);
    expect(tree(rows([whole, set, inside, config], NONE, new Map(), "c"))).toEqual(["c", "w"]);
    const closed = new Map([["w", false]]);
    expect(tree(rows([whole, set, inside], NONE, closed, "i"))).toEqual(["w"]);
  });

  it("end, whoever owns whom", () => {
    const a = node({ uid: "a" });
    const b = node({ uid: "b", ...owner(a) });
    const circle = [{ ...a, ...owner(b) }, b, node({ uid: "self", ...owner(node({ uid: "self" })) })];
    expect(new Set(rows(circle, { ...NONE, text: "p" }, new Map()).map((row) => row.node.uid))).toEqual(
      new Set(["a", "b", "self"]),
    );
    const chain: Node[] = [node({ uid: "0" })];
    for (let index = 1; index < 2000; index += 1)
      chain.push(node({ uid: `${index}`, ...owner(chain[index - 1] ?? a) }));
    for (const order of [chain, chain.toReversed()]) {
      const found = rows(order, { ...NONE, text: "p" }, new Map());
      expect(found).toHaveLength(2000);
      expect(Math.max(...found.map(({ level }) => level))).toBe(32);
    }
  });

  it("tell a screen reader their place", () => {
    const last = rows(all, { ...NONE, all: true }, new Map()).find((row) => row.node.uid === "rs2");
    expect([last?.level, last?.position, last?.siblings]).toEqual([2, 1, 2]);
  });
});

it("counts leave out what the tree folds away", () => {
  expect(Object.fromEntries(countByHealth(all, ""))).toEqual({ degraded: 3, healthy: 1 });
  expect(Object.fromEntries(countByHealth(all, "other"))).toEqual({ healthy: 1 });
});
