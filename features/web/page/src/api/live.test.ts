import { afterEach, beforeEach, expect, it, vi } from "vitest";
import { setSessionEndListener } from "./client";
import { FrameKind } from "./frames";
import { Live } from "./live";

/** The requests so far. */
let asked: { watches: { agent: string; query: string; since: string | null }[] }[] = [];
/** The streams so far: a test sends frames. */
let streams: TestStream[] = [];
/** The responses to come. A stream that stays open in place of `undefined`. */
let answers: Response[] = [];

interface TestStream {
  send: (kind: number, watch: number, payload: string | Uint8Array, pieces?: number) => void;
  close: () => void;
  isOpen: boolean;
}

beforeEach(() => {
  vi.useFakeTimers({ toFake: ["setTimeout", "clearTimeout", "Date"] });
  [asked, streams, answers] = [[], [], []];
  vi.stubGlobal("fetch", (_: string, init: RequestInit) => {
    asked.push(JSON.parse(init.body as string) as (typeof asked)[number]);
    return Promise.resolve(answers.shift() ?? stream(init.signal));
  });
});

afterEach(() => {
  vi.unstubAllGlobals();
  vi.useRealTimers();
});

function stream(signal: AbortSignal | null | undefined): Response {
  const body = new ReadableStream<Uint8Array>({
    start(controller) {
      const opened: TestStream = {
        isOpen: true,
        send: (kind, watch, payload, pieces = 1) => {
          const bytes = typeof payload === "string" ? new TextEncoder().encode(payload) : payload;
          const frame = new Uint8Array(6 + bytes.length);
          frame.set([kind, watch]);
          new DataView(frame.buffer).setUint32(2, bytes.length);
          frame.set(bytes, 6);
          const length = Math.ceil(frame.length / pieces);
          for (let start = 0; start < frame.length; start += length)
            controller.enqueue(frame.slice(start, start + length));
        },
        close: () => {
          controller.close();
        },
      };
      streams.push(opened);
      signal?.addEventListener("abort", () => {
        opened.isOpen = false;
        controller.error(signal.reason);
      });
    },
  });
  return new Response(body);
}

const line = (event: object) => `${JSON.stringify(event)}\n`;
const begin = line({ event: "begin", mode: "snapshot" });
const commit = (token: string) => line({ event: "commit", token });
const PLAIN = JSON.stringify({ encoding: null });
const end = (status: number, message: string, reason: string | null = null) =>
  JSON.stringify({ status, reason, message, request_id: status === 0 ? null : "id-1" });
const list = (state: string) =>
  JSON.stringify({ replica: "r", missing: null, agents: [{ id: 1, name: "prod", state, replicas: [] }] });

async function gzip(text: string): Promise<Uint8Array> {
  const compressed = new Blob([text]).stream().pipeThrough(new CompressionStream("gzip"));
  return new Uint8Array(await new Response(compressed).arrayBuffer());
}

/** The timer of the event loop, which is not the one of the tests. */
const turnTimeout = setTimeout;

/** Lets everything happen that happens without time, and what happens in this time. */
async function pass(milliseconds = 0): Promise<void> {
  await vi.advanceTimersByTimeAsync(milliseconds);
  // Streams need more turns of the event loop than timers.
  for (let turn = 0; turn < 10; turn += 1) await new Promise((resolve) => turnTimeout(resolve, 0));
  await vi.advanceTimersByTimeAsync(0);
}

function follow(live: Live, agent: string) {
  const events: string[] = [];
  const failures: string[] = [];
  const stop = live.follow(agent, new URLSearchParams(), {
    onEvent: ({ event }) => events.push(event),
    onFailure: ({ message }) => failures.push(message),
  });
  return { events, failures, stop };
}

it("several watches are one stream, and another set of them continues each at its token", async () => {
  const live = new Live();
  const [prod, test] = [follow(live, "prod"), follow(live, "test")];
  await pass();
  expect(asked.map(({ watches }) => watches.map(({ agent }) => agent))).toEqual([["prod", "test"]]);
  streams[0]?.send(FrameKind.Begin, 0, PLAIN);
  streams[0]?.send(FrameKind.Begin, 1, JSON.stringify({ encoding: "gzip" }));
  streams[0]?.send(FrameKind.Data, 1, await gzip(begin + commit("t1")), 5);
  streams[0]?.send(FrameKind.Data, 0, begin.slice(0, 5));
  streams[0]?.send(FrameKind.Data, 0, begin.slice(5) + commit("p1"), 3);
  await pass();
  expect([prod.events, test.events]).toEqual([
    ["begin", "commit"],
    ["begin", "commit"],
  ]);
  const third = follow(live, "third");
  await pass();
  expect(streams.map(({ isOpen }) => isOpen)).toEqual([false, true]);
  expect(asked[1]?.watches.map(({ since }) => since)).toEqual(["p1", "t1", null]);
  for (const { stop } of [prod, test, third]) stop();
  await pass();
  expect(streams.map(({ isOpen }) => isOpen)).toEqual([false, false]);
  expect([asked.length, prod.failures, test.failures]).toEqual([2, [], []]);
});

it("a lost stream begins again where it was, later each time, and a silent one is lost", async () => {
  const live = new Live();
  const { events, failures } = follow(live, "prod");
  await pass();
  streams[0]?.send(FrameKind.Begin, 0, PLAIN);
  // The lines arrive although the stream ends with them.
  streams[0]?.send(FrameKind.Data, 0, begin + commit("1"));
  streams[0]?.close();
  await pass();
  expect(failures).toEqual(["The stream has ended."]);
  await pass(500);
  expect(asked.map(({ watches }) => watches[0]?.since)).toEqual([null, "1"]);
  for (let second = 0; second < 100; second += 10) {
    streams[1]?.send(FrameKind.Alive, 0, "");
    await pass(10_000);
  }
  expect(asked).toHaveLength(2);
  await pass(39_000);
  expect(failures[1]).toBe("The stream was silent for 40 s.");
  expect(streams[1]?.isOpen).toBe(false);
  await pass(1000);
  expect(asked).toHaveLength(3);
  expect(events).toEqual(["begin", "commit"]);
});

it("a watch that fails begins again after a pause, and the others go on", async () => {
  const live = new Live();
  const [prod, test] = [follow(live, "prod"), follow(live, "test")];
  await pass();
  streams[0]?.send(FrameKind.Begin, 0, PLAIN);
  streams[0]?.send(FrameKind.Data, 0, begin + commit("1"));
  streams[0]?.send(FrameKind.End, 0, end(0, "The agent has been silent for 40 s."));
  streams[0]?.send(FrameKind.Begin, 1, PLAIN);
  streams[0]?.send(FrameKind.Data, 1, begin);
  await pass();
  expect([prod.failures, test.failures]).toEqual([["The agent has been silent for 40 s."], []]);
  expect(prod.events).toEqual(["begin", "commit"]);
  await pass(500);
  expect(asked[1]?.watches.map(({ agent, since }) => [agent, since])).toEqual([
    ["prod", "1"],
    ["test", null],
  ]);
  // The token is too old: the next request has none.
  streams[1]?.send(FrameKind.End, 0, end(400, JSON.stringify({ message: "the token is too old" })));
  await pass(1000);
  expect(asked[2]?.watches[0]?.since).toBe(null);
  expect(prod.failures[1]).toBe("the token is too old");
});

it("an agent that is back is asked at once", async () => {
  const live = new Live();
  const { failures } = follow(live, "prod");
  await pass();
  streams[0]?.send(FrameKind.Agents, 0, list("away"));
  streams[0]?.send(FrameKind.End, 0, end(503, "prod is not connected", "agent-not-connected"));
  await pass(20_000);
  expect([asked.length, failures]).toEqual([1, ["prod is not connected"]]);
  streams[0]?.send(FrameKind.Agents, 0, list("connected"));
  await pass();
  expect(asked).toHaveLength(2);
});

it("what one agent sends breaks its own watch only", async () => {
  const live = new Live();
  const [prod, test] = [follow(live, "prod"), follow(live, "test")];
  await pass();
  for (const watch of [0, 1]) streams[0]?.send(FrameKind.Begin, watch, PLAIN);
  streams[0]?.send(FrameKind.Data, 0, "[".repeat(200_000) + "\n");
  streams[0]?.send(FrameKind.Data, 1, begin);
  await pass();
  expect([prod.failures.length, test.failures, test.events]).toEqual([1, [], ["begin"]]);
  streams[0]?.send(FrameKind.Data, 0, begin);
  await pass();
  expect(prod.events).toEqual([]);
});

it("a replica that stops is left at once and without a failure", async () => {
  const live = new Live();
  const agents: string[] = [];
  live.followAgents({
    onList: ({ agents: [agent] }) => agents.push(agent?.state ?? ""),
    onFailure: ({ message }) => agents.push(message),
  });
  const { failures } = follow(live, "prod");
  await pass();
  streams[0]?.send(FrameKind.Agents, 0, list("connected"));
  streams[0]?.send(FrameKind.Reconnect, 0, "");
  streams[0]?.close();
  await pass(500);
  streams[1]?.send(FrameKind.Agents, 0, list("connected"));
  await pass();
  expect([asked.length, failures, agents]).toEqual([2, [], ["connected", "connected"]]);
});

it("the end of the session is noticed, and a refusal is not repeated often", async () => {
  let ends = 0;
  setSessionEndListener(() => (ends += 1));
  answers = [new Response("log in", { status: 401, headers: { "kas-error": "unauthorized" } })];
  const live = new Live();
  const { failures } = follow(live, "prod");
  await pass(20_000);
  expect([ends, failures, asked.length]).toEqual([1, ["log in"], 1]);
});
