/** The flat list of objects: an ARIA grid that is sorted by its columns. */

import type { ReadonlySignal } from "@preact/signals";
import type { Node } from "../../api/graph";
import {
  type Column,
  COLUMNS,
  DEFAULT_SORTING,
  parseSorting,
  reasonOf,
  type Sorting,
  sortingText,
} from "../../graph/list";
import { query, setQuery } from "../../router";
import { capitalized, plain } from "../../text";
import { Health } from "../../ui/health";
import { Age } from "../../ui/time";
import { type RowProps, VirtualGrid } from "../../ui/virtual-grid";
import { moveInList } from "./keyboard";
import { openObject } from "./tree";

export function List({ nodes }: { nodes: ReadonlySignal<Node[]> }) {
  const all = nodes.value;
  const sorting = parseSorting(query.value.get("sort"));
  const onKey = (index: number, key: string, page: number) => {
    const current = all[index];
    if (!current) return false;
    if (key === "Enter" || key === " ") {
      openObject(current.uid);
      return true;
    }
    return moveInList(all.length, index, key, page) ?? false;
  };
  return (
    <div class="list">
      <VirtualGrid
        role="grid"
        label="Objects"
        head={COLUMNS.map((column) => (
          <ColumnHead key={column} column={column} sorting={sorting} />
        ))}
        items={all}
        idOf={({ uid }) => uid}
        current={query.value.get("o")}
        onKey={onKey}
      >
        {(node, props) => <ListRow key={node.uid} node={node} row={props} />}
      </VirtualGrid>
    </div>
  );
}

function ColumnHead({ column, sorting }: { column: Column; sorting: Sorting }) {
  const isSorted = column === sorting.column;
  const direction = sorting.descending ? "descending" : "ascending";
  // Another click on the column turns the order.
  const next: Sorting = { column, descending: isSorted ? !sorting.descending : column === "health" };
  return (
    <span role="columnheader" aria-sort={isSorted ? direction : "none"}>
      <button
        type="button"
        class="plain"
        onClick={() => {
          const text = sortingText(next);
          setQuery({ sort: text === sortingText(DEFAULT_SORTING) ? "" : text });
        }}
      >
        {capitalized(column)}
        <span aria-hidden="true">{isSorted ? (sorting.descending ? " ▾" : " ▴") : ""}</span>
      </button>
    </span>
  );
}

function ListRow({ node, row }: { node: Node; row: RowProps }) {
  const reason = plain(reasonOf(node), 512);
  return (
    <div
      {...row}
      class="tree-row"
      aria-selected={query.value.get("o") === node.uid}
      onClick={() => {
        row.onFocus();
        openObject(node.uid);
      }}
    >
      <span role="gridcell" class="muted">
        {plain(node.kind, 64)}
      </span>
      <span role="gridcell">{plain(node.namespace ?? "", 64)}</span>
      <span role="gridcell" title={plain(node.name, 253)}>
        <b>{plain(node.name, 253)}</b>
      </span>
      <span role="gridcell">
        <Health state={node.health} />
      </span>
      <span role="gridcell">
        <Age time={node.created} />
      </span>
      <span role="gridcell" title={reason}>
        {reason}
      </span>
    </div>
  );
}
