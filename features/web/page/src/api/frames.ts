/** The frames of the stream of a tab: a byte of the kind, one of the watch, four of the length, and the payload. */

export const FrameKind = { Alive: 0, Agents: 1, Begin: 2, Data: 3, End: 4, Reconnect: 5 } as const;

export interface LiveFrame {
  kind: number;
  watch: number;
  payload: Uint8Array<ArrayBuffer>;
}

const HEAD = 6;
/** The longest payload: a list of agents. */
const MAX_PAYLOAD = 16 << 20;

/** Iterates over the frames of a response as they arrive. */
export async function* frames(response: Response): AsyncGenerator<LiveFrame> {
  if (!response.body) return;
  const reader = response.body.getReader();
  /** The bytes that are not yet a frame, and their number. */
  let parts: Uint8Array[] = [];
  let size = 0;
  /** The number of bytes without which there is no frame. */
  let needed = HEAD;
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      parts.push(value);
      size += value.length;
      if (size < needed) continue;
      const bytes = joined(parts, size);
      let start = 0;
      for (;;) {
        needed = HEAD;
        if (bytes.length - start < HEAD) break;
        const length = new DataView(bytes.buffer, start).getUint32(2);
        if (length > MAX_PAYLOAD) throw new Error("a frame is too long");
        needed = HEAD + length;
        if (bytes.length - start < needed) break;
        const [kind = 0, watch = 0] = bytes.subarray(start, start + 2);
        yield { kind, watch, payload: bytes.slice(start + HEAD, start + needed) };
        start += needed;
      }
      parts = [bytes.slice(start)];
      size = bytes.length - start;
    }
  } finally {
    await reader.cancel().catch(() => undefined);
  }
}

function joined(parts: Uint8Array[], size: number): Uint8Array<ArrayBuffer> {
  const bytes = new Uint8Array(size);
  let end = 0;
  for (const part of parts) {
    bytes.set(part, end);
    end += part.length;
  }
  return bytes;
}
