/** Frames of the stream of a tab, for tests that stand for kas or for a browser. */

const HEAD = 6;
export const BEGIN = 2;
export const DATA = 3;

function frame(kind, payload) {
  const head = Buffer.alloc(HEAD);
  head.writeUInt8(kind, 0);
  head.writeUInt32BE(payload.length, 2);
  return Buffer.concat([head, payload]);
}

/** Returns the body of a stream with these lines of the first watch. */
export function streamOf(lines) {
  const begin = frame(BEGIN, Buffer.from(JSON.stringify({ encoding: null })));
  return Buffer.concat([begin, frame(DATA, Buffer.from(lines))]);
}

/** Calls `onKind` with the kind of each frame of a response. */
export function readKinds(response, onKind) {
  let rest = Buffer.alloc(0);
  response.on("data", (chunk) => {
    rest = Buffer.concat([rest, chunk]);
    for (;;) {
      const end = rest.length < HEAD ? Infinity : HEAD + rest.readUInt32BE(2);
      if (rest.length < end) return;
      onKind(rest[0]);
      rest = rest.subarray(end);
    }
  });
}
