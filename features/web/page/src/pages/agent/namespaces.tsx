import { useMemo } from "preact/hooks";
import type { Node } from "../../api/graph";
import { query, setQuery } from "../../router";
import { plain } from "../../text";

/** Selects a namespace of the objects, which is a part of the address. */
export function NamespaceSelect({ nodes }: { nodes: ReadonlyMap<string, Node> }) {
  const selected = query.value.get("namespace") ?? "";
  const known = useMemo(() => new Set(Array.from(nodes.values(), (node) => node.namespace ?? "")), [nodes]);
  // A namespace that vanishes stays in the list while it is selected.
  const listed = [...new Set([...known, selected])].filter(Boolean).sort();
  return (
    <select
      aria-label="Namespace"
      value={selected}
      onChange={(event) => {
        setQuery({ namespace: event.currentTarget.value });
      }}
    >
      <option value="">All namespaces</option>
      {listed.map((name) => (
        <option key={name} value={name}>
          {plain(name, 64)}
        </option>
      ))}
    </select>
  );
}
