import { describe, expect, it } from "vitest";
import {
  age,
  decodeSecret,
  hiddenHost,
  kubectlCommand,
  plain,
  safeLink,
  shellArgument,
  pieces,
} from "./text";

describe("plain", () => {
  it("shows what would hide or reorder text", () => {
    expect(plain("a\u202egpj.exe")).toBe("a⟨U+202E⟩gpj.exe");
    expect(plain("\u001b[2Jx\u0000")).toBe("⟨U+001B⟩[2Jx⟨U+0000⟩");
    expect(plain("zero\u200bwidth\u2066x")).toBe("zero⟨U+200B⟩width⟨U+2066⟩x");
  });
  it("keeps lines, tabs and the letters of all languages", () => {
    expect(plain("a\tb\nशैली ✔ 漢字")).toBe("a\tb\nशैली ✔ 漢字");
  });
  it("cuts", () => {
    expect(plain("x".repeat(10), 4)).toBe("xxxx…");
  });
});

it.each([
  ["Runbook", "example.com"],
  ["example.com", null],
  ["https://example.com/another", null],
  ["https://bank.example.org", "example.com"],
  ["https://bank.example.org https://example.com", "example.com"],
  ["https://example.com.evil.org", "example.com"],
])("the host beside a link with the text %j", (text, expected) => {
  expect(hiddenHost(text, "https://example.com/a")).toBe(expected);
});

describe("safeLink", () => {
  it.each([
    "javascript:alert(1)",
    "JavaScript:alert(1)",
    "  javascript:alert(1)",
    "java\nscript:alert(1)",
    "data:text/html,x",
    "http://example.com",
    "//example.com",
    "https://user@example.com",
    "https://kas.example.com:443@evil.example.com/",
    "vbscript:x",
    "blob:https://example.com/x",
  ])("refuses %j", (text) => {
    expect(safeLink(text)).toBeNull();
  });
  it("accepts https", () => {
    expect(safeLink("https://example.com/a?b=c")).toBe("https://example.com/a?b=c");
  });
});

describe("age", () => {
  const now = Date.parse("2026-01-02T00:00:00Z");
  it.each([
    [5, "5s"],
    [119, "119s"],
    [190, "3m10s"],
    [180, "3m"],
    [3600, "60m"],
    [7200 + 3600, "3h"],
    [4 * 86_400, "4d"],
    [-5, "0s"],
  ])("is as kubectl prints it: %d s", (seconds, expected) => {
    expect(age(new Date(now - seconds * 1000).toISOString(), now)).toBe(expected);
  });
  it("is empty for what is no time", () => {
    expect([age(undefined, now), age("soon", now)]).toEqual(["", ""]);
  });
});

describe("commands", () => {
  const web = { group: "apps", version: "v1", kind: "Deployment", namespace: "shop", name: "web" };
  it("have nothing that a shell would run", () => {
    expect(shellArgument("system:node:a")).toBe("system:node:a");
    expect(shellArgument("$(id)`id`;%x%")).toBe("'$(id)`id`;%x%'");
    for (const text of [
      "",
      "-",
      "--server=https://evil",
      "a'; rm -rf / #",
      "a\\",
      "a b",
      "a\u2019b",
      "a\u202eb",
    ]) {
      expect(shellArgument(text), text).toBeNull();
    }
  });
  it("name the version and the group", () => {
    expect(kubectlCommand(web)).toBe("kubectl get --namespace shop --output yaml -- Deployment.v1.apps web");
    const node = { group: "", version: "v1", kind: "Node", namespace: "", name: "n" };
    expect(kubectlCommand(node)).toBe("kubectl get --output yaml -- Node n");
    const role = { ...web, group: "rbac.authorization.k8s.io", kind: "Role", name: "a|b" };
    expect(kubectlCommand(role)).toContain(" -- Role.v1.rbac.authorization.k8s.io 'a|b'");
  });
  it.each([
    { kind: "--server=https:/" },
    { kind: "-o", group: "" },
    { kind: "Pod,Secret" },
    { kind: "" },
    { group: "--kubeconfig" },
    { version: "v1;id" },
    { namespace: "--token=x" },
    { namespace: "a b" },
    { name: "--all" },
    { name: "a/b" },
    { name: "" },
  ])("are not shown for names that no object has: %o", (names) => {
    expect(kubectlCommand({ ...web, ...names })).toBeNull();
  });
});

it("values of Secrets are text, or have a length", () => {
  expect(decodeSecret(btoa("pass"))).toBe("pass");
  expect(decodeSecret("/w==")).toBe("(1 bytes that are no text)");
  expect(decodeSecret("%")).toBe("(not base64)");
});

it.each<[string, string[]]>([
  ["", []],
  ["its rollout takes longer", ["its rollout takes longer"]],
  ["image web:2 of web-7d9c5b-6x8kq", ["image web:2 of web-7d9c5b-6x8kq"]],
  [
    "pull registry.example.com/shop/checkout:2 fails",
    ["pull ", "registry.|", "example.|", "com/|", "shop/|", "checkout:|", "2|", " fails"],
  ],
  [`sha256:${"a".repeat(64)}`, ["sha256:|", `(${"a".repeat(64)})|`]],
])("the pieces of %j", (text, expected) => {
  const shown = pieces(text).map(
    ({ text: piece, isWhole, breaks }) => `${isWhole ? piece : `(${piece})`}${breaks ? "|" : ""}`,
  );
  expect(shown).toEqual(expected);
  expect(
    pieces(text)
      .map((piece) => piece.text)
      .join(""),
  ).toBe(text);
});
