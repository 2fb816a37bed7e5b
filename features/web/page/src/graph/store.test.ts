import { expect, it } from "vitest";
import type { GraphEvent } from "../api/graph";
import { apply, EMPTY, MAX_NODES } from "./store";
import { node } from "./testing";

const added = (uid: string): GraphEvent => ({ event: "node", node: node({ uid }) });
const uids = (state: typeof EMPTY) => [...state.nodes.keys()];

it("a snapshot is complete at its commit, and changes follow", () => {
  const begun = apply(EMPTY, [{ event: "begin", mode: "snapshot" }, added("a"), added("b")]);
  expect(begun.complete).toBe(false);
  const complete = apply(begun, [{ event: "commit", token: "1" }]);
  expect([complete.complete, uids(complete)]).toEqual([true, ["a", "b"]]);
  const changed = apply(complete, [{ event: "gone", uid: "a", reason: "deleted" }, added("c")]);
  expect([uids(changed), uids(complete)]).toEqual([
    ["b", "c"],
    ["a", "b"],
  ]);
});

it("a watch that continues keeps the objects; one that begins anew replaces them", () => {
  const state = apply(EMPTY, [added("a"), { event: "commit", token: "1" }]);
  expect(uids(apply(state, [{ event: "begin", mode: "delta" }, added("b")]))).toEqual(["a", "b"]);
  expect(uids(apply(state, [{ event: "begin", mode: "reset" }, added("b")]))).toEqual(["b"]);
});

it("a cluster cannot fill the memory of the browser", () => {
  const events = Array.from({ length: MAX_NODES + 10 }, (_, index) => added(`${index}`));
  expect(apply(EMPTY, events).nodes.size).toBe(MAX_NODES);
});

it("an event of a later version is left out", () => {
  expect(uids(apply(EMPTY, [{ event: "new" } as unknown as GraphEvent, added("a")]))).toEqual(["a"]);
});
