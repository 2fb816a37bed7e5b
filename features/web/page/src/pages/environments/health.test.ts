import { expect, it } from "vitest";
import type { HealthReport, HealthState } from "../../api/graph";
import type { Environment } from "../../api/kas";
import { addressOf, grouped, type PlaceHealth, summarize, unhealthy } from "./health";

const environment = (
  project: string,
  slug: string,
  tier = "other",
  group: string | null = null,
): Environment => ({
  id: 1,
  project,
  slug,
  tier,
  group,
  agents: [],
});

function place(health: HealthState | null, attention: HealthReport["attention"] = []): PlaceHealth {
  const report = health === null ? null : { health, counts: {}, attention };
  return { place: { agent: "a", namespace: "n", labels: {} }, report, missing: report ? "" : "away" };
}

const broken = (name: string, since: string) => ({
  ...{ uid: name, kind: "Pod", namespace: "n", name, message: "CrashLoopBackOff" },
  ...{ health: "degraded" as const, since },
});

it.each<[string, PlaceHealth[], ReturnType<typeof summarize>]>([
  ["no place", [], { health: "unknown", reason: "", since: undefined }],
  ["a healthy one", [place("healthy")], { health: "healthy", reason: "", since: undefined }],
  [
    "an agent that is away",
    [place("healthy"), place(null)],
    { health: "unknown", reason: "away", since: undefined },
  ],
  [
    "a broken one",
    [place(null), place("degraded", [broken("b", "2026-01-02"), broken("c", "2026-01-01")])],
    { health: "degraded", reason: "Pod/b: CrashLoopBackOff", since: "2026-01-01" },
  ],
  [
    "a workload that is progressing, of which a pod has crashed",
    [
      place("progressing", [
        { ...broken("web", "2026-01-03"), kind: "Deployment", health: "progressing" },
        broken("b", "2026-01-02"),
      ]),
    ],
    { health: "progressing", reason: "Pod/b: CrashLoopBackOff", since: "2026-01-03" },
  ],
])("health of %s", (_, places, expected) => {
  expect(summarize(places)).toEqual(expected);
});

it("environments are grouped by group or path, and sorted by tier", () => {
  const all = [
    environment("shop/web", "dev", "development"),
    environment("shop/web", "live", "production"),
    environment("shop/api", "live", "production", "platform"),
    environment("alone", "live", "unheard-of"),
  ].map((one) => ({ environment: one }));
  const names = grouped(all).map(({ name, environments }) => [
    name,
    ...environments.map((one) => one.environment.slug),
  ]);
  expect(names).toEqual([
    ["", "live"],
    ["platform", "live"],
    ["shop", "live", "dev"],
  ]);
});

it("what is not healthy is sorted by its health", () => {
  const all = [["healthy"], [null], ["degraded"], ["suspended"]] as (HealthState | null)[][];
  const list = all.map((states, index) => ({
    environment: environment("p", `${index}`),
    places: states.map((state) => place(state)),
  }));
  expect(unhealthy(list).map((one) => one.environment.slug)).toEqual(["2", "1"]);
});

it("the path of a project is one part of the address", () => {
  expect(addressOf(environment("shop/web", "live"))).toBe("/e/shop%2Fweb/live");
});
