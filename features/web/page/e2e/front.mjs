/** A server between the browser and kas, which answers some requests in the place of the cluster. */

import { createServer, request as sendRequest } from "node:http";
import { gzipSync } from "node:zlib";

export class Front {
  constructor(server, rules) {
    this.server = server;
    this.rules = rules;
    this.address = `http://localhost:${server.address().port}`;
  }

  static async start(kas) {
    const { hostname, port } = new URL(kas);
    const rules = [];
    const server = createServer((request, response) => {
      const rule = rules.find(({ pattern }) => pattern.test(request.url));
      if (rule) return rule.answer(request, response);
      const { method, url: path, headers } = request;
      const forwarded = sendRequest({ hostname, port, method, path, headers }, (answer) => {
        response.writeHead(answer.statusCode, answer.headers);
        answer.pipe(response);
        answer.on("error", () => response.destroy());
      });
      forwarded.on("error", () => response.destroy());
      response.on("close", () => forwarded.destroy());
      request.pipe(forwarded);
    });
    await new Promise((resolve) => server.listen(0, "127.0.0.1", resolve));
    return new Front(server, rules);
  }

  /** Answers requests with these paths until the function is called that it returns. The newest rule applies. */
  answer(pattern, answer) {
    const rule = { pattern, answer };
    this.rules.unshift(rule);
    return () => this.rules.splice(this.rules.indexOf(rule), 1);
  }

  /** Closes all connections, and those of requests with these paths until the function is called that it returns. */
  cut(pattern) {
    const mend = this.answer(pattern, (_, response) => response.destroy());
    this.server.closeAllConnections();
    return mend;
  }

  stop() {
    this.server.close();
    this.server.closeAllConnections();
  }
}

/** Returns an answer of a few kilobytes that unpack to `mebibytes` of a text. */
export function bomb(text, { mebibytes = 256, status = 200 } = {}) {
  const body = gzipSync(Buffer.alloc(mebibytes << 20, text), { level: 1 });
  return (_, response) => {
    response.writeHead(status, {
      "content-type": "application/json",
      "content-encoding": "gzip",
      "x-request-id": "bomb-1",
    });
    response.end(body);
  };
}
