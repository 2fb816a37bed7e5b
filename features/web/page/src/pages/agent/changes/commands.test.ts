import { expect, it } from "vitest";
import type { Project } from "../../../api/gitops";
import { commandsOf, recoverySummary, verbOf } from "./commands";

const counts = {
  total: 3,
  applied: 0,
  unchanged: 3,
  pruned: 0,
  kept: 0,
  failed: 0,
  degraded: 0,
  progressing: 0,
};
const project: Project = {
  project: "shop",
  reference: "branch main",
  state: "synced",
  message: "",
  objects: counts,
};
const held = { code: "0a1b", count: 1, objects: [{ kind: "ConfigMap", name: "a" }] };
const recovery = { code: "5c1f", count: 12, left: 1, objects: [{ kind: "Service", name: "old" }] };

it.each<[Partial<Project>, string[]]>([
  [{ state: "synced" }, ["Sync", "Suspend"]],
  [{ state: "syncing" }, ["Sync", "Suspend"]],
  [{ state: "held", held }, ["Sync", "Suspend", "Approve"]],
  [{ state: "failed", held }, ["Sync", "Suspend"]],
  [{ state: "suspended", held }, ["Resume"]],
  [{ state: "suspended", settings: { suspend: true } }, []],
  [{ state: "orphaned" }, ["Prune"]],
  [{ state: "inventory-lost" }, ["Find objects"]],
  [{ state: "inventory-lost", held, recovery }, ["Recover", "Find objects again"]],
  [{ state: "synced", recovery }, ["Sync", "Suspend"]],
])("%o", (properties, names) => {
  expect(commandsOf({ ...project, ...properties }).map(({ name }) => name)).toEqual(names);
});

it("needs the verb that kas checks", () => {
  const commands = ["sync", "suspend", "resume", "approve", "recover", "prune"] as const;
  expect(commands.map(verbOf)).toEqual(["sync", "suspend", "suspend", "approve", "approve", "approve"]);
});

it("approves exactly what the reader has seen", () => {
  const sent = (properties: Partial<Project>) =>
    commandsOf({ ...project, ...properties }).map(({ command, code = "" }) => `${command} ${code}`);
  expect(sent({ state: "held", held })).toEqual(["sync ", "suspend ", "approve 0a1b"]);
  expect(sent({ state: "inventory-lost" })).toEqual(["recover "]);
  expect(sent({ state: "inventory-lost", recovery })).toEqual(["recover 5c1f", "recover "]);
});

it.each([
  [12, 1, "12 objects, 1 of them not in Git"],
  [1, 0, "1 object, all of them in Git"],
  [0, 0, "0 objects"],
])("sums up a recovery plan of %i objects", (count, left, expected) => {
  expect(recoverySummary({ ...recovery, count, left })).toBe(expected);
});
