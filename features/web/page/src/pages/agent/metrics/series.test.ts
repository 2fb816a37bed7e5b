import { expect, it } from "vitest";
import { chartData, format, MAX_SERIES, quote, stepOf } from "./series";

it("aligns series whose points are at other times", () => {
  const { times, lines, omitted } = chartData([
    {
      labels: { pod: "a" },
      points: [
        [10, 1],
        [20, Number.NaN],
      ],
    },
    {
      labels: { __name__: "up", job: "b" },
      points: [
        [20, 5],
        [30, 6],
      ],
    },
  ]);
  expect(times).toEqual([10, 20, 30]);
  expect(lines).toEqual([
    { name: 'up{job="b"}', values: [null, 5, 6], last: 6 },
    { name: "a", values: [1, null, null], last: null },
  ]);
  expect(omitted).toBe(0);
});

it("leaves out the smallest series, and says how many", () => {
  const series = Array.from({ length: MAX_SERIES + 5 }, (_, index) => ({
    labels: { pod: `${index}` },
    points: [[1, index] as [number, number]],
  }));
  const { lines, omitted } = chartData(series);
  expect(omitted).toBe(5);
  expect(lines[0]?.name).toBe("14");
  expect(lines).toHaveLength(MAX_SERIES);
  expect(chartData([])).toEqual({ times: [], lines: [], omitted: 0 });
});

it.each([
  [0.25, "cores", "250 m"],
  [2.5, "cores", "2.5 cores"],
  [1536, "bytes", "1.5 KiB"],
  [0, "bytes", "0 B"],
  [5 * 1024 ** 3, "bytes/s", "5 GiB/s"],
  [1234567, "", "1230000"],
  [null, "", "–"],
] as const)("%d %s", (value, unit, expected) => {
  expect(format(value, unit)).toBe(expected);
});

it("quotes what would end a text of a query", () => {
  expect(quote('a"} or up{b="\\')).toBe('"a\\"} or up{b=\\"\\\\"');
  expect([stepOf(3600), stepOf(60)]).toEqual([18, 5]);
});
