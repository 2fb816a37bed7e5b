/** The plans that wait for a person: deletions that are held, and the inventory in place of a lost one. */

import type { ComponentChildren } from "preact";
import type { HeldDeletions, ObjectId, RecoveryPlan } from "../../../api/gitops";
import { plain } from "../../../text";
import { Notice } from "../../../ui/notice";
import { Age } from "../../../ui/time";
import { countOf, recoverySummary } from "./commands";
import { objectName, shortId } from "./names";

/** The most objects of a list that are shown. */
export const SHOWN = 100;

/** A list of which the page may have the first entries only. */
export function FirstOf<T>({
  items,
  count,
  children,
}: {
  items: readonly T[];
  /** The number of all of them. */
  count: number;
  children: (item: T) => ComponentChildren;
}) {
  const shown = items.slice(0, SHOWN);
  return (
    <ul class="wrap">
      {shown.map((item, index) => (
        <li key={index}>{children(item)}</li>
      ))}
      {count > shown.length && <li class="muted">and {count - shown.length} more</li>}
    </ul>
  );
}

export function HeldNotice({ held, message }: { held: HeldDeletions; message: string }) {
  const { count, reason = "", since = 0, commit = "" } = held;
  return (
    <>
      <Notice kind="warning">
        <p>{countOf(count)} would be deleted, and this waits for an approval.</p>
        {reason !== "" && reason !== message && <p>{plain(reason)}</p>}
        {since > 0 && (
          <p class="small muted">
            Held for <Age time={since} />
            {commit !== "" && (
              <>
                , since the commit <code>{plain(shortId(commit), 64)}</code>
              </>
            )}
          </p>
        )}
      </Notice>
      <details>
        <summary>Deletions that wait ({count})</summary>
        <HeldList held={held} />
      </details>
    </>
  );
}

export function HeldList({ held: { objects, count } }: { held: HeldDeletions }) {
  return (
    <FirstOf items={objects} count={count}>
      {({ takes = "", ...object }) => (
        <>
          {objectName(object)}
          {takes !== "" && (
            <>
              , and with it <b>{plain(takes, 1024)}</b>
            </>
          )}
        </>
      )}
    </FirstOf>
  );
}

/** What the state `inventory-lost` means, and the plan once there is one. */
export function RecoveryNotice({ recovery }: { recovery: RecoveryPlan | undefined }) {
  return (
    <>
      <Notice kind="warning">
        <p>agentk does not know which objects belong to the project, and writes nothing.</p>
        {recovery && <p>It has found {recoverySummary(recovery)}. This waits for an approval.</p>}
      </Notice>
      {recovery && <RecoveryDetails recovery={recovery} />}
    </>
  );
}

export function RecoveryDetails({ recovery }: { recovery: RecoveryPlan }) {
  const { left, objects, unknown = [] } = recovery;
  return (
    <>
      {left > 0 && (
        <details open>
          <summary>Objects that are not in Git ({left})</summary>
          <FirstOf<ObjectId> items={objects} count={left}>
            {objectName}
          </FirstOf>
        </details>
      )}
      {unknown.length > 0 && (
        <details open>
          <summary>
            Kinds that agentk cannot list ({unknown.length}): it forgets their objects that left Git
          </summary>
          <FirstOf items={unknown} count={unknown.length}>
            {(kind) => plain(kind)}
          </FirstOf>
        </details>
      )}
    </>
  );
}
