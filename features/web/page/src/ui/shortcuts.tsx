/** Keys that work everywhere on the page, and the dialog that explains them. */

import { signal } from "@preact/signals";
import { useEffect, useRef } from "preact/hooks";

const STORED = "kas.shortcuts";

/** People who use speech input switch single keys off (WCAG 2.1.4). */
const areOn = signal(window.localStorage.getItem(STORED) !== "off");

/** Calls `action` when the key is pressed outside a field. */
export function useShortcut(key: string, action: () => void): void {
  const latest = useRef(action);
  latest.current = action;
  useEffect(() => {
    const listener = (event: KeyboardEvent) => {
      if (event.key !== key || event.defaultPrevented || event.ctrlKey || event.metaKey || event.altKey)
        return;
      // An open dialog has the keys.
      if (document.querySelector("dialog[open]")) return;
      const isCharacter = key.length === 1;
      if (isCharacter && (!areOn.value || isField(event.target))) return;
      event.preventDefault();
      latest.current();
    };
    document.addEventListener("keydown", listener);
    return () => {
      document.removeEventListener("keydown", listener);
    };
  }, [key]);
}

function isField(target: EventTarget | null): boolean {
  return target instanceof HTMLElement && target.matches("input, select, textarea");
}

const KEYS = [
  ["/", "Search"],
  ["?", "Show these keys"],
  ["↓ or j, ↑ or k", "Next or previous object"],
  ["→, ←", "Open or close an object of the tree; go to its first child or to its owner"],
  ["Home, End, Page ↑, Page ↓", "Go far"],
  ["Enter", "Show the object"],
  ["Esc", "Close the object"],
] as const;

export function ShortcutHelp() {
  const dialog = useRef<HTMLDialogElement>(null);
  const show = () => {
    if (dialog.current?.open === false) dialog.current.showModal();
  };
  useShortcut("?", show);
  return (
    <>
      <button type="button" aria-label="Keys" title="Keys (?)" onClick={show}>
        ?
      </button>
      <dialog ref={dialog} aria-label="Keys">
        <form method="dialog" class="stack">
          <h2>Keys</h2>
          <dl class="facts">
            {KEYS.map(([key, meaning]) => (
              <>
                <dt>
                  <kbd>{key}</kbd>
                </dt>
                <dd>{meaning}</dd>
              </>
            ))}
          </dl>
          <label>
            <input
              type="checkbox"
              checked={areOn.value}
              onChange={(event) => {
                areOn.value = event.currentTarget.checked;
                window.localStorage.setItem(STORED, areOn.value ? "on" : "off");
              }}
            />{" "}
            <kbd>/</kbd> and <kbd>?</kbd> work everywhere
          </label>
          <button type="submit">Close</button>
        </form>
      </dialog>
    </>
  );
}
