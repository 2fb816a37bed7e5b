/** The tree of objects: an ARIA treegrid. */

import { type ReadonlySignal, signal } from "@preact/signals";
import { isHistory, type Row } from "../../graph/rows";
import { query, setQuery } from "../../router";
import { plain } from "../../text";
import { Health } from "../../ui/health";
import { Age } from "../../ui/time";
import { type RowProps, VirtualGrid } from "../../ui/virtual-grid";
import { move } from "./keyboard";

/** The rows that the reader has opened (true) or closed (false), by the UIDs of objects. */
export const toggled = signal<ReadonlyMap<string, boolean>>(new Map());

function toggle({ node: { uid }, expanded }: Row): void {
  toggled.value = new Map(toggled.value).set(uid, !expanded);
}

/** Shows an object beside the view. */
export function openObject(uid: string): void {
  setQuery({ o: uid }, query.value.has("o"));
}

export function Tree({ rows }: { rows: ReadonlySignal<Row[]> }) {
  const all = rows.value;
  const onKey = (index: number, key: string, page: number) => {
    const action = move(all, index, key, page);
    const current = all[index];
    if (action === null || !current) return false;
    if (action.kind === "select") return action.index;
    if (action.kind === "toggle") toggle(current);
    else openObject(action.uid);
    return true;
  };
  const head = ["Object", "State", "Ready", "Health", "Age"].map((title) => (
    <span key={title} role="columnheader">
      {title}
    </span>
  ));
  return (
    <VirtualGrid
      role="treegrid"
      label="Objects"
      head={head}
      items={all}
      idOf={({ node }) => node.uid}
      current={query.value.get("o")}
      onKey={onKey}
    >
      {(item, props) => <TreeRow key={item.node.uid} item={item} row={props} />}
    </VirtualGrid>
  );
}

function TreeRow({ item, row }: { item: Row; row: RowProps }) {
  const { node, level, expanded, children, position, siblings, worst } = item;
  const indent = `${(Math.min(level, 12) - 1) * 1.25}rem`;
  return (
    <div
      {...row}
      class={`tree-row${isHistory(node) ? " history" : ""}`}
      aria-level={level}
      aria-posinset={position}
      aria-setsize={siblings}
      aria-expanded={children > 0 ? expanded : undefined}
      aria-selected={query.value.get("o") === node.uid}
      onClick={() => {
        row.onFocus();
        openObject(node.uid);
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
