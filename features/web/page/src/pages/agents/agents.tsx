import type { Agent } from "../../api/kas";
import { agentPath } from "../../api/paths";
import { plain } from "../../text";
import { rightsText, titleOf, useAgents } from "../../ui/agents";
import { Failure, Notice } from "../../ui/notice";
import { Age } from "../../ui/time";
import { Table } from "../../ui/table";
import { Words } from "../../ui/words";

/** The agents that the caller may use. */
export function AgentsPage() {
  const { value, error, since } = useAgents();
  return (
    <div class="stack">
      <h1>Agents</h1>
      {error !== null && <Failure what="The list is not up to date" error={error} since={since} />}
      {value?.missing != null && (
        <Notice kind="warning">The tunnels to other replicas are missing: {plain(value.missing)}</Notice>
      )}
      {value === null && error === null && <p class="muted">Loading the agents…</p>}
      {value?.agents.length === 0 && (
        <Notice>
          This caller may use no agent. The operator of kas names the agents of a caller in the identity file,
          and <code>user_access</code> in the configuration of an agent names those of GitLab who may use it.
        </Notice>
      )}
      {value !== null && value.agents.length > 0 && (
        <Table columns={["Agent", "State", "Version", "Pods", "Tunnels", "Services of this caller"]}>
          {value.agents.map((agent) => (
            <AgentRow key={agent.id} agent={agent} />
          ))}
        </Table>
      )}
    </div>
  );
}

function AgentRow({ agent }: { agent: Agent }) {
  const instances = agent.replicas.flatMap((replica) => replica.instances);
  const versions = [...new Set(instances.map((instance) => instance.version))];
  const pods = new Set(instances.map((instance) => instance.id)).size;
  const tunnels = instances.reduce((sum, instance) => sum + instance.tunnels, 0);
  return (
    <tr>
      <td>
        <a href={agentPath(agent.name)}>
          <Words text={plain(titleOf(agent), 600)} />
        </a>
      </td>
      <td>
        <AgentState agent={agent} />
      </td>
      <td>{plain(versions.join(", "), 200) || <span class="muted">–</span>}</td>
      <td>
        {pods} <span class="muted small">{pods === 1 ? "pod" : "pods"}</span>
      </td>
      <td>
        {tunnels} <span class="muted small">{tunnels === 1 ? "tunnel" : "tunnels"}</span>
      </td>
      <td class="small">{plain(rightsText(agent.rights), 300)}</td>
    </tr>
  );
}

export function AgentState({ agent }: { agent: Agent }) {
  if (agent.state === "connected") return <span class="health healthy">connected</span>;
  return (
    <span>
      <span class="health degraded">{plain(agent.state, 64)}</span>
      {agent.since !== undefined && (
        <span class="small muted">
          {" "}
          for <Age time={agent.since} />
        </span>
      )}
    </span>
  );
}
