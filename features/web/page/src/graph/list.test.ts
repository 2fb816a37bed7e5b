import { expect, it } from "vitest";
import { list, parseSorting, reasonOf, sortingText } from "./list";
import type { Filter } from "./rows";
import { node } from "./testing";

const NONE: Filter = { text: "", namespace: "", health: new Set(), all: false };
const nodes = [
  node({ uid: "b", created: "2026-01-02T00:00:00Z" }),
  node({ uid: "a", created: "2026-01-01T00:00:00Z", namespace: "other" }),
  node({ uid: "c", kind: "Deployment", health: "degraded", message: "0 of 1 ready" }),
  node({ uid: "hidden", kind: "ConfigMap" }),
];

it.each<[string | null, string[]]>([
  [null, ["c", "a", "b"]],
  ["kind", ["c", "a", "b"]],
  ["-kind", ["a", "b", "c"]],
  ["name", ["a", "b", "c"]],
  ["-name", ["c", "b", "a"]],
  ["namespace", ["a", "c", "b"]],
  ["age", ["b", "a", "c"]],
  ["-age", ["c", "a", "b"]],
  ["reason", ["a", "b", "c"]],
  ["health", ["a", "b", "c"]],
  ["nonsense", ["c", "a", "b"]],
])("sorted by %s", (sorting, expected) => {
  expect(list(nodes, NONE, parseSorting(sorting)).map(({ uid }) => uid)).toEqual(expected);
});

it("is filtered as the tree is, without the owners of what is selected", () => {
  const select = (filter: Partial<Filter>) =>
    list(nodes, { ...NONE, ...filter }, parseSorting("name")).map(({ uid }) => uid);
  expect(select({ namespace: "other" })).toEqual(["a"]);
  expect(select({ health: new Set(["degraded"] as const) })).toEqual(["c"]);
  expect(select({ text: "READY" })).toEqual(["c"]);
  expect(select({ all: true })).toContain("hidden");
});

it("an order is kept in the address", () => {
  expect(["name", "-age"].map((text) => sortingText(parseSorting(text)))).toEqual(["name", "-age"]);
});

it("the reason is the message, the state, or the deletion", () => {
  expect(reasonOf(node({ message: "m", status: "s" }))).toBe("m");
  expect(reasonOf(node({ status: "Running" }))).toBe("Running");
  expect(reasonOf(node({ status: "Running", deleted: "2026-01-01T00:00:00Z" }))).toBe("Terminating");
});
