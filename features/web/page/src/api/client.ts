/** Requests to kas. kas accepts only requests of this page, which have the header `Kas-Web`. */

/** A request that failed, with a text for people. */
export class RequestFailure extends Error {
  constructor(
    message: string,
    /** The status, or 0 if there was no response. */
    readonly status: number,
    /** The reason of kas for programs, such as `agent-not-connected`. */
    readonly reason: string | null,
    /** The id of the request in the audit log of kas. */
    readonly requestId: string | null,
  ) {
    super(message);
  }
}

const MARK = { "Kas-Web": "1" };
/** The most bytes of a body that are read: a cluster may send a few that unpack to any number. */
const MAX_BODY = 64 << 20;
/** The most bytes of an error that are read, and the longest text that is shown. */
const MAX_ERROR_BODY = 64 << 10;
const MAX_ERROR = 2000;

/** The caller for whom the page was loaded. Other tabs may log in as another one, and all share the cookie. */
let reader: string | null = null;
/** Listener for the end of the session. */
let onSessionEnd: () => void = () => undefined;

export function setReader(caller: string | null): void {
  reader = caller;
}

export function getReader(): string | null {
  return reader;
}

export function setSessionEndListener(listener: () => void): void {
  onSessionEnd = listener;
}

/** Sends a request. Throws a {@link RequestFailure} unless the status is 2xx. */
export async function request(path: string, init: RequestInit = {}): Promise<Response> {
  const send = () => fetch(path, optionsOf(init));
  let response: Response;
  try {
    // A browser ends each request when the network of its machine changes: a read is sent once more.
    const isRead = (init.method ?? "GET") === "GET";
    response = await send().catch((error: unknown) => {
      if (isRead && error instanceof TypeError) return send();
      throw error;
    });
  } catch (error) {
    if (isAbort(error)) throw error;
    const isLate = error instanceof DOMException && error.name === "TimeoutError";
    const what = isLate ? "There was no response in time." : "kas does not respond.";
    throw new RequestFailure(what, 0, null, null);
  }
  if (response.ok) return response;
  const failure = await failureOf(response);
  // A 401 of a cluster, which has no reason of kas, is about the identity there.
  if (response.status === 401 && failure.reason === "unauthorized") onSessionEnd();
  throw failure;
}

function optionsOf(init: RequestInit): RequestInit {
  return {
    ...init,
    credentials: "same-origin",
    // A redirect of a cluster would be followed with the session of the reader.
    redirect: "error",
    headers: {
      ...MARK,
      ...(reader === null ? {} : { "Kas-Web-Caller": encodeURIComponent(reader) }),
      ...(init.headers as Record<string, string> | undefined),
    },
  };
}

export async function getJson<T>(path: string, signal?: AbortSignal): Promise<T> {
  const response = await request(path, {
    headers: { Accept: "application/json" },
    ...(signal ? { signal } : {}),
  });
  return readJson<T>(response);
}

/** Reads the body of a response as JSON. Throws a {@link RequestFailure} if it is none, or has more than `limit` bytes. */
export async function readJson<T>(response: Response, limit = MAX_BODY): Promise<T> {
  const fail = (what: string) => new RequestFailure(what, response.status, null, requestIdOf(response));
  const { text, isCut } = await readText(response, limit).catch((error: unknown) => {
    throw isAbort(error) ? error : fail("the connection was lost while the answer arrived");
  });
  if (isCut) throw fail(`the answer has more than ${limit >> 20} MiB, and the page does not read it`);
  try {
    return JSON.parse(text) as T;
  } catch (error) {
    throw fail(`the answer is not JSON: ${String(error)}`);
  }
}

export function requestIdOf(response: Response): string | null {
  return response.headers.get("x-request-id");
}

/** Reads at most `limit` bytes of a body. */
async function readText(response: Response, limit: number): Promise<{ text: string; isCut: boolean }> {
  const decoder = new TextDecoder();
  let [text, size] = ["", 0];
  const stream = response.body?.getReader();
  for (;;) {
    const { done = true, value } = (await stream?.read()) ?? {};
    if (done || value === undefined) return { text: text + decoder.decode(), isCut: false };
    size += value.length;
    text += decoder.decode(value.subarray(0, value.length - Math.max(0, size - limit)), { stream: true });
    if (size <= limit) continue;
    await stream?.cancel().catch(() => undefined);
    return { text, isCut: true };
  }
}

export function isAbort(error: unknown): boolean {
  return error instanceof DOMException && error.name === "AbortError";
}

async function failureOf(response: Response): Promise<RequestFailure> {
  const { text } = await readText(response, MAX_ERROR_BODY).catch(() => ({ text: "" }));
  const { headers, status, statusText } = response;
  return failureOfText(text, status, headers.get("kas-error"), requestIdOf(response), statusText);
}

/** Returns a failure with a text for people. Errors of Kubernetes are a `Status` in JSON; those of kas are text. */
export function failureOfText(
  body: string,
  status: number,
  reason: string | null,
  requestId: string | null,
  statusText = "",
): RequestFailure {
  let message = body.trim();
  try {
    const object = JSON.parse(body) as { message?: unknown; error?: unknown };
    const text = object.message ?? object.error;
    if (typeof text === "string") message = text;
  } catch {
    // The body is text.
  }
  if (message === "") message = `${status} ${statusText}`.trim();
  return new RequestFailure(message.slice(0, MAX_ERROR), status, reason, requestId);
}
