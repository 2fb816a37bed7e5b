import { getEvents, timeOf } from "../../api/kubernetes";
import { plain } from "../../text";
import { useLoaded } from "../../ui/loader";
import { Failure, Notice } from "../../ui/notice";
import { Age } from "../../ui/time";
import type { TabProps } from "./drawer";

/** The events about an object. */
export function Events({ agent, node }: TabProps) {
  const load = (signal: AbortSignal) => getEvents(agent, node.namespace ?? "", node.uid, signal);
  const { value, error, since } = useLoaded(`events/${agent}/${node.uid}`, load, 10_000);
  return (
    <>
      {error !== null && <Failure what="The events are not up to date" error={error} since={since} />}
      {value === null && error === null && <p class="muted">Loading the events…</p>}
      {value?.length === 0 && <Notice>There is no event. Clusters forget events after an hour.</Notice>}
      {value !== null && value.length > 0 && (
        <ul class="plain stack">
          {value.map((event) => (
            <li key={event.metadata.uid}>
              <span class={event.type === "Warning" ? "attention" : ""}>
                {plain(event.reason ?? "", 128)}
              </span>{" "}
              <span class="small muted">
                <Age time={timeOf(event)} />
                {(event.count ?? 1) > 1 && ` ×${event.count ?? 1}`}
              </span>
              <div class="wrap">{plain(event.message ?? "")}</div>
            </li>
          ))}
        </ul>
      )}
    </>
  );
}
