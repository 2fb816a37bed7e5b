/** Tabs as ARIA describes them: the arrow keys choose another one, and Tab leads into its panel. */

import type { ComponentChildren } from "preact";
import { useId, useRef } from "preact/hooks";

/** Returns the tab that a key chooses, or `null` if the key chooses none. */
export function tabOf<N extends string>(names: readonly N[], current: N, key: string): N | null {
  const index = names.indexOf(current);
  const last = names.length - 1;
  switch (key) {
    case "ArrowRight":
      return names[index === last ? 0 : index + 1] ?? null;
    case "ArrowLeft":
      return names[index <= 0 ? last : index - 1] ?? null;
    case "Home":
      return names[0] ?? null;
    case "End":
      return names[last] ?? null;
    default:
      return null;
  }
}

export function Tabs<N extends string>({
  label,
  names,
  current,
  titleOf,
  onSelect,
  children,
}: {
  label: string;
  names: readonly N[];
  current: N;
  titleOf: (name: N) => string;
  onSelect: (name: N) => void;
  /** The panel of the current tab. */
  children: ComponentChildren;
}) {
  const id = useId();
  const list = useRef<HTMLDivElement>(null);
  return (
    <>
      <div
        ref={list}
        class="row"
        role="tablist"
        aria-label={label}
        onKeyDown={(event) => {
          if (event.ctrlKey || event.metaKey || event.altKey) return;
          const next = tabOf(names, current, event.key);
          if (next === null) return;
          event.preventDefault();
          onSelect(next);
          list.current?.querySelector<HTMLElement>(`#${CSS.escape(`${id}-${next}`)}`)?.focus();
        }}
      >
        {names.map((name) => (
          <button
            key={name}
            id={`${id}-${name}`}
            type="button"
            role="tab"
            aria-selected={name === current}
            aria-controls={`${id}-panel`}
            tabIndex={name === current ? 0 : -1}
            onClick={() => {
              onSelect(name);
            }}
          >
            {titleOf(name)}
          </button>
        ))}
      </div>
      <div role="tabpanel" id={`${id}-panel`} aria-labelledby={`${id}-${current}`} class="stack">
        {children}
      </div>
    </>
  );
}
