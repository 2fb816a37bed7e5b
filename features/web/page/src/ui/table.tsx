import type { ComponentChildren } from "preact";
import { useLayoutEffect, useRef, useState } from "preact/hooks";

/** The attributes of a box that scrolls. Safari scrolls with the keyboard only what has the focus. */
const SCROLLS = { tabIndex: 0, role: "group", "aria-label": "Table that scrolls" } as const;

/**
 * A table whose rows are cards on a narrow screen. It scrolls in a box of its own if its words, which stay whole, are wider
 * than the window. `children` are the rows.
 */
export function Table({ columns, children }: { columns: readonly string[]; children: ComponentChildren }) {
  const box = useRef<HTMLDivElement>(null);
  const [isTooWide, setTooWide] = useState(false);
  useLayoutEffect(() => {
    const element = box.current;
    if (!element) return;
    const observer = new ResizeObserver(() => {
      setTooWide(element.scrollWidth > element.clientWidth);
    });
    // The rows change the width of the table, and the window that of the box.
    observer.observe(element);
    if (element.firstElementChild) observer.observe(element.firstElementChild);
    return () => {
      observer.disconnect();
    };
  }, []);
  return (
    <div ref={box} class="scroll" {...(isTooWide ? SCROLLS : {})}>
      <table class="cards">
        <thead>
          <tr>
            {columns.map((column) => (
              <th key={column} scope="col">
                {column}
              </th>
            ))}
          </tr>
        </thead>
        <tbody>{children}</tbody>
      </table>
    </div>
  );
}
