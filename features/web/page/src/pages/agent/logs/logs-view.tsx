import { workloads } from "../../../graph/pods";
import { query, setQuery } from "../../../router";
import { plain } from "../../../text";
import { Notice } from "../../../ui/notice";
import type { ViewProps } from "../agent";
import { NamespaceSelect } from "../namespaces";
import { Logs } from "./logs";

/** The logs of a workload that the reader selects. */
export function LogsView({ agent, scope, graph }: ViewProps) {
  const namespace = scope === null ? (query.value.get("namespace") ?? "") : "";
  const all = workloads(graph.nodes, namespace);
  const chosen = graph.nodes.get(query.value.get("w") ?? "");
  return (
    <>
      <div class="row">
        {scope === null && <NamespaceSelect nodes={graph.nodes} />}
        <select
          aria-label="Workload"
          value={chosen?.uid ?? ""}
          onChange={(event) => {
            setQuery({ w: event.currentTarget.value });
          }}
        >
          <option value="">Select a workload…</option>
          {all.map(({ uid, kind, name, namespace: place = "" }) => (
            <option key={uid} value={uid}>
              {plain(`${kind}/${name}`, 330)}
              {scope === null && namespace === "" && ` (${plain(place, 64)})`}
            </option>
          ))}
          {chosen !== undefined && !all.includes(chosen) && (
            <option value={chosen.uid}>{plain(`${chosen.kind}/${chosen.name}`, 330)}</option>
          )}
        </select>
      </div>
      {!graph.complete && <p class="muted">Loading the objects…</p>}
      {graph.complete && all.length === 0 && (
        <Notice>There is no workload that this caller may see here.</Notice>
      )}
      {graph.complete && all.length > 0 && chosen === undefined && (
        <Notice>Select a workload: its pods write the logs.</Notice>
      )}
      {chosen !== undefined && <Logs key={chosen.uid} agent={agent} node={chosen} graph={graph} />}
    </>
  );
}
