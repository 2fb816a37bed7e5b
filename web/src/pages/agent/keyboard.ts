/** The actions of keys in the tree: those of the ARIA pattern for a treegrid, and `j` and `k` of vi. Pure. */

import type { Row } from "../../graph/rows";

export type TreeAction =
  { kind: "select"; index: number } | { kind: "toggle"; uid: string } | { kind: "open"; uid: string };

/** Returns the action of a key on the row `index`, or `null` if the key has none. `page` is the number of rows in sight. */
export function move(rows: readonly Row[], index: number, key: string, page: number): TreeAction | null {
  const row = rows[index];
  if (!row) return null;
  const select = (to: number): TreeAction => ({
    kind: "select",
    index: Math.min(Math.max(to, 0), rows.length - 1),
  });
  switch (key) {
    case "ArrowDown":
    case "j":
      return select(index + 1);
    case "ArrowUp":
    case "k":
      return select(index - 1);
    case "PageDown":
      return select(index + page);
    case "PageUp":
      return select(index - page);
    case "Home":
      return select(0);
    case "End":
      return select(rows.length - 1);
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
