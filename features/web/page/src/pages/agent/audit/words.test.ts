import { expect, it } from "vitest";
import type { ClusterEvent } from "../../../api/cluster-audit";
import { origin, result, target, who } from "./words";

const COMMIT = "3f1c9a7e5d2b4c6a8e0f1d3b5a7c9e1f2a4b6c8d";
const PAGE = "https://gitlab.example.com/shop/web/-";

function event(more: Partial<ClusterEvent>): ClusterEvent {
  return {
    ...{ position: "0a.1", through: "kas", time: "2026-01-31T12:00:00Z", stage: "complete", verb: "delete" },
    ...{ cluster_user: { name: "agentk" } },
    ...more,
  };
}

it("a job has its person, its environment, its commit and its merge request, with their pages", () => {
  const job = { id: "302", project: "shop/web", user: "alice" };
  const deployment = {
    ...{ project: "shop/web", environment: "live", status: "success", commit: COMMIT, author: "Bob" },
    ...{ merge_request: 12, merge_request_url: `${PAGE}/merge_requests/12` },
    ...{ commit_url: `${PAGE}/commit/${COMMIT}`, job_url: "javascript:alert(1)" },
  };
  const found = event({ request: { caller: "gitlab:ci_job:302", id: "r", job }, deployment });
  expect(who(found)).toBe("alice");
  expect(origin(found)).toEqual([
    { text: "job 302 of shop/web", link: null },
    { text: "for live (success)", link: null },
    { text: "commit 3f1c9a7e by Bob", link: `${PAGE}/commit/${COMMIT}` },
    { text: "!12", link: `${PAGE}/merge_requests/12` },
  ]);
});

it("a request of nobody that kas knows has the user of the cluster, and manifests have their commit", () => {
  expect([who(event({})), origin(event({}))]).toEqual(["agentk", []]);
  const sync = event({ through: "agentk", sync: { project: "shop/web", commit: COMMIT } });
  expect(who(sync)).toBe("manifests of shop/web");
  expect(origin(sync)).toEqual([{ text: "commit 3f1c9a7e", link: null }]);
  const user = event({ request: { caller: "page", user: "oidc:carol", id: "r" } });
  expect(who(user)).toBe("oidc:carol");
});

it("a request has an object or a path, and a result", () => {
  const pod = { resource: "pods", namespace: "shop", name: "web-1" };
  expect(target(event({ object: pod }))).toBe("pods shop/web-1");
  expect(target(event({ object: { ...pod, name: "" } }))).toBe("pods in shop");
  const scale = {
    group: "apps",
    resource: "deployments",
    subresource: "scale",
    namespace: "shop",
    name: "web",
  };
  expect(target(event({ object: scale }))).toBe("deployments.apps/scale shop/web");
  expect(target(event({ object: { resource: "nodes", name: "one" } }))).toBe("nodes one");
  expect(target(event({ path: "/version" }))).toBe("/version");
  expect(result(event({ status: 409, reason: "Conflict" }))).toBe("409 Conflict");
  expect(result(event({ status: 101, stage: "started" }))).toBe("101 began");
});
