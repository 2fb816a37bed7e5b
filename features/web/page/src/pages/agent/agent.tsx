import { useComputed } from "@preact/signals";
import type { ComponentChildren, ComponentType } from "preact";
import { useRef } from "preact/hooks";
import type { HealthState, Scope } from "../../api/graph";
import { type Followed, useGraph } from "../../graph/follow";
import { list, parseSorting } from "../../graph/list";
import { countByHealth, type Filter, HEALTH_ORDER, rows } from "../../graph/rows";
import type { GraphState } from "../../graph/store";
import { query, setQuery } from "../../router";
import { capitalized, plain } from "../../text";
import { Boundary } from "../../ui/boundary";
import { Health } from "../../ui/health";
import { Lazy } from "../../ui/lazy";
import { mayUse, titleOf, useAgent, useRights } from "../../ui/agents";
import { Failure, Notice, Partial, RequestOf } from "../../ui/notice";
import { useShortcut } from "../../ui/shortcuts";
import { Age } from "../../ui/time";
import { About } from "./about";
import "./agent.css";
import { Drawer } from "./drawer";
import { List } from "./list";
import { NamespaceSelect } from "./namespaces";
import { toggled, Tree } from "./tree";

const VIEWS = [
  "tree",
  "list",
  "map",
  "changes",
  "logs",
  "events",
  "metrics",
  "audit",
  "components",
  "about",
] as const;
type View = (typeof VIEWS)[number];
/** The services without which a view has nothing. The others need the service `graph`. */
const SERVICES: Partial<Record<View, string>> = {
  changes: "gitops",
  logs: "kubernetes",
  events: "kubernetes",
  metrics: "prometheus",
  audit: "audit",
};

/** The page of the cluster of an agent. */
export function AgentPage({ agent }: { agent: string }) {
  const known = useAgent(agent);
  return (
    <ClusterViews
      agent={agent}
      scope={null}
      heading={<h1>{plain(known ? titleOf(known) : agent, 600)}</h1>}
    />
  );
}

/** The views of the cluster of an agent, or of a part of it. */
export function ClusterViews({
  agent,
  scope,
  heading,
}: {
  agent: string;
  scope: Scope | null;
  heading: ComponentChildren;
}) {
  const followed = useGraph(agent, scope);
  const view = VIEWS.find((name) => name === query.value.get("view")) ?? "tree";
  const uid = query.value.get("o");
  const rights = useRights(agent);
  // A link to a view stays one, and the view says why it is empty.
  const offered = VIEWS.filter((name) => name === view || mayUse(rights, SERVICES[name]));
  return (
    <div class="stack">
      <div class="row spread">
        {heading}
        <nav class="row" aria-label="Views">
          {offered.map((name) => (
            <button
              key={name}
              type="button"
              aria-pressed={name === view}
              onClick={() => {
                setQuery({ view: name === "tree" ? "" : name }, false);
              }}
            >
              {capitalized(name)}
            </button>
          ))}
        </nav>
      </div>
      <Connection followed={followed} />
      {(view === "tree" || view === "list") && <ObjectsView view={view} followed={followed} scope={scope} />}
      {isLazy(view) && (
        <Lazy
          key={view}
          name={view}
          load={LAZY[view]}
          props={{ agent, scope, graph: followed.graph.value }}
        />
      )}
      {view === "about" && <About agent={agent} graph={followed.graph.value} />}
      {uid !== null && (
        <Boundary key={uid} what="The object cannot be shown">
          <Drawer agent={agent} uid={uid} graph={followed.graph} />
        </Boundary>
      )}
    </div>
  );
}

/** The properties of a view that is loaded when it is opened. */
export interface ViewProps {
  agent: string;
  scope: Scope | null;
  graph: GraphState;
}

/** The views that the first load does not need. */
const LAZY = {
  map: () => import("./map/map").then((module) => module.ObjectMap),
  changes: () => import("./changes/changes").then((module) => module.Changes),
  metrics: () => import("./metrics/metrics").then((module) => module.Metrics),
  logs: () => import("./logs/logs-view").then((module) => module.LogsView),
  events: () => import("./events-view").then((module) => module.EventsView),
  audit: () => import("./audit/audit-view").then((module) => module.AuditView),
  components: () => import("./components/components").then((module) => module.Components),
} satisfies Partial<Record<View, () => Promise<ComponentType<ViewProps>>>>;

function isLazy(view: View): view is keyof typeof LAZY {
  return view in LAZY;
}

function Connection({ followed: { failure, graph } }: { followed: Followed }) {
  if (failure.value === null) return null;
  const { error, since, isFinal } = failure.value;
  if (!graph.value.complete) return <Failure what="The objects are not known" error={error} />;
  return (
    <Notice kind="warning">
      <p>
        The objects are as they were <Age time={since} /> ago. {plain(error.message)}
        {!isFinal && " The page tries again."}
      </p>
      <RequestOf error={error} />
    </Notice>
  );
}

/** Returns the filter of the address. */
function readFilter(): Filter {
  const health = new Set((query.value.get("health") ?? "").split(","));
  return {
    text: query.value.get("q") ?? "",
    namespace: query.value.get("namespace") ?? "",
    health: new Set(HEALTH_ORDER.filter((state) => health.has(state))),
    all: query.value.get("all") === "1",
  };
}

/** The objects that the filter selects, as a tree or as a list. */
function ObjectsView({
  view,
  followed: { graph, failure },
  scope,
}: {
  view: "tree" | "list";
  followed: Followed;
  scope: Scope | null;
}) {
  const treeRows = useComputed(() =>
    rows(graph.value.nodes.values(), readFilter(), toggled.value, query.value.get("o")),
  );
  const listed = useComputed(() =>
    list(graph.value.nodes.values(), readFilter(), parseSorting(query.value.get("sort"))),
  );
  // Of the two signals, only the one that is read is computed.
  const isNothing = (view === "tree" ? treeRows.value : listed.value).length === 0;
  const { complete, loaded, nodes, partial, isCut } = graph.value;
  if (!complete) return failure.value === null ? <p class="muted">Loading the objects…</p> : null;
  return (
    <>
      <FilterBar graph={graph} scope={scope} />
      {!loaded && <Notice>agentk is still loading objects. More of them appear here.</Notice>}
      {isCut && (
        <Notice kind="warning">
          There are more objects than the {nodes.size} that this page shows. <code>kas tree</code> with a
          namespace shows others.
        </Notice>
      )}
      <Partial reasons={partial} />
      {isNothing && <Nothing isEmpty={nodes.size === 0} />}
      {!isNothing && (view === "tree" ? <Tree rows={treeRows} /> : <List nodes={listed} />)}
    </>
  );
}

function Nothing({ isEmpty }: { isEmpty: boolean }) {
  if (isEmpty) {
    return (
      <Notice>
        This caller may see no object of this cluster. The view <b>About</b> has the reasons: the rights of
        the caller in the cluster, and those of agentk.
      </Notice>
    );
  }
  return (
    <Notice>
      <p>
        The filter selects no object.{" "}
        <button
          type="button"
          onClick={() => {
            setQuery({ q: "", namespace: "", health: "", all: "" });
          }}
        >
          Remove the filter
        </button>
      </p>
    </Notice>
  );
}

function FilterBar({ graph, scope }: { graph: Followed["graph"]; scope: Scope | null }) {
  const search = useRef<HTMLInputElement>(null);
  const filter = readFilter();
  const counts = useComputed(() => countByHealth(graph.value.nodes.values(), readFilter().namespace));
  useShortcut("/", () => search.current?.focus());
  const toggle = (state: HealthState) => {
    const health = new Set(filter.health);
    if (!health.delete(state)) health.add(state);
    setQuery({ health: [...health].join(",") });
  };
  return (
    <div class="row filter" role="search">
      <input
        ref={search}
        type="search"
        aria-label="Search names, kinds, states and images"
        placeholder="Search   /"
        value={filter.text}
        onInput={(event) => {
          // A row that was closed before would hide the objects that match.
          toggled.value = new Map();
          setQuery({ q: event.currentTarget.value });
        }}
      />
      {scope === null && <NamespaceSelect nodes={graph.value.nodes} />}
      {HEALTH_ORDER.toReversed().map((state) => (
        <Toggle
          key={state}
          isOn={filter.health.has(state)}
          onClick={() => {
            toggle(state);
          }}
        >
          <Health state={state} count={counts.value.get(state) ?? 0} />
        </Toggle>
      ))}
      <Toggle
        isOn={filter.all}
        title="With old ReplicaSets, completed Jobs, ConfigMaps and others that do no work of their own"
        onClick={() => {
          setQuery({ all: filter.all ? "" : "1" });
        }}
      >
        All kinds
      </Toggle>
    </div>
  );
}

function Toggle({
  isOn,
  title,
  onClick,
  children,
}: {
  isOn: boolean;
  title?: string;
  onClick: () => void;
  children: ComponentChildren;
}) {
  return (
    <button type="button" aria-pressed={isOn} title={title} onClick={onClick}>
      {children}
    </button>
  );
}
