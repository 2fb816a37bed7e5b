import type { ComponentChildren } from "preact";
import { RequestFailure } from "../api/client";
import { requestAddress } from "../api/recent";
import { plain } from "../text";

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

/** An error: what failed, for whom, and the id of the request in the logs of kas. */
export function Failure({ what, error }: { what: string; error: unknown }) {
  const message = error instanceof Error ? error.message : String(error);
  const id = error instanceof RequestFailure ? error.requestId : null;
  return (
    <Notice kind="error">
      <p>
        {what}: {plain(message)}
      </p>
      {id !== null && (
        <p class="small muted">
          Request{" "}
          <a href={requestAddress(id)}>
            <code>{plain(id, 64)}</code>
          </a>
        </p>
      )}
    </Notice>
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
