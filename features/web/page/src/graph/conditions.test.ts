import { expect, it } from "vitest";
import { conditionsOf } from "./conditions";

it("conditions are read, whatever the status is", () => {
  const ready = { type: "Ready", status: "True", reason: "Up", lastTransitionTime: "2026-01-01T00:00:00Z" };
  expect(conditionsOf({ status: { conditions: [ready, null, "x", { type: 7, status: ["y"] }] } })).toEqual([
    { type: "Ready", status: "True", reason: "Up", message: "", since: "2026-01-01T00:00:00Z" },
    { type: "", status: "", reason: "", message: "", since: undefined },
  ]);
  for (const conditions of [undefined, null, {}, "text", 7])
    expect(conditionsOf({ status: { conditions } })).toEqual([]);
  expect(conditionsOf({})).toEqual([]);
});
