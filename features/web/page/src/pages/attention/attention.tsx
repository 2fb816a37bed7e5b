import type { Attention, HealthReport, Warning } from "../../api/graph";
import type { Agent } from "../../api/kas";
import { agentPath } from "../../api/paths";
import { plain } from "../../text";
import { mayUse, titleOf, useAgents } from "../../ui/agents";
import { Boundary } from "../../ui/boundary";
import { Health, HealthCounts } from "../../ui/health";
import { useLoaded } from "../../ui/loader";
import { Failure, Notice, Partial } from "../../ui/notice";
import { Table } from "../../ui/table";
import { Age } from "../../ui/time";
import { AgentState } from "../agents/agents";
import { EnvironmentTable } from "../environments/environments";
import { loadEnvironments, unhealthy } from "../environments/health";
import { type AgentHealth, useHealths } from "./healths";
import { Words } from "../../ui/words";

/** The objects that need attention, over all agents of the caller. */
export function AttentionPage() {
  const { value, error, since } = useAgents();
  const agents = (value?.agents ?? []).filter((agent) => mayUse(agent.rights, "graph"));
  const connected = agents.filter(({ state }) => state === "connected");
  const healths = useHealths(connected);
  // Until all agents have answered for the first time, the page shows those that have.
  const shown = agents.flatMap((agent) => {
    if (agent.state !== "connected") return [{ agent, report: null, error: null }];
    const health = healths.get(agent.name);
    return health ? [{ agent, ...health }] : [];
  });
  const sorted = shown.toSorted((one, other) => urgency(other) - urgency(one));
  const isComplete = value !== null && shown.length === agents.length;
  const isQuiet =
    isComplete && sorted.length > 0 && sorted.every(({ report }) => report?.health === "healthy");
  return (
    <div class="stack">
      <h1>What needs attention</h1>
      {error !== null && <Failure what="The page is not up to date" error={error} since={since} />}
      {!isComplete && error === null && <p class="muted">Asking the agents…</p>}
      {value?.missing != null && (
        <Notice kind="warning">Agents of other replicas may be missing: {plain(value.missing)}</Notice>
      )}
      {value !== null && agents.length === 0 && (
        <Notice>
          This caller may use the service graph of no agent. The operator of kas grants it in the identity
          file.
        </Notice>
      )}
      {isQuiet && <Notice>Nothing: all objects that this caller may see are healthy.</Notice>}
      <UnhealthyEnvironments />
      {sorted.map((health) => (
        <Boundary
          key={health.agent.id}
          what={`The answer of ${plain(titleOf(health.agent), 100)} has a form that this page does not know`}
        >
          <AgentSection {...health} />
        </Boundary>
      ))}
    </div>
  );
}

/** The environments that are not healthy. They appear when all agents have answered. */
function UnhealthyEnvironments() {
  const load = (signal: AbortSignal) => loadEnvironments(signal, () => undefined);
  const { value, error } = useLoaded("environments", load, 30_000);
  const environments = unhealthy(value ?? []);
  return (
    <>
      {error !== null && <Failure what="The environments are not up to date" error={error} />}
      {environments.length > 0 && (
        <section class="stack" aria-label="Environments">
          <h2>
            <a href="/environments">Environments</a>
          </h2>
          <EnvironmentTable environments={environments} />
        </section>
      )}
    </>
  );
}

function urgency({ report, error }: AgentHealth): number {
  if (error !== null || report === null) return 2;
  return { degraded: 3, unknown: 1, progressing: 1, suspended: 0, healthy: 0 }[report.health];
}

function AgentSection({ agent, report, error }: AgentHealth & { agent: Agent }) {
  const address = agentPath(agent.name);
  return (
    <section class="stack" aria-label={titleOf(agent)}>
      <div class="row spread">
        <h2>
          <a href={address}>{plain(titleOf(agent), 600)}</a>
        </h2>
        {report ? <HealthCounts counts={report.counts} /> : <AgentState agent={agent} />}
      </div>
      {error !== null && (
        <Failure what={`The health of ${plain(titleOf(agent), 100)} is not known`} error={error} />
      )}
      {report !== null && (
        <>
          <AttentionTable address={address} objects={report.attention ?? []} />
          <More address={address} report={report} />
          <Warnings warnings={report.warnings ?? []} />
          <Partial reasons={report.partial ?? []} />
        </>
      )}
    </section>
  );
}

/** agentk names the worst objects only. */
function More({ address, report }: { address: string; report: HealthReport }) {
  const known = report.attention?.length ?? 0;
  const { degraded = 0, progressing = 0 } = report.counts;
  if (known < 10 || degraded + progressing <= known) return null;
  return (
    <p class="small">
      These are the worst {known}. <a href={`${address}?health=degraded,progressing`}>Show all</a>
    </p>
  );
}

function AttentionTable({ address, objects }: { address: string; objects: Attention[] }) {
  if (objects.length === 0) return null;
  return (
    <Table columns={["Object", "Health", "Reason", "Since"]}>
      {objects.map((object) => (
        <tr key={object.uid}>
          <td>
            <a href={`${address}?o=${encodeURIComponent(object.uid)}`}>
              <Words text={`${plain(object.kind, 128)}/${plain(object.name, 260)}`} />
            </a>{" "}
            <span class="small muted">
              <Words text={plain(object.namespace ?? "", 64)} />
            </span>
          </td>
          <td>
            <Health state={object.health} />
          </td>
          <td>
            <Words text={plain(object.message)} />
          </td>
          <td>
            <Age time={object.since} />
          </td>
        </tr>
      ))}
    </Table>
  );
}

function Warnings({ warnings }: { warnings: Warning[] }) {
  if (warnings.length === 0) return null;
  return (
    <details>
      <summary>Newest warnings ({warnings.length})</summary>
      <Table columns={["Age", "Object", "Reason", "Message"]}>
        {warnings.map((warning) => (
          <tr key={`${warning.time}${warning.kind}${warning.name}${warning.reason}`}>
            <td>
              <Age time={warning.time} />
            </td>
            <td>
              <Words text={`${plain(warning.kind, 128)}/${plain(warning.name, 260)}`} />{" "}
              <span class="small muted">
                <Words text={plain(warning.namespace ?? "", 64)} />
              </span>
            </td>
            <td>
              <Words text={plain(warning.reason, 128)} />
              {warning.count > 1 && ` ×${warning.count}`}
            </td>
            <td>
              <Words text={plain(warning.message)} />
            </td>
          </tr>
        ))}
      </Table>
    </details>
  );
}
