import type { HealthState } from "../api/graph";
import { HEALTH_ORDER } from "../graph/rows";

/** A state in words, with a sign and a colour of its own. */
export function Health({ state, count }: { state: HealthState; count?: number }) {
  return (
    <span class={`health ${state}`}>
      {count === undefined ? "" : `${count} `}
      {state}
    </span>
  );
}

/** The numbers of objects by their health, the worst first. */
export function HealthCounts({ counts }: { counts: Partial<Record<string, number>> }) {
  const states = HEALTH_ORDER.toReversed().filter((state) => (counts[state] ?? 0) > 0);
  return (
    <span class="row small">
      {states.map((state) => (
        <Health key={state} state={state} count={counts[state] ?? 0} />
      ))}
    </span>
  );
}
