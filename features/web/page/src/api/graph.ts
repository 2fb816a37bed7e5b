/** The service `graph` of an agent. The types are generated from its OpenAPI file. */

import { getJson } from "./client";
import type { ObjectKey } from "./kubernetes";
import { agentPath } from "./paths";
import type { components } from "./graph-types";

type Schemas = components["schemas"];
export type Node = Schemas["Node"];
export type HealthState = Schemas["HealthState"];
export type GraphEvent = Schemas["GraphEvent"];
export type HealthReport = Schemas["HealthReport"];
export type Attention = Schemas["Attention"];
export type Warning = Schemas["Warning"];
export type ComponentList = Schemas["ComponentList"];
export type Component = Schemas["Component"];
export type FeatureNeed = Schemas["FeatureNeed"];
export type ApplicationList = Schemas["ApplicationList"];
export type Application = Schemas["Application"];
export type ApplicationDescriptor = Schemas["ApplicationDescriptor"];
export type ApplicationLink = Schemas["ApplicationLink"];
export type ResourceStatus = Schemas["ResourceStatus"];
export type GroupList = Schemas["GroupList"];

/** A part of a cluster: the objects of a namespace that have these labels. */
export interface Scope {
  namespace: string;
  labels: Record<string, string>;
}

/** Returns the parameters that select the objects of a part of a cluster, or of all of it. */
export function scopeQuery(scope: Scope | null): URLSearchParams {
  if (scope === null) return new URLSearchParams();
  const label = Object.entries(scope.labels).map(([name, value]) => `${name}=${value}`);
  const query = new URLSearchParams({ namespace: scope.namespace });
  if (label.length > 0) query.set("label", label.join());
  return query;
}

function graphPath(agent: string, path: string, scope: Scope | null): string {
  const query = scopeQuery(scope).toString();
  return agentPath(agent, `/graph/v1/${path}${query === "" ? "" : `?${query}`}`);
}

export function getHealth(agent: string, scope: Scope | null, signal?: AbortSignal): Promise<HealthReport> {
  return getJson<HealthReport>(graphPath(agent, "health", scope), signal);
}

/** Returns the ids of the groups of an object. */
export async function getGroups(agent: string, object: ObjectKey, signal: AbortSignal): Promise<string[]> {
  const { group, kind, namespace, name } = object;
  const query = new URLSearchParams({ kind: group === "" ? kind : `${kind}.${group}`, name });
  if (namespace !== "") query.set("namespace", namespace);
  const path = agentPath(agent, `/graph/v1/groups?${query.toString()}`);
  const { groups } = await getJson<GroupList>(path, signal);
  return groups.map(({ id }) => id);
}

export function getComponents(
  agent: string,
  scope: Scope | null,
  signal?: AbortSignal,
): Promise<ComponentList> {
  return getJson<ComponentList>(graphPath(agent, "components", scope), signal);
}

export function getApplications(
  agent: string,
  scope: Scope | null,
  signal?: AbortSignal,
): Promise<ApplicationList> {
  return getJson<ApplicationList>(graphPath(agent, "applications", scope), signal);
}
