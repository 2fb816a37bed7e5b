import { afterEach, beforeEach, expect, it, vi } from "vitest";
import { type GraphEvent, watch } from "./graph";
import { RequestFailure } from "./client";

/** The addresses of the requests so far. */
let asked: string[] = [];
/** The responses to come. A `null` keeps the stream open and silent. */
let answers: (Response | (string | null)[])[] = [];

beforeEach(() => {
  vi.useFakeTimers();
  [asked, answers] = [[], []];
  vi.stubGlobal("fetch", (path: string, init: RequestInit) => {
    asked.push(path);
    const next = answers.shift();
    if (next === undefined) return new Promise(() => undefined);
    return Promise.resolve(next instanceof Response ? next : stream(next, init.signal));
  });
});

afterEach(() => {
  vi.unstubAllGlobals();
  vi.useRealTimers();
});

function stream(lines: (string | null)[], signal: AbortSignal | null | undefined): Response {
  const body = new ReadableStream<Uint8Array>({
    start(controller) {
      for (const line of lines) {
        if (line !== null) controller.enqueue(new TextEncoder().encode(`${line}\n`));
      }
      signal?.addEventListener("abort", () => {
        controller.error(signal.reason);
      });
      if (!lines.includes(null)) controller.close();
    },
  });
  return new Response(body);
}

const begin = (mode: string) => JSON.stringify({ event: "begin", mode });
const commit = (token: string) => JSON.stringify({ event: "commit", token });

function follow() {
  const stop = new AbortController();
  const events: string[] = [];
  const failures: string[] = [];
  const listener = {
    onEvent: (event: GraphEvent) => events.push(event.event),
    onFailure: (failure: RequestFailure) => failures.push(failure.message),
  };
  const done = watch("prod", new URLSearchParams(), listener, stop.signal);
  return { stop, events, failures, done };
}

it("a watch continues where it was cut", async () => {
  answers = [
    [begin("snapshot"), commit("1")],
    [begin("delta"), commit("2"), null],
  ];
  const { stop, events, failures, done } = follow();
  await vi.advanceTimersByTimeAsync(1000);
  expect(asked).toEqual(["/agents/prod/graph/v1/watch?", "/agents/prod/graph/v1/watch?since=1"]);
  expect(events).toEqual(["begin", "commit", "begin", "commit"]);
  expect(failures).toEqual(["The stream has ended."]);
  stop.abort();
  await vi.advanceTimersByTimeAsync(1000);
  await done;
});

it("a silent stream and a token that is not valid any more begin anew", async () => {
  answers = [
    [begin("snapshot"), commit("1"), null],
    new Response("the token is too old", { status: 400 }),
    [begin("snapshot"), commit("3"), null],
  ];
  const { failures } = follow();
  await vi.advanceTimersByTimeAsync(39_000);
  expect(asked).toHaveLength(1);
  await vi.advanceTimersByTimeAsync(4_000);
  expect(asked.map((path) => path.split("?")[1])).toEqual(["", "since=1", ""]);
  expect(failures).toEqual(["The stream was silent for 40 s.", "the token is too old"]);
});

it("a refusal is asked about again", async () => {
  answers = [new Response("no right", { status: 403 }), [begin("snapshot"), commit("1"), null]];
  const { events, failures } = follow();
  await vi.advanceTimersByTimeAsync(20_000);
  expect(asked).toHaveLength(1);
  await vi.advanceTimersByTimeAsync(45_000);
  expect(failures).toEqual(["no right"]);
  expect(events).toEqual(["begin", "commit"]);
});
