import { expect, it } from "vitest";
import { parseVersion } from "./gitops";

it("names a branch, a tag or a commit", () => {
  const commit = "a1".repeat(20);
  for (const [text, ref] of [
    ["main", { branch: "main" }],
    ["feature/tags", { branch: "feature/tags" }],
    ["refs/heads/main", { branch: "main" }],
    ["tags/v1", { tag: "v1" }],
    ["refs/tags/v1", { tag: "v1" }],
    [commit, { commit }],
  ] as const) {
    expect(parseVersion(text, "")).toEqual({ ref });
  }
  expect(parseVersion("", "")).toEqual({});
  expect(parseVersion("", "prod")).toEqual({ directory: "prod" });
});
