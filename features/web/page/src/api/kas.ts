/** The API of kas itself for the page: the session, the agents and the environments. */

import { getJson, readJson, request } from "./client";
import { agentPath } from "./paths";

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
  /** The name in paths: that of the identity file, or the id of an agent of GitLab. */
  name: string;
  /** The project and the name of an agent of GitLab, which is unique in its project only. */
  title?: string;
  state: string;
  /** The time at which the last tunnel ended, for agents that are away. */
  since?: string;
  replicas: AgentReplica[];
  /** The services that the caller may use, each with the verbs. */
  rights: Rights;
}

/** The verbs that a caller may use, by service. */
export type Rights = Readonly<Record<string, readonly string[]>>;

export interface AgentList {
  /** The replica that serves the page. */
  replica: string;
  /** All live replicas. */
  replicas: string[];
  agents: Agent[];
  missing: string | null;
}

/** The list as kas sends it. A replica of the version before this page, as during an upgrade, sends services alone. */
export type SentAgentList = Omit<AgentList, "agents"> & {
  agents: (Omit<Agent, "rights"> & { rights?: Rights; services?: string[] })[];
};

/** Returns a list in which each agent has rights. Of those that are not known, kas decides when a command is sent. */
export function withRights(list: SentAgentList): AgentList {
  const agents = list.agents.map(({ rights, services = [], ...agent }) => ({
    ...agent,
    rights: rights ?? Object.fromEntries(services.map((service) => [service, VERBS])),
  }));
  return { ...list, agents };
}

const VERBS = ["use", "read", "sync", "suspend", "approve"];

/** What a replica knows about an agent beside its tunnels. */
export interface AgentDetails {
  /** The configuration, if the agent has a tunnel to this replica. */
  configuration: {
    version: string | null;
    read: string | null;
    warnings: string[];
    error: string | null;
    error_since: string | null;
  } | null;
  /** The kind of the reason for which kas cannot dial the agent. */
  dial_error: string | null;
  /** The last tunnel that the replica has refused in the last minutes. */
  refused: { reason: string; time: string } | null;
  /** The end of the last tunnel to the replica. */
  last_end: { reason: string; time: string } | null;
}

/** A place to which a project deploys: namespaces of agents that the caller may use. */
export interface Environment {
  id: number;
  project: string;
  slug: string;
  tier: string;
  group: string | null;
  agents: EnvironmentPlace[];
  /** A replica of an earlier version sends none. */
  deployments?: LastDeployments;
}

/** The last deployments to an environment by jobs that have used an agent of the caller. */
export interface LastDeployments {
  source: string;
  last: EnvironmentDeployment | null;
  last_successful: EnvironmentDeployment | null;
  /** The error because of which they are not known. */
  missing: string | null;
}

export interface EnvironmentDeployment {
  commit: string | null;
  username: string | null;
  job: number | null;
  /** `running`, `success`, `failed`, `canceled` or `unknown`. */
  status: string;
  ref: string | null;
  author: string | null;
  pipeline: number | null;
  job_url: string | null;
  pipeline_url: string | null;
  commit_url: string | null;
  /** A replica of an earlier version sends none. */
  merge_request?: number | null;
  merge_request_url?: string | null;
  started: string | null;
  finished: string | null;
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
  return response.status === 204 ? null : await readJson<Session>(response);
}

/** Returns the names of the issuers at which people can log in. */
export async function getIssuers(): Promise<string[]> {
  return (await getJson<{ issuers: string[] }>("/web/v1/issuers")).issuers;
}

/** Returns the address that begins a login at an issuer, which comes back to this page. */
export function loginAddress(issuer: string): string {
  const { pathname, search } = window.location;
  return `/web/v1/login?${new URLSearchParams({ issuer, page: pathname + search }).toString()}`;
}

export async function logIn(token: string): Promise<void> {
  await request("/web/v1/session", { method: "POST", body: JSON.stringify({ token }) });
}

export async function logOut(): Promise<void> {
  await request("/web/v1/session", { method: "DELETE" });
}

export async function getAgents(signal?: AbortSignal): Promise<AgentList> {
  return withRights(await getJson<SentAgentList>("/web/v1/agents", signal));
}

export function getAgentDetails(agent: string, signal?: AbortSignal): Promise<AgentDetails> {
  return getJson<AgentDetails>(`/web/v1${agentPath(agent)}`, signal);
}

export async function getEnvironments(signal?: AbortSignal): Promise<Environment[]> {
  const { environments } = await getJson<{ environments: Environment[] }>("/web/v1/environments", signal);
  return environments;
}
