/** The service `graph` of an agent. The types are generated from its OpenAPI file. */

import { getJson } from "./client";
import type { components } from "./graph-types";

type Schemas = components["schemas"];
export type Node = Schemas["Node"];
export type HealthState = Schemas["HealthState"];
export type GraphEvent = Schemas["GraphEvent"];
export type HealthReport = Schemas["HealthReport"];
export type Attention = Schemas["Attention"];
export type Warning = Schemas["Warning"];
export type ComponentList = Schemas["ComponentList"];
export type ResourceStatus = Schemas["ResourceStatus"];

function graphPath(agent: string, path: string): string {
  return `/agents/${encodeURIComponent(agent)}/graph/v1/${path}`;
}

export function getHealth(agent: string, signal?: AbortSignal): Promise<HealthReport> {
  return getJson<HealthReport>(graphPath(agent, "health"), signal);
}

export function getComponents(agent: string, signal?: AbortSignal): Promise<ComponentList> {
  return getJson<ComponentList>(graphPath(agent, "components"), signal);
}
