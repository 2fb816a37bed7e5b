/** The recent lines of the audit log and the recent requests, of all replicas of kas. */

import { getJson } from "./client";

/** A line of the audit log. docs/audit.md has all fields. */
export interface AuditLine {
  time: string;
  events: string[];
  request_id: string | null;
  replica: string;
  client: string | null;
  caller: string | null;
  user: string | null;
  agent: string | null;
  agent_id: number | null;
  service: string | null;
  verb: string | null;
  method: string | null;
  path: string | null;
  decision: string;
  reason: string | null;
  message: string | null;
  status: number | null;
  impersonated_user: string | null;
  duration_ms: number | null;
  left_out: number | null;
}

/** A replica whose entries are missing. */
export interface MissingReplica {
  replica: string;
  error: string;
}

export interface AuditPage {
  lines: AuditLine[];
  has_more: boolean;
  enabled: boolean;
  /** The reader sees the lines of all callers. */
  auditor: boolean;
  replicas: { replica: string; oldest: string | null }[];
  missing: MissingReplica[];
}

export interface RequestTunnel {
  id: string;
  instance: string;
  version: string;
  pod_namespace: string | null;
  pod_name: string | null;
}

export interface RequestTiming {
  queue_ms: number;
  tunnel_ms: number;
  upstream_ms: number;
}

/** A request, with the way that it has taken. */
export interface FoundRequest {
  time: string;
  caller: string;
  user: string | null;
  agent_id: number | null;
  agent: string | null;
  service: string | null;
  method: string;
  status: number;
  reason: string | null;
  /** The replica that has received it. */
  replica: string;
  /** The replica that held the tunnel. */
  holder: string | null;
  tunnel: RequestTunnel | null;
  timing: RequestTiming | null;
}

export interface FoundRequests {
  replica: string;
  requests: FoundRequest[];
  /** The number of requests that each replica keeps. */
  kept: number;
  missing: MissingReplica[];
}

export function getAudit(query: URLSearchParams, signal?: AbortSignal): Promise<AuditPage> {
  return getJson<AuditPage>(`/web/v1/audit?${query.toString()}`, signal);
}

export function findRequest(id: string, signal?: AbortSignal): Promise<FoundRequests> {
  return getJson<FoundRequests>(`/web/v1/requests/${encodeURIComponent(id)}`, signal);
}

/** Returns the address of the page with the path of a request. */
export function requestAddress(id: string): string {
  return `/routing?request=${encodeURIComponent(id)}`;
}
