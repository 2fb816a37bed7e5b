import type { ResourceStatus } from "../../api/graph";
import { type AgentDetails, type AgentInstance, getAgentDetails } from "../../api/kas";
import type { GraphState } from "../../graph/store";
import { plain } from "../../text";
import { rightsText, useAgents } from "../../ui/agents";
import { useLoaded } from "../../ui/loader";
import { Failure, Notice, Partial } from "../../ui/notice";
import { Age } from "../../ui/time";
import { Table } from "../../ui/table";
import { AgentState } from "../agents/agents";
import { Words } from "../../ui/words";

/** The pods and the configuration of agentk, and the objects that the caller and agentk may read. */
export function About({ agent, graph }: { agent: string; graph: GraphState }) {
  const { value, error, since } = useAgents();
  const details = useLoaded(`details/${agent}`, (signal) => getAgentDetails(agent, signal), 10_000);
  const known = value?.agents.find(({ name }) => name === agent);
  const instances = known?.replicas.flatMap((replica) => replica.instances) ?? [];
  return (
    <>
      {error !== null && <Failure what="The agent is not known" error={error} since={since} />}
      {known && (
        <dl class="facts">
          <dt>State</dt>
          <dd>
            <AgentState agent={known} />
          </dd>
          <dt>Services of this caller</dt>
          <dd>{plain(rightsText(known.rights), 300)}</dd>
          {instances.map((instance) => (
            <Instance key={instance.id} instance={instance} />
          ))}
          {details.value !== null && (
            <Details details={details.value} isConnected={known.state === "connected"} />
          )}
        </dl>
      )}
      {details.error !== null && <Failure what="The configuration is not known" error={details.error} />}
      {details.value?.configuration && <ConfigurationProblems {...details.value.configuration} />}
      <Partial reasons={graph.partial} />
      <Resources resources={graph.resources} />
    </>
  );
}

type Configuration = NonNullable<AgentDetails["configuration"]>;

/** The errors of the configuration of the agent. */
function ConfigurationProblems({ error, error_since, warnings }: Configuration) {
  return (
    <>
      {error !== null && (
        <Notice kind="error">
          <p>
            The newest configuration is not in force, for <Age time={error_since} />: {plain(error)}
          </p>
        </Notice>
      )}
      {warnings.length > 0 && (
        <Notice kind="warning">
          <p>The configuration has keys without an effect:</p>
          <ul>
            {warnings.slice(0, 50).map((warning) => (
              <li key={warning}>{plain(warning)}</li>
            ))}
          </ul>
        </Notice>
      )}
    </>
  );
}

/** The version of the configuration, and the reasons for which the agent is away. */
function Details({ details, isConnected }: { details: AgentDetails; isConnected: boolean }) {
  const { configuration, dial_error, refused, last_end } = details;
  return (
    <>
      <dt>Configuration</dt>
      <dd>
        <ConfigurationVersion configuration={configuration} />
      </dd>
      {dial_error !== null && (
        <>
          <dt>kas cannot connect</dt>
          <dd>{plain(dial_error, 128)}</dd>
        </>
      )}
      {refused !== null && (
        <>
          <dt>Last refusal</dt>
          <dd>
            {plain(refused.reason, 128)}, <Age time={refused.time} /> ago
          </dd>
        </>
      )}
      {!isConnected && last_end !== null && (
        <>
          <dt>Last tunnel</dt>
          <dd>
            {plain(last_end.reason, 512)}, <Age time={last_end.time} /> ago
          </dd>
        </>
      )}
    </>
  );
}

function ConfigurationVersion({ configuration }: { configuration: Configuration | null }) {
  if (configuration === null)
    return <span class="muted">not known: the agent has no tunnel to the replica of this page</span>;
  const { version, error, read } = configuration;
  return (
    <>
      {version === null ? error === null ? "none" : "none in force" : <code>{plain(version, 128)}</code>}
      {read !== null && (
        <span class="small muted">
          , read <Age time={read} /> ago
        </span>
      )}
    </>
  );
}

function Instance({ instance }: { instance: AgentInstance }) {
  return (
    <>
      <dt>agentk {plain(instance.version, 64)}</dt>
      <dd>
        {plain(instance.pod_name ?? instance.id, 260)}, {instance.tunnels} tunnels for{" "}
        <Age time={instance.since} />
        {instance.kubernetes_version != null && `, Kubernetes ${plain(instance.kubernetes_version, 64)}`}
      </dd>
    </>
  );
}

function Resources({ resources }: { resources: ResourceStatus[] }) {
  return (
    <Table columns={["Kind", "State", "Objects that this caller may see", "Reason"]}>
      {resources.map((resource) => (
        <tr key={`${resource.group ?? ""}/${resource.kind}`}>
          <td>
            <Words text={plain(resource.kind, 128)} />{" "}
            <span class="small muted">
              <Words text={`${plain(resource.group ?? "", 256)}/${plain(resource.version, 64)}`} />
            </span>
          </td>
          <td class={resource.state === "synced" ? "" : "attention"}>{resource.state}</td>
          <td>{resource.objects}</td>
          <td>
            <Words text={plain(resource.message ?? "")} />
          </td>
        </tr>
      ))}
    </Table>
  );
}
