/** The tree of objects: an ARIA treegrid of which only the rows in sight are elements. */

import { type ReadonlySignal, signal } from "@preact/signals";
import { useLayoutEffect, useRef, useState } from "preact/hooks";
import { isHistory, type Row } from "../../graph/rows";
import { query, setQuery } from "../../router";
import { plain } from "../../text";
import { Health } from "../../ui/health";
import { Age } from "../../ui/time";
import { move } from "./keyboard";

/** The rows that the reader has opened (true) or closed (false), by the UIDs of objects. */
export const toggled = signal<ReadonlyMap<string, boolean>>(new Map());

/** The rows above and below the visible ones that are elements, too. */
const MARGIN = 8;

function toggle({ node: { uid }, expanded }: Row): void {
  toggled.value = new Map(toggled.value).set(uid, !expanded);
}

function open(uid: string): void {
  setQuery({ o: uid }, query.value.has("o"));
}

/** The height of a row in pixels, which is `--row`. */
function rowHeight(): number {
  return 2.25 * Number.parseFloat(getComputedStyle(document.documentElement).fontSize);
}

export function Tree({ rows }: { rows: ReadonlySignal<Row[]> }) {
  const box = useRef<HTMLDivElement>(null);
  const [top, setTop] = useState(0);
  const [height, setHeight] = useState(600);
  const [active, setActive] = useState("");
  const wantsFocus = useRef(false);
  const row = rowHeight();
  const all = rows.value;
  const activeIndex = Math.max(
    0,
    all.findIndex(({ node }) => node.uid === active),
  );

  useLayoutEffect(() => {
    const element = box.current;
    if (!element) return;
    const observer = new ResizeObserver(() => {
      setHeight(element.clientHeight);
    });
    observer.observe(element);
    return () => {
      observer.disconnect();
    };
  }, []);

  // `useEffect` would run too early: just before the next rendering, when the elements are still those of the last one.
  useLayoutEffect(() => {
    if (!wantsFocus.current) return;
    wantsFocus.current = false;
    box.current?.querySelector<HTMLElement>('[role="row"][tabindex="0"]')?.focus({ preventScroll: true });
  });

  const select = (index: number) => {
    const chosen = all[index];
    const element = box.current;
    if (!chosen || !element) return;
    setActive(chosen.node.uid);
    wantsFocus.current = true;
    const from = index * row;
    if (from < element.scrollTop) element.scrollTop = from;
    // The head of the table covers one row.
    else if (from + 2 * row > element.scrollTop + element.clientHeight) {
      element.scrollTop = from + 2 * row - element.clientHeight;
    }
    setTop(element.scrollTop);
  };

  const onKeyDown = (event: KeyboardEvent) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const page = Math.max(1, Math.floor(height / row) - 2);
    const action = move(all, activeIndex, event.key, page);
    const current = all[activeIndex];
    if (action === null || !current) return;
    event.preventDefault();
    if (action.kind === "select") select(action.index);
    else if (action.kind === "toggle") toggle(current);
    else open(action.uid);
  };

  const first = Math.max(0, Math.floor(top / row) - MARGIN);
  const last = Math.min(all.length, Math.ceil((top + height) / row) + MARGIN);
  return (
    <div
      ref={box}
      class="tree"
      role="treegrid"
      aria-label="Objects"
      aria-rowcount={all.length + 1}
      onScroll={(event) => {
        setTop(event.currentTarget.scrollTop);
      }}
      onKeyDown={onKeyDown}
    >
      <div role="rowgroup" class="tree-head">
        <div role="row" class="tree-row" aria-rowindex={1}>
          <span role="columnheader">Object</span>
          <span role="columnheader">State</span>
          <span role="columnheader">Ready</span>
          <span role="columnheader">Health</span>
          <span role="columnheader">Age</span>
        </div>
      </div>
      <div role="rowgroup" class="tree-body" style={{ height: `${all.length * row}px` }}>
        {all.slice(first, last).map((item, offset) => (
          <TreeRow
            key={item.node.uid}
            item={item}
            index={first + offset}
            offset={(first + offset) * row}
            isActive={first + offset === activeIndex}
            onSelect={setActive}
          />
        ))}
      </div>
    </div>
  );
}

function TreeRow({
  item,
  index,
  offset,
  isActive,
  onSelect,
}: {
  item: Row;
  index: number;
  offset: number;
  isActive: boolean;
  onSelect: (uid: string) => void;
}) {
  const { node, level, expanded, children, position, siblings, worst } = item;
  const indent = `${(Math.min(level, 12) - 1) * 1.25}rem`;
  return (
    <div
      role="row"
      class={`tree-row${isHistory(node) ? " history" : ""}`}
      style={{ transform: `translateY(${offset}px)` }}
      tabIndex={isActive ? 0 : -1}
      aria-rowindex={index + 2}
      aria-level={level}
      aria-posinset={position}
      aria-setsize={siblings}
      aria-expanded={children > 0 ? expanded : undefined}
      aria-selected={query.value.get("o") === node.uid}
      onFocus={() => {
        onSelect(node.uid);
      }}
      onClick={() => {
        onSelect(node.uid);
        open(node.uid);
      }}
    >
      <span role="gridcell" class="tree-name" style={{ paddingLeft: indent }}>
        <span
          class={`twisty${children === 0 ? " leaf" : expanded ? " open" : ""}`}
          aria-hidden="true"
          onClick={(event) => {
            if (children === 0) return;
            event.stopPropagation();
            toggle(item);
          }}
        />
        <span class="muted">{plain(node.kind, 64)}</span> <b>{plain(node.name, 253)}</b>
        {level === 1 && node.namespace !== undefined && (
          <span class="small muted"> {plain(node.namespace, 64)}</span>
        )}
      </span>
      <span role="gridcell" title={plain(node.message ?? "", 512)}>
        {plain(node.deleted === undefined ? (node.status ?? "") : "Terminating", 128)}
        {(node.restarts ?? 0) > 0 && <span class="small muted"> ↻{node.restarts}</span>}
      </span>
      <span role="gridcell">{node.ready != null && `${node.ready.ready}/${node.ready.desired}`}</span>
      <span role="gridcell">
        <Health state={node.health} />
        {!expanded && worst !== node.health && (
          <span class="small muted" title="The worst object below it">
            {" "}
            <Health state={worst} />
          </span>
        )}
      </span>
      <span role="gridcell">
        <Age time={node.created} />
      </span>
    </div>
  );
}
