/**
 * The stream of this tab: the list of agents, and watches of the graphs of several agents, over one response of kas.
 *
 * A watch continues at its last token, whoever serves the next stream: another set of watches, a watch that has failed, a lost connection
 * and another replica all mean a new request. The frames are those of `features/web/kas/src/live/frame.rs`.
 */

import { failureOfText, isAbort, request, RequestFailure } from "./client";
import type { GraphEvent } from "./graph";
import { type AgentList, type SentAgentList, withRights } from "./kas";
import { lines } from "./lines";
import { frames, FrameKind, type LiveFrame } from "./frames";
import { acquire, isScarce } from "./permit";

/** The most watches of a tab. */
export const MAX_WATCHES = 64;
/** The longest pause before a stream or a watch begins again, in milliseconds. */
const MAX_PAUSE = 15_000;
/** The pause of a watch after a refusal, and of one whose agent is not connected. */
const REFUSED_PAUSE = 60_000;
/** The time after which a stream without a frame is dead: kas sends one every 15 s. */
const SILENCE = 40_000;
/** The time after which a tab in the background gives its stream to others, where connections are scarce. */
const BACKGROUND = 10_000;
const WAITS =
  "This tab waits until another one is closed or in the background: without HTTP/2, browsers open six connections to kas for all tabs. With TLS there is no such limit.";

/** Receives the events of a watch, and the reasons for which it has no connection. */
export interface WatchListener {
  /** `size` is the number of characters of the event. */
  onEvent: (event: GraphEvent, size: number) => void;
  /** The watch begins again after a pause. */
  onFailure: (failure: RequestFailure) => void;
}

/** Receives the list of agents each time that it changes, and the reasons for which it is not up to date. */
export interface AgentsListener {
  onList: (list: AgentList) => void;
  onFailure: (failure: RequestFailure) => void;
}

interface Watch {
  agent: string;
  query: string;
  listener: WatchListener;
  /** The token of the last commit. */
  token: string | null;
  failures: number;
  /** The time before which it does not begin again. */
  due: number;
  /** The bytes of the current stream, or `null` without one. */
  input: WatchInput | null;
}

/** The bytes of a watch in one stream. */
interface WatchInput {
  controller: ReadableStreamDefaultController<Uint8Array<ArrayBuffer>>;
  /** No more bytes will arrive. */
  isClosed: boolean;
  /** Completes when all lines were read. */
  read: Promise<void>;
}

/** The stream of a tab. It is open while somebody listens. */
export class Live {
  readonly #watches = new Set<Watch>();
  readonly #agents = new Set<AgentsListener>();
  #list: AgentList | null = null;
  #stop: AbortController | null = null;
  #timer: { id: ReturnType<typeof setTimeout>; at: number } | null = null;
  #failures = 0;
  /** The tab is in the background, and has given its stream to others. */
  #isPaused = false;

  constructor() {
    // Tests have no document.
    if (typeof document === "undefined" || !isScarce()) return;
    let timer: ReturnType<typeof setTimeout> | undefined;
    document.addEventListener("visibilitychange", () => {
      clearTimeout(timer);
      const isPaused = document.hidden;
      const change = () => {
        if (this.#isPaused === isPaused) return;
        this.#isPaused = isPaused;
        this.#connectAt(0);
      };
      timer = setTimeout(change, isPaused ? BACKGROUND : 0);
    });
  }

  /** Follows the list of agents. Returns the function that ends it. */
  followAgents(listener: AgentsListener): () => void {
    this.#agents.add(listener);
    if (this.#list) listener.onList(this.#list);
    else this.#connectAt(Date.now());
    return () => {
      this.#agents.delete(listener);
      if (this.#isIdle()) this.#connectAt(Date.now());
    };
  }

  /** Follows the objects of an agent that `query` selects. Returns the function that ends it. */
  follow(agent: string, query: URLSearchParams, listener: WatchListener): () => void {
    const watch = { agent, query: query.toString(), listener, token: null, failures: 0, due: 0, input: null };
    this.#watches.add(watch);
    this.#connectAt(Date.now());
    return () => {
      this.#watches.delete(watch);
      cancel(watch);
      this.#connectAt(Date.now());
    };
  }

  #isIdle(): boolean {
    return this.#watches.size === 0 && this.#agents.size === 0;
  }

  /** Begins the next stream at this time, or before. Several changes at the same time are one. */
  #connectAt(at: number): void {
    if (this.#timer && this.#timer.at <= at) return;
    clearTimeout(this.#timer?.id);
    const id = setTimeout(
      () => {
        this.#timer = null;
        // Timers of browsers may be a little early.
        void this.#connect(Math.max(at, Date.now()));
      },
      Math.max(0, at - Date.now()),
    );
    this.#timer = { id, at };
  }

  /** Begins the next stream in place of the last one. */
  async #connect(now: number): Promise<void> {
    this.#stop?.abort();
    const stop = (this.#stop = new AbortController());
    for (const watch of this.#watches) cancel(watch);
    if (this.#isIdle()) {
      this.#list = null;
      return;
    }
    if (this.#isPaused) return;
    let release: () => void = () => undefined;
    if (isScarce()) {
      try {
        release = await acquire(stop.signal, () => {
          this.#report(new RequestFailure(WAITS, 0, null, null));
        });
      } catch {
        // Another stream has begun in its place.
        return;
      }
      stop.signal.addEventListener("abort", release);
      if (stop.signal.aborted) {
        release();
        return;
      }
    }
    const due = [...this.#watches].filter(({ due }) => due <= now);
    const watches = due.slice(0, MAX_WATCHES);
    for (const watch of watches) watch.due = 0;
    for (const { due } of this.#watches) if (due > now) this.#connectAt(due);
    const body = JSON.stringify({
      agents: true,
      watches: watches.map(({ agent, query, token: since }) => ({ agent, query, since })),
    });
    const silent = () => {
      stop.abort();
      this.#lost(watches, stop, new RequestFailure("The stream was silent for 40 s.", 0, null, null));
    };
    let timer = setTimeout(silent, SILENCE);
    stop.signal.addEventListener("abort", () => {
      clearTimeout(timer);
    });
    try {
      const response = await request("/web/v1/live", { method: "POST", body, signal: stop.signal });
      for await (const frame of frames(response)) {
        if (stop.signal.aborted) return;
        clearTimeout(timer);
        timer = setTimeout(silent, SILENCE);
        this.#receive(frame, watches);
        if (frame.kind === FrameKind.Reconnect) {
          // The tabs of a replica that stops do not come to the next one at the same moment.
          this.#connectAt(Date.now() + Math.random() * 500);
          return;
        }
      }
      // The lines that were sent before the end.
      await Promise.all(watches.map(({ input }) => close(input)));
      this.#lost(watches, stop, new RequestFailure("The stream has ended.", 0, null, null));
    } catch (error) {
      if (!isAbort(error)) this.#lost(watches, stop, asFailure(error));
    } finally {
      clearTimeout(timer);
      release();
    }
  }

  /** Tells all listeners that they are not up to date. */
  #report(failure: RequestFailure): void {
    for (const { listener } of this.#watches) listener.onFailure(failure);
    for (const listener of this.#agents) listener.onFailure(failure);
  }

  /** The stream has failed: everything begins again after a pause. */
  #lost(watches: Watch[], stop: AbortController, failure: RequestFailure): void {
    // Another stream has begun in its place.
    if (this.#stop !== stop) return;
    stop.abort();
    for (const watch of watches) {
      cancel(watch);
      if (this.#watches.has(watch)) watch.listener.onFailure(failure);
    }
    for (const listener of this.#agents) listener.onFailure(failure);
    this.#connectAt(Date.now() + pauseAfter(failure, this.#failures));
    this.#failures += 1;
  }

  #receive({ kind, watch: index, payload }: LiveFrame, watches: Watch[]): void {
    if (kind === FrameKind.Agents) {
      this.#receiveAgents(withRights(JSON.parse(text(payload)) as SentAgentList));
      return;
    }
    const watch = watches[index];
    // It may have ended here, or its lines have no form that this page knows.
    if (watch === undefined || !this.#watches.has(watch) || watch.due > Date.now()) return;
    if (kind === FrameKind.Begin) {
      const { encoding } = JSON.parse(text(payload)) as { encoding: string | null };
      watch.input = this.#begin(watch, encoding);
    } else if (kind === FrameKind.Data) {
      push(watch.input, payload);
    } else if (kind === FrameKind.End) {
      const { status, reason, message, request_id: id } = JSON.parse(text(payload)) as EndOfWatch;
      const failure =
        status === 0
          ? new RequestFailure(message, 0, null, null)
          : failureOfText(message, status, reason, id);
      const { input } = watch;
      // After the lines that were sent before.
      void close(input).then(() => {
        if (watch.input === input) this.#fail(watch, failure);
      });
    }
  }

  #receiveAgents(list: AgentList): void {
    const before = this.#list;
    this.#list = list;
    this.#failures = 0;
    for (const listener of this.#agents) listener.onList(list);
    const stateIn = (of: AgentList | null, name: string) =>
      of?.agents.find((agent) => agent.name === name)?.state;
    for (const watch of this.#watches) {
      const isBack =
        stateIn(list, watch.agent) === "connected" && stateIn(before, watch.agent) !== "connected";
      if (watch.due <= Date.now() || before === null || !isBack) continue;
      [watch.due, watch.failures] = [0, 0];
      this.#connectAt(Date.now());
    }
  }

  /** Reads the lines of a watch as they arrive. */
  #begin(watch: Watch, encoding: string | null): WatchInput {
    let controller!: WatchInput["controller"];
    let bytes = new ReadableStream<Uint8Array<ArrayBuffer>>({
      start: (given) => {
        controller = given;
      },
    });
    if (encoding === "gzip") bytes = bytes.pipeThrough(new DecompressionStream("gzip"));
    const read = async () => {
      // The input is that of this stream as long as no other one has begun.
      for await (const line of lines(new Response(bytes))) {
        if (watch.input !== input) return;
        const event = JSON.parse(line) as GraphEvent;
        if (event.event === "commit") [watch.token, watch.failures] = [event.token, 0];
        watch.listener.onEvent(event, line.length);
      }
    };
    const input: WatchInput = { controller, isClosed: false, read: Promise.resolve() };
    // The lines come later, when the input is that of the watch.
    input.read = Promise.resolve()
      .then(read)
      .catch((error: unknown) => {
        // Compressed bytes end early with each stream.
        if (watch.input !== input || input.isClosed) return;
        this.#fail(watch, asFailure(error));
      });
    return input;
  }

  /** A watch has failed, and begins again after a pause. */
  #fail(watch: Watch, failure: RequestFailure): void {
    if (!this.#watches.has(watch)) return;
    cancel(watch);
    // A token that is not valid any more would fail for ever.
    if (failure.status === 400) watch.token = null;
    watch.due = Date.now() + pauseAfter(failure, watch.failures);
    watch.failures += 1;
    watch.listener.onFailure(failure);
    this.#connectAt(watch.due);
  }
}

/** The last frame of a watch. */
interface EndOfWatch {
  status: number;
  reason: string | null;
  message: string;
  request_id: string | null;
}

/** The stream of this tab. */
export const live = new Live();

/** Leaves the bytes of a watch unread. */
function cancel(watch: Watch): void {
  void close(watch.input);
  watch.input = null;
}

/** Ends the bytes of a watch. Completes when all lines were read. */
async function close(input: WatchInput | null): Promise<void> {
  if (input === null) return;
  push(input, null);
  input.isClosed = true;
  await input.read;
}

/** Adds bytes of a watch, or their end. */
function push(input: WatchInput | null, payload: LiveFrame["payload"] | null): void {
  if (input === null || input.isClosed) return;
  try {
    if (payload === null) input.controller.close();
    else input.controller.enqueue(payload);
  } catch {
    // The lines are not read any more, because one of them has no form that this page knows.
  }
}

/** Returns a time in milliseconds. Rights change, and an agent that is updated may serve the graph then. */
function pauseAfter({ status, reason }: RequestFailure, failures: number): number {
  const isRefused = [401, 403, 404, 429].includes(status) || reason === "agent-not-connected";
  const longest = isRefused ? REFUSED_PAUSE : Math.min(MAX_PAUSE, 500 * 2 ** failures);
  return longest * (0.5 + Math.random() / 2);
}

function asFailure(error: unknown): RequestFailure {
  if (error instanceof RequestFailure) return error;
  const isNoJson = error instanceof SyntaxError;
  const what = isNoJson
    ? "The stream has a line that is not JSON."
    : `The stream has failed: ${String(error)}`;
  return new RequestFailure(what, 0, null, null);
}

function text(payload: Uint8Array): string {
  return new TextDecoder().decode(payload);
}
