/** The words for an event of the audit log of a cluster. All texts come from the agent, or from GitLab. */

import type { ClusterEvent } from "../../../api/cluster-audit";
import { safeLink } from "../../../text";

/** The digits of a commit that are shown. */
const SHORT = 8;

/** A fact about the origin of a request, which may be a page of GitLab. */
export interface Fact {
  text: string;
  link: string | null;
}

/** Returns the person or program that has sent a request. */
export function who({ request, sync, cluster_user }: ClusterEvent): string {
  if (request === undefined) return sync === undefined ? cluster_user.name : `manifests of ${sync.project}`;
  return request.job?.user ?? request.user ?? request.caller;
}

/** Returns the job, the environment, the commit and the merge request of a request, as far as they are known. */
export function origin({ request, deployment, sync }: ClusterEvent): Fact[] {
  const facts: Fact[] = [];
  const add = (text: string, url: string | undefined) => {
    facts.push({ text, link: safeLink(url ?? "") });
  };
  const job = request?.job;
  const project = job?.project ?? deployment?.project;
  if (job?.id !== undefined)
    add(`job ${job.id}${project === undefined ? "" : ` of ${project}`}`, deployment?.job_url);
  const environment = job?.environment ?? deployment?.environment;
  if (environment !== undefined) {
    const status = deployment === undefined ? "" : ` (${deployment.status})`;
    add(`for ${environment}${status}`, undefined);
  }
  const commit = job?.commit ?? deployment?.commit ?? sync?.commit;
  if (commit !== undefined) {
    const author = deployment?.author === undefined ? "" : ` by ${deployment.author}`;
    add(`commit ${commit.slice(0, SHORT)}${author}`, deployment?.commit_url);
  }
  if (deployment?.merge_request !== undefined)
    add(`!${deployment.merge_request}`, deployment.merge_request_url);
  return facts;
}

/** Returns the object or the path of a request, as `kas audit` writes it. */
export function target({ object, path }: ClusterEvent): string {
  if (object === undefined) return path ?? "";
  const { group = "", resource, subresource = "", namespace = "", name = "" } = object;
  const kind = `${resource}${group === "" ? "" : `.${group}`}${subresource === "" ? "" : `/${subresource}`}`;
  if (name === "") return namespace === "" ? kind : `${kind} in ${namespace}`;
  return `${kind} ${namespace === "" ? "" : `${namespace}/`}${name}`;
}

/** Returns the result of a request. */
export function result({ status, reason, stage }: ClusterEvent): string {
  const progress = { complete: "", started: "began", panic: "API server failed" }[stage];
  return [status, reason, progress].filter((part) => part !== undefined && part !== "").join(" ");
}
