/** The address of the page, and links that change it without a load. */

import { computed, signal } from "@preact/signals";

const current = signal(new URL(window.location.href));

/** The parts of the path, decoded. */
export const path = computed(() => current.value.pathname.split("/").filter(Boolean).map(decode));
export const query = computed(() => current.value.searchParams);

/** Shows another address. */
export function go(address: string, replace = false): void {
  const url = new URL(address, current.value);
  if (url.origin !== window.location.origin || url.href === current.value.href) return;
  const isNewPage = url.pathname !== current.value.pathname;
  window.history[replace ? "replaceState" : "pushState"](null, "", url.href);
  current.value = url;
  if (isNewPage) window.scrollTo(0, 0);
}

/** Changes parameters of the address: an empty value removes one. */
export function setQuery(changes: Record<string, string>, replace = true): void {
  const url = new URL(current.value);
  for (const [name, value] of Object.entries(changes)) {
    if (value === "") url.searchParams.delete(name);
    else url.searchParams.set(name, value);
  }
  go(url.href, replace);
}

/** Follows links of this page, and the buttons of the browser. */
export function startRouter(): void {
  window.addEventListener("popstate", () => {
    current.value = new URL(window.location.href);
  });
  document.addEventListener("click", (event) => {
    if (event.defaultPrevented || event.button !== 0) return;
    if (event.metaKey || event.ctrlKey || event.shiftKey || event.altKey) return;
    const link = event.target instanceof Element ? event.target.closest("a[href]") : null;
    if (!(link instanceof HTMLAnchorElement) || link.target !== "" || link.hasAttribute("download")) return;
    if (link.origin !== window.location.origin || link.hash !== "") return;
    event.preventDefault();
    go(link.href);
  });
}

function decode(part: string): string {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}
