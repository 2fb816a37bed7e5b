import type { Node } from "../../api/graph";
import { type Related, relations } from "../../graph/relations";
import type { GraphState } from "../../graph/store";
import { query } from "../../router";
import { plain } from "../../text";
import { Health } from "../../ui/health";

/** The most relations of one kind that are shown. */
const SHOWN = 50;

/** The objects that have to do with an object, by their relation to it. */
export function Relations({ node, graph }: { node: Node; graph: GraphState }) {
  return (
    <>
      {relations(node, graph.nodes).map(({ title, related }) => (
        <div key={title}>
          <h3>{title}</h3>
          <ul class="plain">
            {related.slice(0, SHOWN).map((other) => (
              <li key={`${other.uid ?? ""}${other.kind}/${other.namespace}/${other.name}`}>
                <RelatedObject other={other} />
              </li>
            ))}
            {related.length > SHOWN && <li class="muted">and {related.length - SHOWN} more</li>}
          </ul>
        </div>
      ))}
    </>
  );
}

function RelatedObject({ other }: { other: Related }) {
  const name = `${plain(other.kind, 128)}/${plain(other.name || "(not visible to this caller)", 260)}`;
  if (other.uid === undefined) return <span class="muted">{name}</span>;
  const parameters = new URLSearchParams(query.value);
  parameters.set("o", other.uid);
  parameters.delete("tab");
  return (
    <>
      <a href={`?${parameters.toString()}`}>{name}</a> {other.health && <Health state={other.health} />}
    </>
  );
}
