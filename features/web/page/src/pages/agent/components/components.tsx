import { type ComponentList, getComponents } from "../../../api/graph";
import { lacks } from "../../../graph/features";
import { plain } from "../../../text";
import { Health } from "../../../ui/health";
import { useLoaded } from "../../../ui/loader";
import { Failure, Notice, Partial } from "../../../ui/notice";
import { Table } from "../../../ui/table";
import { Words } from "../../../ui/words";
import type { ViewProps } from "../agent";
import { Applications } from "./applications";

/** The features that lack a component, the programs that agentk knows by name, and the applications. */
export function Components({ agent, scope }: ViewProps) {
  const load = (signal: AbortSignal) => getComponents(agent, scope, signal);
  const { value, error, since } = useLoaded(`components/${agent}/${scope?.namespace ?? ""}`, load, 30_000);
  return (
    <>
      {error !== null && <Failure what="The components are not up to date" error={error} since={since} />}
      {value === null && error === null && <p class="muted">Loading the components…</p>}
      {scope === null && value !== null && <Lacks list={value} />}
      {value?.components.length === 0 && (
        <Notice>agentk knows none of the programs that run in this cluster by name.</Notice>
      )}
      {value !== null && value.components.length > 0 && (
        <Table columns={["Component", "Version", "Health", "Namespaces", "Found by"]}>
          {value.components.map((component) => (
            <tr key={component.id}>
              <td>
                <Words text={plain(component.name, 128)} />
              </td>
              <td>
                <Words text={plain(component.version ?? "–", 128)} />
              </td>
              <td>
                <Health state={component.health} />
              </td>
              <td>
                <Words text={plain((component.namespaces ?? []).join(", "), 512)} />
              </td>
              <td class="small muted">
                <Words text={plain(component.evidence.join(", "), 512)} />
              </td>
            </tr>
          ))}
        </Table>
      )}
      <Partial reasons={value?.partial ?? []} />
      <Applications agent={agent} scope={scope} />
    </>
  );
}

/** The features that lack a component, with the commands of kas. */
function Lacks({ list }: { list: ComponentList }) {
  const lacking = lacks(list.features ?? [], list.components);
  if (lacking.length === 0) return null;
  return (
    <Table columns={["Feature", "Needs", "State", "To install"]}>
      {lacking.map(({ feature, name, needs, state, command, docs }) => (
        <tr key={feature}>
          <td>{name}</td>
          <td>{needs.join(" or ")}</td>
          <td class={state === "unknown" || state === "optional" ? "" : "attention"}>{state}</td>
          <td>
            {command !== null && <code class="wrap">{command}</code>}{" "}
            <a href={docs} target="_blank" rel="noopener noreferrer nofollow">
              Documentation
            </a>
          </td>
        </tr>
      ))}
    </Table>
  );
}
