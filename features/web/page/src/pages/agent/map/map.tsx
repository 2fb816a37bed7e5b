/** The map: how requests reach the pods of a cluster, and the storage of the pods. */

import { useMemo, useState } from "preact/hooks";
import { BUDGET, layoutMap, type MapItem, type MapLayout, type MapLine } from "../../../graph/map";
import { query } from "../../../router";
import { capitalized, plain } from "../../../text";
import { Health } from "../../../ui/health";
import { Notice } from "../../../ui/notice";
import type { ViewProps } from "../agent";
import { NamespaceSelect } from "../namespaces";
import "./map.css";

/** The sizes of the drawing in pixels. `map.css` has the size of an item, too. */
const SIZE = { width: 208, height: 48, columnGap: 72, rowGap: 12, head: 32 };

export function ObjectMap({ scope, graph }: ViewProps) {
  const namespace = scope === null ? (query.value.get("namespace") ?? "") : "";
  const layout = useMemo(() => layoutMap(graph.nodes.values(), namespace), [graph.nodes, namespace]);
  return (
    <>
      {scope === null && (
        <div class="row">
          <NamespaceSelect nodes={graph.nodes} />
        </div>
      )}
      <LeftOut layout={layout} />
      {!graph.complete && <p class="muted">Loading the objects…</p>}
      {graph.complete && layout.items.length === 0 && (
        <Notice>There is no route, Service, workload, pod or volume that this caller may see here.</Notice>
      )}
      {layout.items.length > 0 && <Drawing layout={layout} />}
    </>
  );
}

/** Returns the names of kinds with their numbers. */
function LeftOut({ layout: { leftOut } }: { layout: MapLayout }) {
  if (leftOut.size === 0) return null;
  const kinds = [...leftOut].sort(([, one], [, other]) => other - one);
  return (
    <Notice>
      The map has the {BUDGET} objects that need attention most, and their neighbours. Not shown:{" "}
      {kinds.map(([kind, count]) => `${count} ${plain(kind, 64)}`).join(", ")}. A namespace shows fewer
      objects; the views <b>Tree</b> and <b>List</b> have all.
    </Notice>
  );
}

function Drawing({ layout: { columns, items, lines } }: { layout: MapLayout }) {
  const [active, setActive] = useState("");
  const x = (column: MapItem["column"]) => columns.indexOf(column) * (SIZE.width + SIZE.columnGap);
  const y = (row: number) => SIZE.head + row * (SIZE.height + SIZE.rowGap);
  const most = Math.max(...items.map(({ row }) => row));
  const width = columns.length * (SIZE.width + SIZE.columnGap) - SIZE.columnGap;
  const height = y(most + 1);
  const positions = new Map(items.map((item) => [item.uid, { x: x(item.column), y: y(item.row) }]));
  return (
    <div class="map" role="region" aria-label="Map">
      <div class="map-canvas" style={{ width: `${width}px`, height: `${height}px` }}>
        <svg aria-hidden="true" width={width} height={height}>
          {lines.map((line) => (
            <path
              key={`${line.from}/${line.to}`}
              class={active === line.from || active === line.to ? "active" : ""}
              d={curve(line, positions)}
            />
          ))}
        </svg>
        {columns.map((column) => (
          <section key={column} aria-label={capitalized(column)}>
            <h2 style={{ transform: `translate(${x(column)}px, 0)` }}>{capitalized(column)}</h2>
            <ul class="plain">
              {items
                .filter((item) => item.column === column)
                .map((item) => (
                  <li
                    key={item.uid}
                    style={{ transform: `translate(${x(column)}px, ${y(item.row)}px)` }}
                    onMouseEnter={() => {
                      setActive(item.uid);
                    }}
                    onMouseLeave={() => {
                      setActive("");
                    }}
                    onFocusCapture={() => {
                      setActive(item.uid);
                    }}
                  >
                    <Item item={item} />
                  </li>
                ))}
            </ul>
          </section>
        ))}
      </div>
    </div>
  );
}

function Item({ item: { uid, kind, namespace, name, health, count } }: { item: MapItem }) {
  const parameters = new URLSearchParams(query.value);
  parameters.set("o", uid);
  parameters.delete("tab");
  const isChosen = query.value.get("o") === uid;
  return (
    <a
      class={`map-item ${health}`}
      href={`?${parameters.toString()}`}
      aria-current={isChosen ? "true" : undefined}
      title={plain(`${kind} ${namespace === "" ? "" : `${namespace}/`}${name}`, 600)}
    >
      <span class="row spread nowrap small">
        <span class="muted">
          {plain(kind, 64)}
          {count > 1 && <b> ×{count}</b>}
        </span>
        <Health state={health} />
      </span>
      <b>{plain(name, 253)}</b>
    </a>
  );
}

/** Returns the path of a line from the right side of an item to the left side of another one. */
function curve({ from, to }: MapLine, positions: ReadonlyMap<string, { x: number; y: number }>): string {
  const begin = positions.get(from);
  const end = positions.get(to);
  if (!begin || !end) return "";
  const [x1, y1] = [begin.x + SIZE.width, begin.y + SIZE.height / 2];
  const [x2, y2] = [end.x, end.y + SIZE.height / 2];
  const bend = SIZE.columnGap / 2;
  return `M${x1},${y1} C${x1 + bend},${y1} ${x2 - bend},${y2} ${x2},${y2}`;
}
