/** The last deployments to an environment, in words. */

import type { EnvironmentDeployment, LastDeployments } from "../../api/kas";
import { safeLink } from "../../text";

/** The digits of a commit that are shown. */
const SHORT = 8;

/** The last successful deployment to an environment in a line. */
export interface DeployedCommit {
  /** The first digits of the commit, or nothing if it is not known. */
  commit: string;
  /** The address of the commit in GitLab, or that of the job. */
  link: string | null;
  /** The person who started it, or nothing. */
  by: string;
  time: string | null;
}

/** Returns the last successful deployment, if one is known. */
export function deployed({ last_successful }: LastDeployments): DeployedCommit | null {
  if (last_successful === null) return null;
  const { commit, commit_url, job_url, username, finished, started } = last_successful;
  return {
    commit: commit?.slice(0, SHORT) ?? "",
    link: safeLink(commit_url ?? job_url ?? ""),
    by: username ?? "",
    time: finished ?? started,
  };
}

/** Returns what the last deployment means for the reader, unless it is the last successful one. */
export function later({ last, last_successful, missing }: LastDeployments): string {
  if (missing !== null) return `the deployments are not known: ${missing}`;
  if (last === null || isSame(last, last_successful)) return "";
  const commit = last.commit === null ? "" : ` of ${last.commit.slice(0, SHORT)}`;
  const states: Record<string, string> = {
    running: `a deployment${commit} is running`,
    failed: `the last deployment${commit} failed`,
    canceled: `the last deployment${commit} was canceled`,
  };
  return states[last.status] ?? `the result of the last deployment${commit} is not known`;
}

function isSame(one: EnvironmentDeployment, other: EnvironmentDeployment | null): boolean {
  return (
    other !== null && one.job === other.job && one.status === other.status && one.commit === other.commit
  );
}
