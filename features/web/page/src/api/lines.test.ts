import { expect, it } from "vitest";
import { lines } from "./lines";

function response(...chunks: (string | Uint8Array)[]): Response {
  const encoder = new TextEncoder();
  const body = new ReadableStream<Uint8Array>({
    start(controller) {
      for (const chunk of chunks)
        controller.enqueue(typeof chunk === "string" ? encoder.encode(chunk) : chunk);
      controller.close();
    },
  });
  return new Response(body);
}

async function read(...parameters: Parameters<typeof lines>): Promise<string[]> {
  const found: string[] = [];
  for await (const line of lines(...parameters)) found.push(line);
  return found;
}

it("lines may be cut anywhere, also within a character", async () => {
  const text = new TextEncoder().encode("né\nb");
  const parts = () => response(text.slice(0, 2), text.slice(2), "c\n\nd");
  expect(await read(parts())).toEqual(["né", "bc", "d"]);
  expect(await read(parts(), 10, true)).toEqual(["né", "bc", "", "d"]);
});

it("a line without an end is an error, or is cut once", async () => {
  const chunks = ["ab", "cd", "ef", "gh\nnext\n", "x".repeat(9), "\nlast"];
  await expect(read(response(...chunks), 3)).rejects.toThrow("too long");
  expect(await read(response(...chunks), 3, true)).toEqual(["abc…", "nex…", "xxx…", "las…"]);
});

it("lines that arrive faster than they are read let the page react", async () => {
  let hasReacted = false;
  setTimeout(() => (hasReacted = true));
  const before: boolean[] = [];
  for await (const _ of lines(response("\n\n\n"), 3, true)) {
    before.push(hasReacted);
    for (const begin = performance.now(); performance.now() - begin < 60;);
  }
  expect(before).toEqual([false, true, true]);
});
