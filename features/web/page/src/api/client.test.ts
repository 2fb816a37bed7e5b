import { afterEach, describe, expect, it, vi } from "vitest";
import { readJson, request, RequestFailure } from "./client";

/** Returns a response whose body never ends, as gzip of zeros seems to, and what was read of it. */
function endless() {
  const state = { size: 0, isCancelled: false };
  const body = new ReadableStream<Uint8Array<ArrayBuffer>>({
    pull(controller) {
      state.size += 1 << 20;
      controller.enqueue(new Uint8Array(1 << 20).fill(0x20));
    },
    cancel() {
      state.isCancelled = true;
    },
  });
  return { response: new Response(body, { headers: { "x-request-id": "abc" } }), state };
}

async function failureOf(response: Response): Promise<RequestFailure> {
  const error: unknown = await readJson(response, 4 << 20).catch((error: unknown) => error);
  expect(error).toBeInstanceOf(RequestFailure);
  return error as RequestFailure;
}

describe("readJson", () => {
  it("reads characters that are split over chunks", async () => {
    const bytes = new TextEncoder().encode('{"name":"Zoë"}');
    const body = new ReadableStream<Uint8Array<ArrayBuffer>>({
      start(controller) {
        for (const byte of bytes) controller.enqueue(Uint8Array.of(byte));
        controller.close();
      },
    });
    expect(await readJson(new Response(body))).toEqual({ name: "Zoë" });
  });

  it("stops at the limit", async () => {
    const { response, state } = endless();
    const { message, requestId } = await failureOf(response);
    expect(message).toContain("more than 4 MiB");
    expect(requestId).toBe("abc");
    expect(state.isCancelled).toBe(true);
    expect(state.size).toBeLessThan(8 << 20);
  });

  it("names the request of an answer that is not JSON", async () => {
    const response = new Response("<html>", { headers: { "x-request-id": "abc" } });
    const { message, requestId } = await failureOf(response);
    expect(message).toContain("not JSON");
    expect(requestId).toBe("abc");
    expect((await failureOf(new Response(null))).message).toContain("not JSON");
  });
});

describe("request", () => {
  afterEach(() => vi.unstubAllGlobals());

  /** Lets each request fail as a browser does when its network changes, `failures` times. Returns the function that counts. */
  function network(failures: number) {
    const fetch = vi.fn(() => {
      if (fetch.mock.calls.length > failures) return Promise.resolve(new Response("{}"));
      return Promise.reject(new TypeError("Failed to fetch"));
    });
    vi.stubGlobal("fetch", fetch);
    return fetch;
  }

  it("sends a read once more when the network changes", async () => {
    const fetch = network(1);
    expect((await request("/web/v1/session")).status).toBe(200);
    expect(fetch).toHaveBeenCalledTimes(2);
  });

  it("says that kas does not respond after the second try", async () => {
    const fetch = network(2);
    await expect(request("/web/v1/session")).rejects.toThrow("kas does not respond.");
    expect(fetch).toHaveBeenCalledTimes(2);
  });

  it("sends a write once, because it may have arrived", async () => {
    const fetch = network(1);
    await expect(request("/web/v1/session", { method: "POST" })).rejects.toThrow("kas does not respond.");
    expect(fetch).toHaveBeenCalledTimes(1);
  });
});
