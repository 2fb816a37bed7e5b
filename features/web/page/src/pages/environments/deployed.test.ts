import { expect, it } from "vitest";
import type { EnvironmentDeployment, LastDeployments } from "../../api/kas";
import { deployed, later } from "./deployed";

const COMMIT = "3f1c9a7e5d2b4c6a8e0f1d3b5a7c9e1f2a4b6c8d";

function deployment(
  job: number,
  status: string,
  more: Partial<EnvironmentDeployment> = {},
): EnvironmentDeployment {
  return {
    ...{ commit: COMMIT, username: "alice", job, status, ref: "main", author: null, pipeline: null },
    ...{ job_url: null, pipeline_url: null, commit_url: null, started: null, finished: null },
    ...more,
  };
}

function last(
  last: EnvironmentDeployment | null,
  last_successful: EnvironmentDeployment | null = null,
  missing: string | null = null,
): LastDeployments {
  return { source: "jobs", last, last_successful, missing };
}

it("the last successful deployment has its commit, its person and its end", () => {
  const urls = { commit_url: "https://gitlab.example.com/c", job_url: "https://gitlab.example.com/j" };
  const times = { started: "2026-01-01T00:00:00Z", finished: "2026-01-01T00:01:00Z" };
  expect(deployed(last(null, deployment(1, "success", { ...urls, ...times })))).toEqual({
    commit: "3f1c9a7e",
    link: "https://gitlab.example.com/c",
    by: "alice",
    time: "2026-01-01T00:01:00Z",
  });
  const bare = deployment(1, "success", { commit: null, username: null, job_url: "javascript:alert(1)" });
  expect(deployed(last(null, bare))).toEqual({ commit: "", link: null, by: "", time: null });
  expect(deployed(last(deployment(1, "failed")))).toBeNull();
});

it.each<[string, LastDeployments, string]>([
  ["none", last(null), ""],
  ["the successful one", last(deployment(1, "success"), deployment(1, "success")), ""],
  [
    "a running one",
    last(deployment(2, "running"), deployment(1, "success")),
    "a deployment of 3f1c9a7e is running",
  ],
  ["a failed one", last(deployment(2, "failed")), "the last deployment of 3f1c9a7e failed"],
  ["a canceled one", last(deployment(2, "canceled", { commit: null })), "the last deployment was canceled"],
  [
    "an unknown one",
    last(deployment(2, "later")),
    "the result of the last deployment of 3f1c9a7e is not known",
  ],
  ["an error", last(null, null, "Redis is away"), "the deployments are not known: Redis is away"],
])("the last deployment is %s", (_, deployments, expected) => {
  expect(later(deployments)).toBe(expected);
});
