/** A grid of which only the rows in sight are elements. All rows have the height `--row`. */

import type { ComponentChildren } from "preact";
import { useLayoutEffect, useRef, useState } from "preact/hooks";

/** The rows above and below the visible ones that are elements, too. */
const MARGIN = 8;

/** The properties of the element of a row. */
export interface RowProps {
  role: "row";
  style: { transform: string };
  tabIndex: number;
  "aria-rowindex": number;
  onFocus: () => void;
}

/** The height of a row in pixels, which is `--row`. */
function rowHeight(): number {
  return 2.25 * Number.parseFloat(getComputedStyle(document.documentElement).fontSize);
}

export function VirtualGrid<T>({
  role,
  label,
  head,
  items,
  idOf,
  current,
  onKey,
  children,
}: {
  role: "grid" | "treegrid";
  label: string;
  /** The cells of the head. */
  head: ComponentChildren;
  items: readonly T[];
  idOf: (item: T) => string;
  /** The item that is shown beside the grid. It becomes the active row, and comes into sight, wherever it was opened. */
  current: string | null;
  /** Returns the index of the row that a key selects, or whether the key has another effect. `page` is the number of rows in sight. */
  onKey: (index: number, key: string, page: number) => number | boolean;
  /** Returns the element of a row. */
  children: (item: T, props: RowProps) => ComponentChildren;
}) {
  const box = useRef<HTMLDivElement>(null);
  const [top, setTop] = useState(0);
  const [height, setHeight] = useState(600);
  const [active, setActive] = useState("");
  const wantsFocus = useRef(false);
  const row = rowHeight();
  const activeIndex = Math.max(
    0,
    items.findIndex((item) => idOf(item) === active),
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

  // Its row may come later than the grid, and moves when others change: it is brought into sight once.
  const revealed = useRef<string | null>(null);
  useLayoutEffect(() => {
    if (current === revealed.current) return;
    const index = current === null ? -1 : items.findIndex((item) => idOf(item) === current);
    if (current !== null && index < 0) return;
    revealed.current = current;
    if (index >= 0) show(index);
  });

  const select = (index: number) => {
    wantsFocus.current = true;
    show(index);
  };

  /** Makes a row the active one, and brings it into sight. */
  const show = (index: number) => {
    const chosen = items[index];
    const element = box.current;
    if (chosen === undefined || !element) return;
    setActive(idOf(chosen));
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
    // The head has buttons with keys of their own.
    if (event.target instanceof HTMLButtonElement) return;
    const effect = onKey(activeIndex, event.key, Math.max(1, Math.floor(height / row) - 2));
    if (effect === false) return;
    event.preventDefault();
    if (effect !== true) select(effect);
  };

  const first = Math.max(0, Math.floor(top / row) - MARGIN);
  const last = Math.min(items.length, Math.ceil((top + height) / row) + MARGIN);
  return (
    <div
      ref={box}
      class="tree"
      role={role}
      aria-label={label}
      aria-rowcount={items.length + 1}
      onScroll={(event) => {
        setTop(event.currentTarget.scrollTop);
      }}
      onKeyDown={onKeyDown}
    >
      <div role="rowgroup" class="tree-head">
        <div role="row" class="tree-row" aria-rowindex={1}>
          {head}
        </div>
      </div>
      <div role="rowgroup" class="tree-body" style={{ height: `${items.length * row}px` }}>
        {items.slice(first, last).map((item, offset) => {
          const index = first + offset;
          return children(item, {
            role: "row",
            style: { transform: `translateY(${index * row}px)` },
            tabIndex: index === activeIndex ? 0 : -1,
            "aria-rowindex": index + 2,
            onFocus: () => {
              setActive(idOf(item));
            },
          });
        })}
      </div>
    </div>
  );
}
