import { useEffect, useState } from "preact/hooks";
import type { Agent, AgentList, Rights } from "../api/kas";
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

/** Returns an agent of the list, or nothing while it is not known. */
export function useAgent(name: string): Agent | undefined {
  return useAgents().value?.agents.find((agent) => agent.name === name);
}

/** Returns the rights of the caller for an agent, or `null` while they are not known. */
export function useRights(name: string): Rights | null {
  return useAgent(name)?.rights ?? null;
}

/** Returns whether something that needs a service is offered to the reader. */
export function mayUse(rights: Rights | null, service: string | undefined): boolean {
  return service === undefined || rights === null || service in rights;
}

/** Returns whether something that needs a verb of a service is offered to the reader. */
export function may(rights: Rights | null, service: string, verb: string): boolean {
  return rights === null || (rights[service]?.includes(verb) ?? false);
}

/** Returns the name of an agent for people. */
export function titleOf({ title, name }: Agent): string {
  return title ?? name;
}

/** Returns the services of rights for people, with the verbs of those that have several ones. */
export function rightsText(rights: Rights): string {
  const services = Object.entries(rights).map(([service, verbs]) =>
    service === "gitops" ? `gitops (${verbs.join(", ")})` : service,
  );
  return services.join(", ");
}
