import { expect, it } from "vitest";
import { merge, parse } from "./merge";

const time = (second: number) => `2026-01-02T03:04:0${second}.5Z`;

it("separates the time from the text", () => {
  expect(parse("u", "a", 1, `${time(1)} hello world`)).toEqual({
    uid: "u",
    pod: "a",
    number: 1,
    time: time(1),
    text: "hello world",
  });
  expect(parse("u", "a", 1, time(1))).toMatchObject({ time: time(1), text: "" });
  expect(parse("u", "a", 1, "unable to retrieve container logs")).toMatchObject({
    time: "",
    text: "unable to retrieve container logs",
  });
});

it("orders the lines of several pods by their times", () => {
  const line = (pod: string, number: number, second: number) =>
    parse(pod, pod, number, `${time(second)} ${pod}${number}`);
  const log = merge([], [line("a", 0, 1), line("a", 1, 4)], 10);
  const merged = merge(log, [line("b", 0, 2), line("b", 1, 5)], 10);
  expect(merged.map(({ text }) => text)).toEqual(["a0", "b0", "a1", "b1"]);
  expect(merge(merged, [line("a", 2, 6)], 2).map(({ text }) => text)).toEqual(["b1", "a2"]);
});
