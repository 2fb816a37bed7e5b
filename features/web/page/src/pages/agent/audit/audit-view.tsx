import { useState } from "preact/hooks";
import { type ClusterEvent, type EventPage, getClusterEvents } from "../../../api/cluster-audit";
import { requestAddress } from "../../../api/recent";
import { query } from "../../../router";
import { plain } from "../../../text";
import { Choice, Text } from "../../../ui/filters";
import { useLoaded } from "../../../ui/loader";
import { Failure, Notice } from "../../../ui/notice";
import { Table } from "../../../ui/table";
import { Age } from "../../../ui/time";
import { Words } from "../../../ui/words";
import type { ViewProps } from "../agent";
import { NamespaceSelect } from "../namespaces";
import { type Fact, origin, result, target, who } from "./words";

/** The most events that are shown. */
const SHOWN = 500;
/** The periods by their minutes. */
const PERIODS = { "10": "last 10 minutes", "60": "last hour", "1440": "last day", all: "any time" };
const DEFAULT_PERIOD = "60";
/** The parameters that select events, with their names for people. */
const TEXTS = {
  user: "Person, job or user",
  verb: "Verb",
  resource: "Resource",
  project: "Project",
  environment: "Environment",
  commit: "Commit",
} as const;

/** The audit log of a cluster: who has done what, for which job, commit and merge request. Each load is in the audit log of kas. */
export function AuditView({ agent, scope, graph }: ViewProps) {
  const [turn, setTurn] = useState(0);
  const filter = readFilter();
  if (scope !== null) filter.set("namespace", scope.namespace);
  const minutes = query.value.get("minutes") ?? DEFAULT_PERIOD;
  const load = (signal: AbortSignal) => getClusterEvents(agent, since(filter, minutes), SHOWN, signal);
  const { value, error } = useLoaded(`audit/${agent}/${minutes}/${filter.toString()}/${turn}`, load);
  return (
    <>
      <div class="row filter" role="search">
        {Object.entries(TEXTS).map(([name, label]) => (
          <Text key={name} name={name} label={label} value={query.value.get(name) ?? ""} />
        ))}
        {scope === null && <NamespaceSelect nodes={graph.nodes} />}
        <Choice name="minutes" label="Time" value={minutes} options={PERIODS} />
        <button
          type="button"
          onClick={() => {
            setTurn(turn + 1);
          }}
        >
          Load again
        </button>
      </div>
      {error !== null && <Failure what="The audit log of the cluster cannot be shown" error={error} />}
      {value === null && error === null && <p class="muted">Loading the events…</p>}
      {value !== null && <Events page={value} />}
    </>
  );
}

/** Returns the parameters of the address that select events. */
function readFilter(): URLSearchParams {
  const names = [...Object.keys(TEXTS), "namespace"];
  const known = names.map((name) => [name, query.value.get(name) ?? ""] as const);
  return new URLSearchParams(known.filter(([, value]) => value !== "").map(([name, value]) => [name, value]));
}

function since(filter: URLSearchParams, minutes: string): URLSearchParams {
  const parameters = new URLSearchParams(filter);
  if (Number(minutes) > 0)
    parameters.set("since", new Date(Date.now() - Number(minutes) * 60_000).toISOString());
  return parameters;
}

function Events({ page: { events, selected, hasMore, hasGap } }: { page: EventPage }) {
  return (
    <>
      {hasMore && (
        <Notice kind="warning">
          The page has not read the latest events, because there are too many. A shorter time shows them.
        </Notice>
      )}
      {hasGap && <Notice>Older events of this time have left the ring of agentk.</Notice>}
      {events.length === 0 ? (
        <Notice>
          {hasMore ? "None of the events that were read is selected." : "There is no such event."}
        </Notice>
      ) : (
        <Table columns={["Time", "Who", "As", "Did", "Result"]}>
          {events.map((event) => (
            <Event key={event.position} event={event} />
          ))}
        </Table>
      )}
      {selected > events.length && (
        <p class="small muted">
          The newest {events.length} of {selected} events
        </p>
      )}
    </>
  );
}

function Event({ event }: { event: ClusterEvent }) {
  const { impersonated_user, cluster_user, request, through } = event;
  const isFailed = (event.status ?? 0) >= 400;
  return (
    <tr>
      <td>
        <Age time={event.time} />
      </td>
      <td>
        <Words text={plain(who(event), 256)} />
        <span class="small muted"> {through}</span>
        <div class="small">
          {origin(event).map((fact) => (
            <Origin key={fact.text} fact={fact} />
          ))}
        </div>
      </td>
      <td class="small">
        <Words text={plain((impersonated_user ?? cluster_user).name, 256)} />
      </td>
      <td>
        <b>{plain(event.verb, 32)}</b> <Words text={plain(target(event), 512)} />
        {event.dry_run === true && <span class="small muted"> dry run</span>}
      </td>
      <td>
        <span class={`health ${isFailed ? "degraded" : "healthy"}`}>{plain(result(event), 128)}</span>
        {request !== undefined && (
          <div class="small">
            <a href={requestAddress(request.id)}>
              <code>
                <Words text={plain(request.id, 64)} />
              </code>
            </a>
          </div>
        )}
      </td>
    </tr>
  );
}

function Origin({ fact: { text, link } }: { fact: Fact }) {
  const words = <Words text={plain(text, 400)} />;
  return (
    <div>
      {link === null ? (
        words
      ) : (
        <a href={link} target="_blank" rel="noopener noreferrer nofollow">
          {words}
        </a>
      )}
    </div>
  );
}
