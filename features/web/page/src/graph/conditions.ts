/** The conditions of an object. Pure. */

import type { KubernetesObject } from "../api/kubernetes";

export interface Condition {
  type: string;
  status: string;
  reason: string;
  message: string;
  since: string | undefined;
}

/** The most conditions that are shown. */
const MAX_CONDITIONS = 100;

/** Returns the conditions in the status of an object. A custom resource may have anything there. */
export function conditionsOf({ status }: KubernetesObject): Condition[] {
  const list: unknown = status?.conditions;
  if (!Array.isArray(list)) return [];
  return list.slice(0, MAX_CONDITIONS).flatMap((entry: unknown) => {
    if (typeof entry !== "object" || entry === null) return [];
    const fields = entry as Record<string, unknown>;
    const text = (name: string) => (typeof fields[name] === "string" ? fields[name] : "");
    const since = text("lastTransitionTime") || undefined;
    return [
      { type: text("type"), status: text("status"), reason: text("reason"), message: text("message"), since },
    ];
  });
}
