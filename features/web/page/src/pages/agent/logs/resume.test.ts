import { expect, it } from "vitest";
import { parse } from "./merge";
import { LogPosition } from "./resume";

const line = (second: number, text: string) =>
  parse("uid", "pod", 0, `2026-01-02T03:04:0${second}.5Z ${text}`);

function read(position: LogPosition, lines: ReturnType<typeof line>[]): string[] {
  position.begin();
  return lines.filter((one) => position.accept(one)).map(({ text }) => text);
}

it("continues after the last line, also among lines of one time", () => {
  const position = new LogPosition();
  expect(read(position, [line(1, "a"), line(2, "b"), line(2, "c")])).toEqual(["a", "b", "c"]);
  expect(read(position, [line(1, "a"), line(2, "b"), line(2, "c"), line(2, "d"), line(3, "e")])).toEqual([
    "d",
    "e",
  ]);
  expect(read(position, [line(3, "e"), line(3, "f")])).toEqual(["f"]);
});

it("keeps lines whose times go back", () => {
  const position = new LogPosition();
  expect(read(position, [line(5, "a"), line(4, "b"), line(5, "c"), line(6, "d")])).toEqual([
    "a",
    "b",
    "c",
    "d",
  ]);
});

it("shows an error of the kubelet once", () => {
  const position = new LogPosition();
  const error = parse("uid", "pod", 0, "failed to create fsnotify watcher: too many open files");
  expect(read(position, [line(1, "a"), error])).toHaveLength(2);
  expect(read(position, [line(1, "a"), error])).toEqual([]);
});
