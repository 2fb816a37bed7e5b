import { expect, it } from "vitest";
import { agentPath } from "./paths";

it("the name of an agent is one part of a path", () => {
  expect(agentPath("edge-berlin.1", "/graph/v1/tree")).toBe("/agents/edge-berlin.1/graph/v1/tree");
  expect(agentPath("../a?b#c%")).toBe("/agents/..%2Fa%3Fb%23c%25");
});
