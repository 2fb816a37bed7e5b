import { describe, expect, it } from "vitest";
import { readJson, RequestFailure } from "./client";

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
