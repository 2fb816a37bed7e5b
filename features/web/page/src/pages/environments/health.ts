/** The health of environments, which the page asks of their agents with the rights of the reader. */

import { getHealth, type HealthReport, type HealthState } from "../../api/graph";
import {
  type Agent,
  type Environment,
  type EnvironmentPlace,
  getAgents,
  getEnvironments,
} from "../../api/kas";
import { HEALTH_ORDER, worse } from "../../graph/rows";
import { forEachAtOnce } from "../../ui/at-once";

/** The places that are asked at the same time. */
const AT_ONCE = 16;
/** The most places of one load. The health of the others is not asked. */
export const MAX_PLACES = 300;
/** The time in which an agent has to answer, in milliseconds. */
const TIMEOUT = 15_000;

/** A place, with the report of its agent or the reason why there is none. */
export interface PlaceHealth {
  place: EnvironmentPlace;
  report: HealthReport | null;
  missing: string;
}

export interface EnvironmentHealth {
  environment: Environment;
  places: PlaceHealth[];
}

/** The health of an environment in a line of a table. */
export interface Summary {
  health: HealthState;
  /** The worst object with its reason, or why there is no report. */
  reason: string;
  /** The time since which an object has this health. */
  since: string | undefined;
}

/** Returns the health of the worst place. A place without a report is unknown. */
export function summarize(places: readonly PlaceHealth[]): Summary {
  let worst: HealthState = places.length === 0 ? "unknown" : "healthy";
  for (const { report } of places) worst = worse(worst, report?.health ?? "unknown");
  const attention = places.flatMap(({ report }) => report?.attention ?? []);
  // The health of a place is that of whole workloads: a Deployment may be progressing while a pod of it has crashed.
  const rank = (health: HealthState) => HEALTH_ORDER.indexOf(health);
  const [first] = attention.toSorted((one, other) => rank(other.health) - rank(one.health));
  const reason = first === undefined ? "" : `${first.kind}/${first.name}: ${first.message}`;
  const same = attention.filter(({ health }) => health === worst);
  const since = same.map((object) => object.since).sort()[0];
  const missing = places.find(({ report }) => report === null)?.missing ?? "";
  return { health: worst, reason: worst === "unknown" && missing !== "" ? missing : reason, since };
}

/** The order of tiers, as GitLab knows them. */
const TIERS = ["production", "staging", "testing", "development", "other"];

export interface Group<T> {
  name: string;
  environments: T[];
}

/** Returns environments by their groups, and in a group by tier, project and slug. A project without a group is in that of its path. */
export function grouped<T extends { environment: Environment }>(all: readonly T[]): Group<T>[] {
  const groups = new Map<string, T[]>();
  for (const one of all) {
    const { group, project } = one.environment;
    const name = group ?? project.slice(0, Math.max(0, project.lastIndexOf("/")));
    groups.set(name, [...(groups.get(name) ?? []), one]);
  }
  const rank = ({ environment: { tier } }: T) => (TIERS.includes(tier) ? TIERS.indexOf(tier) : TIERS.length);
  const order = (one: T, other: T) =>
    rank(one) - rank(other) ||
    one.environment.project.localeCompare(other.environment.project) ||
    one.environment.slug.localeCompare(other.environment.slug);
  return [...groups]
    .map(([name, environments]) => ({ name, environments: environments.sort(order) }))
    .sort((one, other) => one.name.localeCompare(other.name));
}

/** Returns the environments that are not healthy, the worst first. */
export function unhealthy(all: readonly EnvironmentHealth[]): EnvironmentHealth[] {
  const rank = ({ places }: EnvironmentHealth) => HEALTH_ORDER.indexOf(summarize(places).health);
  return all
    .filter(({ places }) => !["healthy", "suspended"].includes(summarize(places).health))
    .sort((one, other) => rank(other) - rank(one));
}

/** Returns the address of the page of an environment. */
export function addressOf({ project, slug }: Environment): string {
  return `/e/${encodeURIComponent(project)}/${encodeURIComponent(slug)}`;
}

/** Loads the environments and asks their agents for the health. `onArrival` gets those that are known so far. */
export async function loadEnvironments(
  signal: AbortSignal,
  onArrival: (environments: EnvironmentHealth[]) => void,
): Promise<EnvironmentHealth[]> {
  const [list, { agents }] = await Promise.all([getEnvironments(signal), getAgents(signal)]);
  const all = list.map((environment) => ({
    environment,
    places: environment.agents.map((place): PlaceHealth => ({
      place,
      report: null,
      missing: "The agent has not answered yet.",
    })),
  }));
  onArrival(all);
  const places = all.flatMap(({ places }) => places);
  for (const late of places.slice(MAX_PLACES))
    late.missing = `The page asks for the health of ${MAX_PLACES} places only.`;
  await forEachAtOnce(places.slice(0, MAX_PLACES), AT_ONCE, async (one) => {
    const agent = agents.find(({ name }) => name === one.place.agent);
    const reason = reasonWithout(agent);
    if (reason !== "") {
      one.missing = reason;
      return;
    }
    try {
      const limit = AbortSignal.any([signal, AbortSignal.timeout(TIMEOUT)]);
      one.report = await getHealth(one.place.agent, one.place, limit);
      one.missing = "";
    } catch (error) {
      if (signal.aborted) throw error;
      one.missing = error instanceof Error ? error.message : String(error);
    }
    onArrival([...all]);
  });
  return all;
}

/** Returns the reason why an agent is not asked, or nothing if it is. */
function reasonWithout(agent: Agent | undefined): string {
  if (agent === undefined) return "The agent is not known.";
  if (!("graph" in agent.rights)) return "This caller may not use the service graph.";
  return agent.state === "connected" ? "" : "The agent is not connected.";
}
