/** The audit log of a cluster, joined with the requests of callers. docs/cluster-audit.md has all fields. */

import { RequestFailure, request, requestIdOf } from "./client";
import { lines } from "./lines";
import { agentPath } from "./paths";

export interface ClusterUser {
  name: string;
}

export interface AuditObject {
  group?: string;
  resource: string;
  subresource?: string;
  namespace?: string;
  name?: string;
}

/** A CI job, as GitLab or the issuer of its token describes it. */
export interface AuditJob {
  id?: string;
  project?: string;
  project_id?: string;
  user?: string;
  environment?: string;
  commit?: string;
}

/** The deployment of a job, as kas has recorded it. */
export interface AuditDeployment {
  project?: string;
  environment: string;
  status: string;
  commit?: string;
  author?: string;
  ref?: string;
  merge_request?: number;
  merge_request_url?: string;
  commit_url?: string;
  job_url?: string;
}

export interface ClusterEvent {
  position: string;
  through: "kas" | "agentk" | "direct" | "unknown";
  request?: { caller: string; user?: string; id: string; job?: AuditJob };
  deployment?: AuditDeployment;
  sync?: { project: string; commit: string };
  time: string;
  stage: "complete" | "started" | "panic";
  verb: string;
  object?: AuditObject;
  path?: string;
  dry_run?: boolean;
  cluster_user: ClusterUser;
  impersonated_user?: ClusterUser;
  status?: number;
  reason?: string;
  decision_reason?: string;
}

type Line =
  | ({ type: "event" } & ClusterEvent)
  | { type: "gap"; position: string }
  | { type: "end"; position: string; has_more: boolean };

export interface EventPage {
  /** The last events, the newest first. */
  events: ClusterEvent[];
  /** The number of events that the parameters select. */
  selected: number;
  /** There are later events that were not read. */
  hasMore: boolean;
  /** Events were removed before they were read. */
  hasGap: boolean;
}

/** The most events that agentk reads for a response. kas selects some of them. */
const LIMIT = 10_000;
/** The most responses that are read, and the time after which no further one is asked for, in milliseconds. */
const RESPONSES = 10;
const TIME = 10_000;

/** Returns the last `shown` events that the parameters select, of the first 100,000. */
export async function getClusterEvents(
  agent: string,
  parameters: URLSearchParams,
  shown: number,
  signal: AbortSignal,
): Promise<EventPage> {
  const page: EventPage = { events: [], selected: 0, hasMore: true, hasGap: false };
  const query = new URLSearchParams(parameters);
  query.set("limit", String(LIMIT));
  const end = performance.now() + TIME;
  for (let count = 0; page.hasMore && count < RESPONSES && performance.now() < end; count += 1) {
    const path = agentPath(agent, `/audit/v1/events?${query.toString()}`);
    query.set("position", await readResponse(await request(path, { signal }), page, shown));
  }
  page.events = page.events.slice(-shown).toReversed();
  return page;
}

/** Adds the events of a response. Returns the position after them. */
async function readResponse(response: Response, page: EventPage, shown: number): Promise<string> {
  for await (const text of lines(response)) {
    const line = JSON.parse(text) as Line;
    if (line.type === "end") {
      page.hasMore = line.has_more;
      return line.position;
    }
    if (line.type === "gap") page.hasGap = true;
    if (line.type !== "event") continue;
    page.selected += 1;
    page.events.push(line);
    if (page.events.length >= 2 * shown) page.events.splice(0, shown);
  }
  const what = "the audit log ended before its last line";
  throw new RequestFailure(what, response.status, null, requestIdOf(response));
}
