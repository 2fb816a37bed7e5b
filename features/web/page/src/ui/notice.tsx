import type { ComponentChildren } from "preact";
import { getReader, RequestFailure } from "../api/client";
import { requestAddress } from "../api/recent";
import { plain } from "../text";
import { Age } from "./time";

export function Notice({
  kind = "info",
  children,
}: {
  kind?: "info" | "warning" | "error";
  children: ComponentChildren;
}) {
  return (
    <div class={`notice ${kind}`} role={kind === "error" ? "alert" : "status"}>
      {children}
    </div>
  );
}

/** An error: what failed, for whom, and the id of the request in the logs of kas. `since` is the time of what is shown in spite of it. */
export function Failure({
  what,
  error,
  since = null,
}: {
  what: string;
  error: unknown;
  since?: string | null;
}) {
  const message = error instanceof Error ? error.message : String(error);
  return (
    <Notice kind="error">
      <p>
        {what}: {plain(message)}
      </p>
      {since !== null && (
        <p>
          The last answer is from <Age time={since} /> ago.
        </p>
      )}
      <RequestOf error={error} />
    </Notice>
  );
}

/** For whom a request failed, and its id in the logs of kas. */
export function RequestOf({ error }: { error: unknown }) {
  const reader = getReader();
  const id = error instanceof RequestFailure ? error.requestId : null;
  if (reader === null && id === null) return null;
  return (
    <p class="small muted">
      {reader !== null && `For the caller ${plain(reader, 128)}. `}
      {id !== null && (
        <>
          Request{" "}
          <a href={requestAddress(id)}>
            <code>{plain(id, 64)}</code>
          </a>
        </>
      )}
    </p>
  );
}

/** The reasons why something is missing. */
export function Partial({ reasons }: { reasons: readonly string[] }) {
  if (reasons.length === 0) return null;
  return (
    <Notice kind="warning">
      <details>
        <summary>
          Something may be missing, for {reasons.length} {reasons.length === 1 ? "reason" : "reasons"}
        </summary>
        <ul>
          {reasons.slice(0, 50).map((reason) => (
            <li key={reason}>{plain(reason)}</li>
          ))}
        </ul>
      </details>
    </Notice>
  );
}
