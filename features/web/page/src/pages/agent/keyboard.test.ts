import { expect, it } from "vitest";
import type { Row } from "../../graph/rows";
import { node } from "../../graph/testing";
import { move } from "./keyboard";

const row = (uid: string, level: number, children: number, expanded: boolean): Row => ({
  node: node({ uid }),
  level,
  children,
  expanded,
  position: 1,
  siblings: 1,
  worst: "healthy",
});
const list = [row("a", 1, 1, true), row("b", 2, 1, false), row("c", 1, 0, false)];

it.each<[number, string, ReturnType<typeof move>]>([
  [0, "j", { kind: "select", index: 1 }],
  [0, "k", { kind: "select", index: 0 }],
  [2, "ArrowDown", { kind: "select", index: 2 }],
  [1, "PageDown", { kind: "select", index: 2 }],
  [2, "Home", { kind: "select", index: 0 }],
  [0, "End", { kind: "select", index: 2 }],
  [0, "ArrowRight", { kind: "select", index: 1 }],
  [1, "ArrowRight", { kind: "toggle", uid: "b" }],
  [2, "ArrowRight", null],
  [0, "ArrowLeft", { kind: "toggle", uid: "a" }],
  [1, "ArrowLeft", { kind: "select", index: 0 }],
  [2, "ArrowLeft", null],
  [1, "Enter", { kind: "open", uid: "b" }],
  [1, "x", null],
  [9, "j", null],
])("row %d, key %s", (index, key, expected) => {
  expect(move(list, index, key, 10)).toEqual(expected);
});
