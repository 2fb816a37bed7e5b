import { expect, it } from "vitest";
import { withRights } from "../api/kas";
import { may, mayUse, rightsText } from "./agents";

const rights = { gitops: ["read", "sync"], graph: ["read"], kubernetes: ["use"] };

it("offers what the caller may do, and everything while that is not known", () => {
  expect(mayUse(rights, "graph")).toBe(true);
  expect(mayUse(rights, undefined)).toBe(true);
  expect(mayUse(rights, "prometheus")).toBe(false);
  expect(mayUse(null, "prometheus")).toBe(true);
  expect(may(rights, "gitops", "sync")).toBe(true);
  expect(may(rights, "gitops", "approve")).toBe(false);
  expect(may(rights, "alerts", "read")).toBe(false);
  expect(may(null, "gitops", "approve")).toBe(true);
});

it("names the verbs of gitops, which has several ones", () => {
  expect(rightsText(rights)).toBe("gitops (read, sync), graph, kubernetes");
  expect(rightsText({})).toBe("");
});

it("offers all commands of the services of an older replica", () => {
  const agent = { id: 1, name: "prod", state: "connected", replicas: [], services: ["gitops"] };
  const list = withRights({ replica: "a", replicas: ["a"], missing: null, agents: [agent] });
  const [listed] = list.agents;
  expect(may(listed?.rights ?? null, "gitops", "approve")).toBe(true);
  expect(mayUse(listed?.rights ?? null, "graph")).toBe(false);
});
