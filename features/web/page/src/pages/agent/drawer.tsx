/** One object beside the tree. */

import type { ReadonlySignal } from "@preact/signals";
import type { ComponentType } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import type { Node } from "../../api/graph";
import { keyOf } from "../../api/kubernetes";
import { WITH_LOGS } from "../../graph/pods";
import type { GraphState } from "../../graph/store";
import { query, setQuery } from "../../router";
import { capitalized, kubectlCommand, plain, safeLink } from "../../text";
import { mayUse, useRights } from "../../ui/agents";
import { Health } from "../../ui/health";
import { Lazy } from "../../ui/lazy";
import { Notice } from "../../ui/notice";
import { Tabs } from "../../ui/tabs";
import { useShortcut } from "../../ui/shortcuts";
import { Age } from "../../ui/time";
import { ActionBar } from "./actions/action-bar";
import { Relations } from "./relations";

const TABS = ["summary", "conditions", "yaml", "events", "logs", "git"] as const;
type TabName = (typeof TABS)[number];
/** The services from which the tabs are. */
const SERVICES: Record<Exclude<TabName, "summary">, string> = {
  conditions: "kubernetes",
  yaml: "kubernetes",
  events: "kubernetes",
  logs: "kubernetes",
  git: "gitops",
};
/** The label of objects that a project of manifests manages (KEP-3659). */
const APPLYSET = "applyset.kubernetes.io/part-of";

/** The properties of the tabs that read the Kubernetes API. */
export interface TabProps {
  agent: string;
  node: Node;
  graph: GraphState;
}

export function Drawer({
  agent,
  uid,
  graph,
}: {
  agent: string;
  uid: string;
  graph: ReadonlySignal<GraphState>;
}) {
  const found = graph.value.nodes.get(uid);
  // The last state of an object that was deleted stays readable.
  const last = useRef<Node | undefined>(undefined);
  if (found) last.current = found;
  const node = found ?? last.current;
  const heading = useRef<HTMLHeadingElement>(null);
  const close = () => {
    const origin = document.querySelector<HTMLElement>('[role="row"][tabindex="0"], .map-item[aria-current]');
    setQuery({ o: "", tab: "" }, false);
    origin?.focus();
  };
  useShortcut("Escape", close);
  useEffect(() => {
    heading.current?.focus();
  }, []);
  const rights = useRights(agent);
  const tabs = (node === undefined ? TABS : tabsOf(node)).filter(
    (name) => name === "summary" || mayUse(rights, SERVICES[name]),
  );
  const tab = tabs.find((name) => name === query.value.get("tab")) ?? "summary";
  return (
    <section class="drawer stack" aria-label="Object">
      <div class="row spread nowrap">
        <h2 ref={heading} tabIndex={-1} class="wrap">
          {node ? `${plain(node.kind, 128)}/${plain(node.name, 260)}` : "Object"}
        </h2>
        <button type="button" aria-label="Close" title="Close (Esc)" onClick={close}>
          ✕
        </button>
      </div>
      {node === undefined && graph.value.complete && (
        <Notice>
          There is no object with this UID, or this caller may not see it. It may have been deleted since the
          link was made.
        </Notice>
      )}
      {node !== undefined && (
        <>
          {found === undefined && (
            <Notice kind="warning">This object was deleted. Its last state stays here.</Notice>
          )}
          <Tabs
            label="Views of the object"
            names={tabs}
            current={tab}
            titleOf={(name) => (name === "yaml" ? "YAML" : capitalized(name))}
            onSelect={(name) => {
              setQuery({ tab: name === "summary" ? "" : name });
            }}
          >
            {tab === "summary" && (
              <Summary agent={agent} node={node} graph={graph.value} isThere={found !== undefined} />
            )}
            {tab !== "summary" && (
              <Lazy
                key={`${tab}/${node.uid}`}
                name={tab}
                load={LAZY[tab]}
                props={{ agent, node, graph: graph.value }}
              />
            )}
          </Tabs>
        </>
      )}
    </section>
  );
}

/** The tabs that the first load does not need. */
const LAZY: Record<Exclude<TabName, "summary">, () => Promise<ComponentType<TabProps>>> = {
  conditions: () => import("./conditions").then((module) => module.Conditions),
  yaml: () => import("./yaml").then((module) => module.Yaml),
  events: () => import("./events").then((module) => module.Events),
  logs: () => import("./logs/logs").then((module) => module.Logs),
  git: () => import("./changes/object-diff").then((module) => module.ObjectDiffTab),
};

/** Returns the tabs of an object. The page does not load the values of a Secret for its conditions, which it has none of. */
function tabsOf({ kind, labels = {} }: Node): TabName[] {
  return TABS.filter((name) => {
    if (name === "conditions") return kind !== "Secret";
    if (name === "logs") return WITH_LOGS.has(kind);
    return name !== "git" || APPLYSET in labels;
  });
}

/** Returns the name of a detail as people write it: `Cluster IP` of `cluster_ip`. */
function titleOf(name: string): string {
  return capitalized(name.replaceAll("_", " ").replace(/\bip\b/, "IP"));
}

function Summary({
  agent,
  node,
  graph,
  isThere,
}: {
  agent: string;
  node: Node;
  graph: GraphState;
  isThere: boolean;
}) {
  const command = kubectlCommand(keyOf(node));
  const rights = useRights(agent);
  return (
    <>
      {mayUse(rights, "kubernetes") && (
        <ActionBar key={node.uid} agent={agent} node={node} graph={graph} isThere={isThere} />
      )}
      <dl class="facts">
        <dt>Health</dt>
        <dd>
          <Health state={node.health} />{" "}
          {node.since !== undefined && (
            <span class="muted small">
              for <Age time={node.since} />
            </span>
          )}
        </dd>
        {node.message !== undefined && node.message !== "" && (
          <>
            <dt>Reason</dt>
            <dd>{plain(node.message)}</dd>
          </>
        )}
        <Fact name="Namespace" value={node.namespace} />
        <Fact name="State" value={node.status} />
        {node.ready != null && <Fact name="Ready" value={`${node.ready.ready} of ${node.ready.desired}`} />}
        {(node.restarts ?? 0) > 0 && <Fact name="Restarts" value={`${node.restarts ?? 0}`} />}
        <dt>Age</dt>
        <dd>
          <Age time={node.created} />
        </dd>
        <Fact name="API" value={`${node.group ? `${node.group}/` : ""}${node.version}`} />
        <Fact name="UID" value={node.uid} />
        {Object.entries(node.details ?? {}).map(([name, value]) => (
          <Fact key={name} name={titleOf(name)} value={value} />
        ))}
        {(node.images ?? []).map((image) => (
          <Fact key={image} name="Image" value={image} />
        ))}
      </dl>
      {command !== null && (
        <div class="row nowrap">
          <code class="command">{command}</code>
          <Copy text={command} />
        </div>
      )}
      <Relations node={node} graph={graph} />
      <Labels labels={node.labels ?? {}} />
    </>
  );
}

function Fact({ name, value }: { name: string; value: string | undefined }) {
  if (value === undefined || value === "") return null;
  const link = safeLink(value);
  return (
    <>
      <dt>{plain(name, 330)}</dt>
      <dd>
        {link === null ? (
          plain(value)
        ) : (
          <a href={link} target="_blank" rel="noopener noreferrer nofollow">
            {plain(value)}
          </a>
        )}
      </dd>
    </>
  );
}

function Labels({ labels }: { labels: Record<string, string> }) {
  const pairs = Object.entries(labels);
  if (pairs.length === 0) return null;
  return (
    <details>
      <summary>{pairs.length === 1 ? "1 label" : `${pairs.length} labels`}</summary>
      <dl class="facts small">
        {pairs.map(([name, value]) => (
          <Fact key={name} name={name} value={value} />
        ))}
      </dl>
    </details>
  );
}

export function Copy({ text }: { text: string }) {
  const [result, setResult] = useState("");
  const copy = async () => {
    try {
      await navigator.clipboard.writeText(text);
      setResult("Copied");
    } catch {
      setResult("Not allowed");
    }
  };
  return (
    <button type="button" onClick={() => void copy()} aria-live="polite">
      {result || "Copy"}
    </button>
  );
}
