import { useLayoutEffect, useRef } from "preact/hooks";
import uPlot from "uplot";
import "uplot/dist/uPlot.min.css";
import { plain } from "../../../text";
import { type ChartData, format, type Unit } from "./series";

const HEIGHT = 200;
/** The colours of lines, which are classes `swatch-…`. */
const COLOURS = 6;

/** A chart with its last values as a table, which says the same to those who do not see it. */
export function Chart({ title, data, unit }: { title: string; data: ChartData; unit: Unit }) {
  const box = useRef<HTMLDivElement>(null);
  useLayoutEffect(() => {
    const element = box.current;
    if (!element) return;
    // A canvas knows no tokens: the colours are those of elements.
    const { color: text, borderTopColor: border } = getComputedStyle(element);
    const swatches = [...(element.parentElement?.querySelectorAll(".swatch") ?? [])];
    const colours = swatches.map((swatch) => getComputedStyle(swatch).backgroundColor);
    const axis = { stroke: text, grid: { stroke: border, width: 1 }, ticks: { stroke: border, width: 1 } };
    const chart = new uPlot(
      {
        width: element.clientWidth,
        height: HEIGHT,
        legend: { show: false },
        cursor: { show: false },
        axes: [
          axis,
          { ...axis, size: 80, values: (_, values) => values.map((value) => format(value, unit)) },
        ],
        series: [
          {},
          ...data.lines.map(({ name }, index) => ({
            label: name,
            stroke: colours[index] ?? text,
            width: 1.5,
          })),
        ],
      },
      [data.times, ...data.lines.map(({ values }) => values)],
      element,
    );
    const observer = new ResizeObserver(() => {
      chart.setSize({ width: element.clientWidth, height: HEIGHT });
    });
    observer.observe(element);
    return () => {
      observer.disconnect();
      chart.destroy();
    };
  }, [data, unit]);
  return (
    <div class="chart">
      <div ref={box} role="img" aria-label={`${title}; the last values are in the list`} />
      <ul class="plain small">
        {data.lines.map(({ name, last }, index) => (
          <li key={index} class="row">
            <span class={`swatch swatch-${index % COLOURS}`} aria-hidden="true" />
            <span class="wrap">{plain(name, 300)}</span> <b>{format(last, unit)}</b>
          </li>
        ))}
        {data.omitted > 0 && <li class="muted">and {data.omitted} more with smaller values</li>}
      </ul>
    </div>
  );
}
