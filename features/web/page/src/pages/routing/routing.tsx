import type { Agent, AgentInstance, AgentList } from "../../api/kas";
import { agentPath } from "../../api/paths";
import { plain } from "../../text";
import { titleOf, useAgents } from "../../ui/agents";
import { Failure, Notice } from "../../ui/notice";
import { Age } from "../../ui/time";
import { Lazy } from "../../ui/lazy";
import { AgentState } from "../agents/agents";
import { Table } from "../../ui/table";
import { Words } from "../../ui/words";

/** The tunnels between the replicas of kas and the pods of agents: the ways that a request can take. */
export function RoutingPage() {
  const { value, error, since } = useAgents();
  return (
    <div class="stack">
      <h1>Routing</h1>
      <p class="muted">
        A request to an agent goes to a replica that holds a tunnel of the agent, and through it into the
        cluster.
      </p>
      {error !== null && <Failure what="The routes are not up to date" error={error} since={since} />}
      {value?.missing != null && (
        <Notice kind="warning">The tunnels to other replicas are missing: {plain(value.missing)}</Notice>
      )}
      {value !== null && <Replicas list={value} />}
      <Lazy
        name="request-path"
        load={() => import("./request-path").then((module) => module.RequestPath)}
        props={{}}
      />
    </div>
  );
}

/** Returns the name of the pod, or the id of a process that is in none. */
function nameOf({ pod_namespace, pod_name, id }: AgentInstance): string {
  return pod_name == null ? id : `${pod_namespace ?? ""}/${pod_name}`;
}

interface Route {
  agent: Agent;
  instance: AgentInstance;
}

function Replicas({ list }: { list: AgentList }) {
  const others = list.replicas.filter((replica) => replica !== list.replica).sort();
  const replicas = new Map<string, Route[]>([list.replica, ...others].map((replica) => [replica, []]));
  for (const agent of list.agents) {
    for (const { replica, instances } of agent.replicas) {
      const routes = replicas.get(replica) ?? [];
      routes.push(...instances.map((instance) => ({ agent, instance })));
      replicas.set(replica, routes);
    }
  }
  const away = list.agents.filter((agent) => agent.replicas.length === 0);
  return (
    <>
      {[...replicas].map(([replica, routes]) => (
        <section key={replica} class="stack" aria-label={`Replica ${replica}`}>
          <h2>
            Replica <code>{plain(replica, 64)}</code>{" "}
            {replica === list.replica && <span class="small muted">serves this page</span>}
          </h2>
          {routes.length === 0 ? (
            <p class="muted">No agent of this caller has a tunnel to it.</p>
          ) : (
            <Table columns={["Agent", "Pod", "Version", "Tunnels", "Connected for"]}>
              {routes.map(({ agent, instance }) => (
                <tr key={`${agent.id}/${instance.id}`}>
                  <td>
                    <a href={agentPath(agent.name)}>
                      <Words text={plain(titleOf(agent), 600)} />
                    </a>
                  </td>
                  <td class="mono">
                    <Words text={plain(nameOf(instance), 330)} />
                  </td>
                  <td>
                    <Words text={plain(instance.version, 64)} />
                  </td>
                  <td>
                    {instance.tunnels}{" "}
                    <span class="muted small">{instance.tunnels === 1 ? "tunnel" : "tunnels"}</span>
                  </td>
                  <td>
                    <Age time={instance.since} />
                  </td>
                </tr>
              ))}
            </Table>
          )}
        </section>
      ))}
      {away.length > 0 && (
        <section class="stack" aria-label="Agents without a route">
          <h2>Without a route</h2>
          <ul>
            {away.map((agent) => (
              <li key={agent.id}>
                <Words text={plain(titleOf(agent), 600)} />: <AgentState agent={agent} />
              </li>
            ))}
          </ul>
        </section>
      )}
    </>
  );
}
