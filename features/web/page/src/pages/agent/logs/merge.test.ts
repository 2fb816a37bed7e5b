import { expect, it } from "vitest";
import { BLOCK, blocksOf, EMPTY_LOG, merge, parse } from "./merge";

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
  const log = merge(EMPTY_LOG, [line("a", 0, 1), line("a", 1, 4)], 10);
  const merged = merge(log, [line("b", 0, 2), line("b", 1, 5)], 10);
  expect(merged.lines.map(({ text }) => text)).toEqual(["a0", "b0", "a1", "b1"]);
});

it("keeps the blocks of lines that stay, and drops whole ones", () => {
  const lines = Array.from({ length: 3 * BLOCK + 1 }, (_, number) => parse("u", "a", number, `${number}`));
  const limit = 3 * BLOCK;
  const full = merge(EMPTY_LOG, lines.slice(0, limit), limit);
  expect(full.dropped).toBe(0);
  const next = merge(full, lines.slice(limit), limit);
  expect([next.dropped, next.lines.length, next.lines[0]?.text]).toEqual([1, limit + 1 - BLOCK, `${BLOCK}`]);
  const known = new Map(blocksOf(full).map((block) => [block.number, block.lines]));
  for (const block of blocksOf(next).slice(0, -1)) expect(block.lines).toEqual(known.get(block.number));
  expect(blocksOf(next).map(({ number }) => number)).toEqual([1, 2, 3]);
});
