import type { ResourceStatus } from "../../api/graph";
import type { AgentInstance } from "../../api/kas";
import type { GraphState } from "../../graph/store";
import { plain } from "../../text";
import { useAgents } from "../../ui/agents";
import { Failure, Partial } from "../../ui/notice";
import { Age } from "../../ui/time";
import { Table } from "../../ui/table";

/** The pods of agentk that read the objects, and the objects that the caller and agentk may read. */
export function About({ agent, graph }: { agent: string; graph: GraphState }) {
  const { value, error } = useAgents();
  const known = value?.agents.find(({ name }) => name === agent);
  const instances = known?.replicas.flatMap((replica) => replica.instances) ?? [];
  return (
    <>
      {error !== null && <Failure what="The agent is not known" error={error} />}
      {known && (
        <dl class="facts">
          <dt>State</dt>
          <dd>{plain(known.state, 64)}</dd>
          <dt>Services of this caller</dt>
          <dd>{known.services.join(", ")}</dd>
          {instances.map((instance) => (
            <Instance key={instance.id} instance={instance} />
          ))}
        </dl>
      )}
      <Partial reasons={graph.partial} />
      <Resources resources={graph.resources} />
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
            {plain(resource.kind, 128)}{" "}
            <span class="small muted">
              {plain(resource.group ?? "", 256)}/{plain(resource.version, 64)}
            </span>
          </td>
          <td class={resource.state === "synced" ? "" : "attention"}>{resource.state}</td>
          <td>{resource.objects}</td>
          <td>{plain(resource.message ?? "")}</td>
        </tr>
      ))}
    </Table>
  );
}
