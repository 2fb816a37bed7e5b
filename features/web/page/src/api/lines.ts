/** The longest line of a stream, in characters: a cluster must not fill the memory of the browser. */
export const MAX_LINE = 1 << 20;
/** The time after which the iteration lets the page draw and react, in milliseconds: lines may arrive faster than they are read. */
const MAX_TASK = 50;

/**
 * Iterates over the lines of a response as they arrive. A line of more than `limit` characters ends the stream with an error, or, with
 * `cut`, is cut there. Empty lines are left out without `cut`.
 */
export async function* lines(response: Response, limit = MAX_LINE, cut = false): AsyncGenerator<string> {
  if (!response.body) return;
  const reader = response.body.getReader();
  const decoder = new TextDecoder();
  let rest = "";
  /** The beginning of the line was returned: the rest of it is left out. */
  let isLeftOut = false;
  let begin = performance.now();
  try {
    for (;;) {
      const { done, value } = await reader.read();
      rest += decoder.decode(value, { stream: !done });
      const parts = rest.split("\n");
      rest = parts.pop() ?? "";
      for (const line of parts) {
        if (!isLeftOut && (cut || line !== ""))
          yield cut && line.length > limit ? `${line.slice(0, limit)}…` : line;
        isLeftOut = false;
        if (performance.now() - begin < MAX_TASK) continue;
        await new Promise((resolve) => setTimeout(resolve));
        begin = performance.now();
      }
      if (rest.length > limit) {
        if (!cut) throw new Error("a line is too long");
        if (!isLeftOut) yield `${rest.slice(0, limit)}…`;
        isLeftOut = true;
      }
      if (isLeftOut) rest = "";
      if (done) break;
    }
    if (rest !== "") yield rest;
  } finally {
    await reader.cancel().catch(() => undefined);
  }
}
