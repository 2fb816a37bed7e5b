import { useRef } from "preact/hooks";
import { getAllEvents, type KubernetesEvent, timeOf } from "../../api/kubernetes";
import { selectEvents } from "../../graph/events";
import { query, setQuery } from "../../router";
import { plain } from "../../text";
import { useLoaded } from "../../ui/loader";
import { Failure, Notice } from "../../ui/notice";
import { useShortcut } from "../../ui/shortcuts";
import { Table } from "../../ui/table";
import { Age } from "../../ui/time";
import type { ViewProps } from "./agent";
import { NamespaceSelect } from "./namespaces";
import { Words } from "../../ui/words";

/** The most events that are shown. */
const SHOWN = 500;

/** The events of a cluster, of a namespace, or about the objects of an environment. */
export function EventsView({ agent, scope, graph }: ViewProps) {
  const search = useRef<HTMLInputElement>(null);
  useShortcut("/", () => search.current?.focus());
  const namespace = scope?.namespace ?? query.value.get("namespace") ?? "";
  const load = (signal: AbortSignal) => getAllEvents(agent, namespace, signal);
  const { value, error } = useLoaded(`all-events/${agent}/${namespace}`, load, 15_000);
  const text = query.value.get("q") ?? "";
  const onlyWarnings = query.value.get("type") === "warning";
  // Events have no labels. Those about an object that is gone are left out then.
  const isPart = scope !== null && Object.keys(scope.labels).length > 0;
  const uids = isPart ? new Set(graph.nodes.keys()) : null;
  const selected = selectEvents(value ?? [], { text, onlyWarnings, uids });
  return (
    <>
      <div class="row filter" role="search">
        <input
          ref={search}
          type="search"
          aria-label="Search reasons, messages and objects"
          placeholder="Search   /"
          value={text}
          onInput={(event) => {
            setQuery({ q: event.currentTarget.value });
          }}
        />
        {scope === null && <NamespaceSelect nodes={graph.nodes} />}
        <button
          type="button"
          aria-pressed={onlyWarnings}
          onClick={() => {
            setQuery({ type: onlyWarnings ? "" : "warning" });
          }}
        >
          Warnings
        </button>
      </div>
      {error !== null && <Failure what="The events are not up to date" error={error} />}
      {value === null && error === null && <p class="muted">Loading the events…</p>}
      {value !== null && selected.length === 0 && (
        <Notice>
          {value.length === 0
            ? "There is no event. Clusters forget events after an hour."
            : `None of the ${value.length} events is selected.`}
        </Notice>
      )}
      {selected.length > 0 && <EventTable events={selected.slice(0, SHOWN)} known={graph.nodes} />}
      {selected.length > SHOWN && (
        <p class="small muted">
          The newest {SHOWN} of {selected.length} events
        </p>
      )}
    </>
  );
}

function EventTable({
  events,
  known,
}: {
  events: readonly KubernetesEvent[];
  known: ReadonlyMap<string, unknown>;
}) {
  return (
    <Table columns={["Age", "Object", "Reason", "Message"]}>
      {events.map((event) => (
        <tr key={event.metadata.uid}>
          <td>
            <Age time={timeOf(event)} />
          </td>
          <td>
            <EventObject event={event} known={known} />
          </td>
          <td>
            <span class={event.type === "Warning" ? "attention" : ""}>
              <Words text={plain(event.reason ?? "", 128)} />
            </span>
            {(event.count ?? 1) > 1 && ` ×${event.count ?? 1}`}
          </td>
          <td>
            <Words text={plain(event.message ?? "")} />
          </td>
        </tr>
      ))}
    </Table>
  );
}

function EventObject({
  event: { involvedObject },
  known,
}: {
  event: KubernetesEvent;
  known: ReadonlyMap<string, unknown>;
}) {
  const { uid = "", kind = "", name = "", namespace = "" } = involvedObject ?? {};
  const text = <Words text={`${plain(kind, 128)}/${plain(name, 260)}`} />;
  const parameters = new URLSearchParams(query.value);
  parameters.set("o", uid);
  parameters.delete("tab");
  return (
    <>
      {known.has(uid) ? <a href={`?${parameters.toString()}`}>{text}</a> : text}{" "}
      <span class="small muted">
        <Words text={plain(namespace, 64)} />
      </span>
    </>
  );
}
