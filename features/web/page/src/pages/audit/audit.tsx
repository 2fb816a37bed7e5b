import { useState } from "preact/hooks";
import { type AuditLine, type AuditPage as Page, getAudit, requestAddress } from "../../api/recent";
import { query, setQuery } from "../../router";
import { plain } from "../../text";
import { useAgents } from "../../ui/agents";
import { Choice, Text } from "../../ui/filters";
import { useLoaded } from "../../ui/loader";
import { Missing } from "../../ui/missing";
import { Failure, Notice } from "../../ui/notice";
import { Table } from "../../ui/table";
import { Age } from "../../ui/time";
import { Words } from "../../ui/words";

/** The pause between two loads, in milliseconds. */
const INTERVAL = 10_000;
/** The lines that are shown first, and the most that kas sends. */
const LINES = [100, 500] as const;
const RESULTS = { "": "any result", allow: "allowed", deny: "refused", failed: "failed" };
const PERIODS = { "": "any time", "10": "last 10 minutes", "60": "last hour", "1440": "last day" };

/** The recent lines of the audit log: who has changed, read a secret, or was refused. */
export function AuditPage() {
  const [limit, setLimit] = useState<number>(LINES[0]);
  const filter = { ...readFilter(), limit: String(limit) };
  const { value, error } = useLoaded(
    `audit/${new URLSearchParams(filter).toString()}`,
    (signal) => getAudit(parameters(filter), signal),
    INTERVAL,
  );
  return (
    <div class="stack">
      <h1>Audit</h1>
      <FilterBar auditor={value?.auditor ?? false} />
      {error !== null && <Failure what="The lines are not up to date" error={error} />}
      {value === null && error === null && <p class="muted">Loading the lines…</p>}
      {value !== null && <Lines page={value} />}
      {value?.has_more === true && (
        <p class="small">
          There are older lines.{" "}
          {limit < LINES[1] ? (
            <button
              type="button"
              onClick={() => {
                setLimit(LINES[1]);
              }}
            >
              Show {LINES[1]}
            </button>
          ) : (
            "A filter shows them."
          )}
        </p>
      )}
    </div>
  );
}

type Filter = Record<"agent" | "caller" | "verb" | "result" | "minutes" | "reviews", string>;

/** Returns the filter of the address. */
function readFilter(): Filter {
  const of = (name: string) => query.value.get(name) ?? "";
  return {
    agent: of("agent"),
    caller: of("caller"),
    verb: of("verb"),
    result: of("result"),
    minutes: of("minutes"),
    reviews: of("reviews") === "true" ? "true" : "false",
  };
}

function parameters({ minutes, ...filter }: Filter & { limit: string }): URLSearchParams {
  const known = new URLSearchParams(filter);
  const from = new Date(Date.now() - Number(minutes) * 60_000);
  if (Number(minutes) > 0) known.set("from", from.toISOString());
  return known;
}

function FilterBar({ auditor }: { auditor: boolean }) {
  const filter = readFilter();
  const agents = useAgents().value?.agents.map(({ name }) => name) ?? [];
  if (filter.agent !== "" && !agents.includes(filter.agent)) agents.push(filter.agent);
  return (
    <form
      class="row"
      role="search"
      onSubmit={(event) => {
        event.preventDefault();
      }}
    >
      <Choice
        name="agent"
        label="Agent"
        value={filter.agent}
        options={{ "": "any agent", ...Object.fromEntries(agents.map((name) => [name, name])) }}
      />
      {auditor && <Text name="caller" label="Caller or user" value={filter.caller} />}
      <Text name="verb" label="Verb" value={filter.verb} />
      <Choice name="result" label="Result" value={filter.result} options={RESULTS} />
      <Choice name="minutes" label="Time" value={filter.minutes} options={PERIODS} />
      <button
        type="button"
        aria-pressed={filter.reviews === "true"}
        title="The questions of callers about their own rights, of which this page asks several for each object"
        onClick={() => {
          setQuery({ reviews: filter.reviews === "true" ? "" : "true" });
        }}
      >
        Access reviews
      </button>
    </form>
  );
}

function Lines({ page }: { page: Page }) {
  if (!page.enabled && page.lines.length === 0) {
    return (
      <Notice>
        kas writes no audit log. The operator sets <code>observability.audit.sink</code> in its configuration.
      </Notice>
    );
  }
  return (
    <>
      <p class="muted">
        {page.auditor
          ? "Requests of all callers that change, read secrets, upgrade, log in or are refused."
          : "The requests of this caller that change, read secrets, upgrade, log in or are refused. The right audit in the identity file shows those of all callers."}{" "}
        <Kept page={page} />
      </p>
      <Missing replicas={page.missing} />
      {page.lines.length === 0 ? (
        <Notice>There is no such line.</Notice>
      ) : (
        <Table columns={["Time", "Caller", "Request", "Result", "From"]}>
          {page.lines.map((line) => (
            <Line key={`${line.replica}${line.time}${line.request_id ?? ""}`} line={line} />
          ))}
        </Table>
      )}
    </>
  );
}

/** The replicas keep the newest lines only. */
function Kept({ page: { replicas } }: { page: Page }) {
  const oldest = replicas.flatMap(({ oldest }) => oldest ?? []).toSorted();
  if (oldest[0] === undefined) return null;
  return (
    <>
      {replicas.length === 1 ? "kas keeps" : `${replicas.length} replicas of kas keep`} the newest lines, here
      those of the last <Age time={oldest[0]} />.
    </>
  );
}

function Line({ line }: { line: AuditLine }) {
  if (line.left_out !== null) {
    return (
      <tr>
        <td>
          <Age time={line.time} />
        </td>
        <td class="muted">strangers</td>
        <td colSpan={2}>{line.left_out} further refusals without a line of their own</td>
        <td class="mono">
          <Words text={plain(line.client ?? "", 64)} />
        </td>
      </tr>
    );
  }
  const isRefused = line.decision === "deny";
  const isFailed = (line.status ?? 0) >= 400;
  return (
    <tr>
      <td>
        <Age time={line.time} />
      </td>
      <td>
        {line.caller === null ? (
          <span class="muted">stranger</span>
        ) : (
          <Words text={plain(line.caller, 128)} />
        )}
        {line.user !== null && (
          <div class="small muted">
            <Words text={plain(line.user, 200)} />
          </div>
        )}
      </td>
      <td>
        <b>{plain(line.verb ?? line.method ?? "", 32)}</b>{" "}
        <Words text={plain(line.agent ?? String(line.agent_id ?? ""), 64)} />
        {line.service !== null && <span class="small muted"> {plain(line.service, 64)}</span>}
        <div class="mono">
          <Words text={plain(line.path ?? "", 512)} />
        </div>
        <div class="small muted">{line.events.map((event) => plain(event, 32)).join(", ")}</div>
      </td>
      <td>
        <span class={`health ${isRefused ? "degraded" : isFailed ? "unknown" : "healthy"}`}>
          {line.status ?? "–"} {isRefused ? "refused" : isFailed ? "failed" : "allowed"}
        </span>
        {line.reason !== null && (
          <div class="small">
            <Words text={plain(line.reason, 64)} />
          </div>
        )}
        {line.message !== null && (
          <div class="small muted">
            <Words text={plain(line.message, 512)} />
          </div>
        )}
      </td>
      <td>
        <span class="mono">
          <Words text={plain(line.client ?? "", 64)} />
        </span>
        {line.request_id !== null && (
          <div class="small">
            <a href={requestAddress(line.request_id)}>
              <code>
                <Words text={plain(line.request_id, 64)} />
              </code>
            </a>
          </div>
        )}
      </td>
    </tr>
  );
}
