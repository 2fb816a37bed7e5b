import { useEffect, useState } from "preact/hooks";
import type { AgentList } from "../api/kas";
import { live } from "../api/live";
import type { Loaded } from "./loader";

/** Follows the list of the caller's agents while the component is shown. With an error, the last list stays. */
export function useAgents(): Loaded<AgentList> {
  const [state, setState] = useState<Loaded<AgentList>>({ value: null, error: null, since: null });
  useEffect(
    () =>
      live.followAgents({
        onList: (value) => {
          setState({ value, error: null, since: null });
        },
        onFailure: (error) => {
          // The list was up to date until now, also if it has not changed for hours.
          const now = new Date().toISOString();
          setState(({ value, since }) => ({ value, error, since: since ?? (value && now) }));
        },
      }),
    [],
  );
  return state;
}

/** Returns the services of an agent that the caller may use, or `null` while they are not known. */
export function useServices(name: string): readonly string[] | null {
  return useAgents().value?.agents.find((agent) => agent.name === name)?.services ?? null;
}

/** Returns whether something that needs a service is offered to the reader. */
export function mayUse(services: readonly string[] | null, service: string | undefined): boolean {
  return service === undefined || services === null || services.includes(service);
}
