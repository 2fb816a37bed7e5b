/** The actions of keys in the tree and in the list: those of the ARIA pattern for a treegrid, and `j` and `k` of vi. Pure. */

import type { Row } from "../../graph/rows";

export type TreeAction =
  { kind: "select"; index: number } | { kind: "toggle"; uid: string } | { kind: "open"; uid: string };

/** Returns the row to which a key leads from the row `index` of a list, or `null` if the key leads to none. */
export function moveInList(length: number, index: number, key: string, page: number): number | null {
  const targets: Partial<Record<string, number>> = {
    ArrowDown: index + 1,
    j: index + 1,
    ArrowUp: index - 1,
    k: index - 1,
    PageDown: index + page,
    PageUp: index - page,
    Home: 0,
    End: length - 1,
  };
  const target = targets[key];
  return target === undefined ? null : Math.min(Math.max(target, 0), length - 1);
}

function select(index: number): TreeAction {
  return { kind: "select", index };
}

/** Returns the action of a key on the row `index`, or `null` if the key has none. `page` is the number of rows in sight. */
export function move(rows: readonly Row[], index: number, key: string, page: number): TreeAction | null {
  const row = rows[index];
  if (!row) return null;
  const target = moveInList(rows.length, index, key, page);
  if (target !== null) return select(target);
  switch (key) {
    case "ArrowRight":
      if (row.children === 0) return null;
      return row.expanded ? select(index + 1) : { kind: "toggle", uid: row.node.uid };
    case "ArrowLeft":
      if (row.expanded) return { kind: "toggle", uid: row.node.uid };
      return row.level === 1
        ? null
        : select(rows.slice(0, index).findLastIndex(({ level }) => level < row.level));
    case "Enter":
    case " ":
      return { kind: "open", uid: row.node.uid };
    default:
      return null;
  }
}
