/** The path of one request: from its caller over the replicas and the tunnel into the cluster. */

import type { ComponentChildren } from "preact";
import { agentPath } from "../../api/paths";
import { findRequest, type FoundRequest, type FoundRequests } from "../../api/recent";
import { query, setQuery } from "../../router";
import { plain } from "../../text";
import { useLoaded } from "../../ui/loader";
import { Missing } from "../../ui/missing";
import { Failure, Notice } from "../../ui/notice";
import { Age } from "../../ui/time";
import "./request-path.css";

export function RequestPath() {
  const id = (query.value.get("request") ?? "").trim();
  return (
    <section class="stack" aria-label="The path of a request">
      <h2>The path of a request</h2>
      <form
        class="row"
        role="search"
        onSubmit={(event) => {
          event.preventDefault();
          const text = new FormData(event.currentTarget).get("request");
          setQuery({ request: typeof text === "string" ? text.trim() : "" }, false);
        }}
      >
        <input
          key={id}
          type="search"
          name="request"
          aria-label="Id of a request"
          placeholder="Id, as errors of kas have it"
          maxLength={64}
          defaultValue={id}
        />
        <button type="submit">Find</button>
      </form>
      {id !== "" && <Found key={id} id={id} />}
    </section>
  );
}

function Found({ id }: { id: string }) {
  const { value, error } = useLoaded(`request/${id}`, (signal) => findRequest(id, signal));
  if (error !== null) return <Failure what="The request cannot be found" error={error} />;
  if (value === null) return <p class="muted">Asking the replicas…</p>;
  return (
    <>
      <Missing replicas={value.missing} />
      {value.requests.length === 0 && (
        <Notice>
          No replica knows a request <code>{plain(id, 64)}</code> that this caller may see. Each replica keeps
          its last {value.kept.toLocaleString()} requests, until it stops.
        </Notice>
      )}
      {value.requests.map((request) => (
        <Way key={`${request.replica}${request.time}`} request={request} found={value} />
      ))}
    </>
  );
}

function Way({ request, found }: { request: FoundRequest; found: FoundRequests }) {
  const { holder, tunnel, timing } = request;
  const isOther = holder !== null && holder !== request.replica;
  const name = (replica: string) => (
    <>
      <code>{plain(replica.slice(0, 8), 8)}</code>
      {replica === found.replica && <span class="small muted"> serves this page</span>}
    </>
  );
  return (
    <div class="stack request">
      <p>
        <b>{plain(request.method, 32)}</b> {plain(request.service ?? "", 64)} of{" "}
        {request.agent === null ? (
          <span class="muted">no agent</span>
        ) : (
          <a href={agentPath(request.agent)}>{request.agent}</a>
        )}
        , <Age time={request.time} /> ago: <Status request={request} />
      </p>
      <ol class="stops">
        <Stop kind="Caller" note={request.user === null ? null : plain(request.user, 200)}>
          {plain(request.caller, 128)}
        </Stop>
        <Stop
          kind="Replica"
          title={request.replica}
          note={timing && `waited ${milliseconds(timing.queue_ms)}`}
        >
          {name(request.replica)}
        </Stop>
        {holder === null ? (
          <Stop kind="Ends here" note="It has not reached a tunnel.">
            {plain(request.reason ?? "", 64)}
          </Stop>
        ) : (
          <>
            {isOther && (
              <Stop kind="Replica" title={holder} note="holds the tunnel">
                {name(holder)}
              </Stop>
            )}
            <Stop
              kind="Tunnel"
              title={tunnel?.id}
              note={timing && `${milliseconds(timing.tunnel_ms)} both ways`}
            >
              {tunnel === null ? "not known any more" : <code>{plain(tunnel.id.slice(0, 8), 8)}</code>}
            </Stop>
            <Stop kind="agentk" note={tunnel && plain(tunnel.version, 64)}>
              {tunnel === null
                ? "–"
                : plain(
                    tunnel.pod_name === null
                      ? tunnel.instance.slice(0, 8)
                      : `${tunnel.pod_namespace ?? ""}/${tunnel.pod_name}`,
                    320,
                  )}
            </Stop>
            <Stop kind="Cluster" note={timing && milliseconds(timing.upstream_ms)}>
              {request.status}
            </Stop>
          </>
        )}
      </ol>
    </div>
  );
}

function Status({ request: { status, reason } }: { request: FoundRequest }) {
  const state = status >= 500 || reason !== null ? "degraded" : status >= 400 ? "unknown" : "healthy";
  return (
    <span class={`health ${state}`}>
      {status} {reason !== null && plain(reason, 64)}
    </span>
  );
}

function Stop(props: {
  kind: string;
  title?: string | undefined;
  note?: string | null;
  children: ComponentChildren;
}) {
  return (
    <li>
      <span class="small muted">{props.kind}</span>
      <span title={props.title}>{props.children}</span>
      {props.note != null && <span class="small muted">{props.note}</span>}
    </li>
  );
}

/** Returns a time with three digits. */
function milliseconds(time: number): string {
  return `${Number(time.toPrecision(3)).toLocaleString()} ms`;
}
