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

/** Lets the page receive these events of the first watch only. The stream ends after them. */
export function showEvents(page, events) {
  const lines = events.map((event) => `${JSON.stringify(event)}\n`).join("");
  const begin = frame(BEGIN, Buffer.from(JSON.stringify({ encoding: null })));
  const body = Buffer.concat([begin, frame(DATA, Buffer.from(lines))]);
  return page.route("**/web/v1/live", (route) =>
    route.fulfill({ contentType: "application/octet-stream", body }),
  );
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
