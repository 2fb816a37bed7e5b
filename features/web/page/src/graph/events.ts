/** The events that a reader selects. Pure. */

import type { KubernetesEvent } from "../api/kubernetes";

export interface EventFilter {
  text: string;
  onlyWarnings: boolean;
  /** Only events about these objects, unless it is `null`. */
  uids: ReadonlySet<string> | null;
}

export function selectEvents(events: readonly KubernetesEvent[], filter: EventFilter): KubernetesEvent[] {
  const text = filter.text.toLowerCase();
  return events.filter(({ type, reason, message, involvedObject }) => {
    if (filter.onlyWarnings && type !== "Warning") return false;
    if (filter.uids !== null && !filter.uids.has(involvedObject?.uid ?? "")) return false;
    const fields = [reason, message, involvedObject?.kind, involvedObject?.name, involvedObject?.namespace];
    return text === "" || fields.some((field) => field?.toLowerCase().includes(text));
  });
}
