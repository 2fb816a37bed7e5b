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
/** The longest error text that is shown. */
const MAX_ERROR = 2000;

/** Listeners for the end of the session. */
let onSessionEnd: () => void = () => undefined;

export function setSessionEndListener(listener: () => void): void {
  onSessionEnd = listener;
}

/** Sends a request. Throws a {@link RequestFailure} unless the status is 2xx. */
export async function request(path: string, init: RequestInit = {}): Promise<Response> {
  let response: Response;
  try {
    response = await fetch(path, {
      ...init,
      credentials: "same-origin",
      // A redirect of a cluster would be followed with the session of the reader.
      redirect: "error",
      headers: { ...MARK, ...(init.headers as Record<string, string> | undefined) },
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

export async function getJson<T>(path: string, signal?: AbortSignal): Promise<T> {
  const response = await request(path, {
    headers: { Accept: "application/json" },
    ...(signal ? { signal } : {}),
  });
  return (await response.json()) as T;
}

export function isAbort(error: unknown): boolean {
  return error instanceof DOMException && error.name === "AbortError";
}

async function failureOf(response: Response): Promise<RequestFailure> {
  const body = (await response.text().catch(() => "")).slice(0, 64 * 1024);
  const { headers, status, statusText } = response;
  return failureOfText(body, status, headers.get("kas-error"), headers.get("x-request-id"), statusText);
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
