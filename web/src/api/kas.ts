/** The API of kas itself for the page: the session, the agents and the environments. */

import { getJson, request } from "./client";

export interface Session {
  caller: string;
  expires: string;
}

export interface AgentInstance {
  id: string;
  version: string;
  pod_namespace?: string | null;
  pod_name?: string | null;
  kubernetes_version?: string | null;
  /** The time at which the oldest of its tunnels was opened. */
  since: string;
  tunnels: number;
}

export interface AgentReplica {
  replica: string;
  instances: AgentInstance[];
}

export interface Agent {
  id: number;
  name: string;
  state: string;
  /** The time at which the last tunnel ended, for agents that are away. */
  since?: string;
  replicas: AgentReplica[];
  services: string[];
}

export interface AgentList {
  replica: string;
  agents: Agent[];
  missing: string | null;
}

/** A place to which a project deploys: namespaces of agents that the caller may use. */
export interface Environment {
  id: number;
  project: string;
  slug: string;
  tier: string;
  group: string | null;
  agents: EnvironmentPlace[];
}

/** A namespace of an agent, and the labels that all objects of the environment have there. */
export interface EnvironmentPlace {
  agent: string;
  namespace: string;
  labels: Record<string, string>;
}

/** Returns the session, or `null` if nobody is logged in. */
export async function getSession(): Promise<Session | null> {
  const response = await request("/web/v1/session");
  return response.status === 204 ? null : ((await response.json()) as Session);
}

export async function logIn(token: string): Promise<void> {
  await request("/web/v1/session", { method: "POST", body: JSON.stringify({ token }) });
}

export async function logOut(): Promise<void> {
  await request("/web/v1/session", { method: "DELETE" });
}

export function getAgents(signal?: AbortSignal): Promise<AgentList> {
  return getJson<AgentList>("/web/v1/agents", signal);
}

export async function getEnvironments(signal?: AbortSignal): Promise<Environment[]> {
  const { environments } = await getJson<{ environments: Environment[] }>("/web/v1/environments", signal);
  return environments;
}
