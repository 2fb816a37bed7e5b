import { expect, it } from "vitest";
import { tabOf } from "./tabs";

it.each<[string, string, string | null]>([
  ["a", "ArrowRight", "b"],
  ["c", "ArrowRight", "a"],
  ["a", "ArrowLeft", "c"],
  ["b", "ArrowLeft", "a"],
  ["b", "Home", "a"],
  ["b", "End", "c"],
  ["b", "j", null],
])("from tab %s, key %s leads to %s", (current, key, expected) => {
  expect(tabOf(["a", "b", "c"], current, key)).toBe(expected);
});
