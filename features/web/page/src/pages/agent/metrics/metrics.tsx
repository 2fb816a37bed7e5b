/** Charts of the Prometheus server in a cluster, and queries of the reader. */

import { useState } from "preact/hooks";
import { queryRange } from "../../../api/prometheus";
import { query, setQuery } from "../../../router";
import { plain } from "../../../text";
import { useLoaded } from "../../../ui/loader";
import { Failure, Notice, Partial } from "../../../ui/notice";
import type { ViewProps } from "../agent";
import { NamespaceSelect } from "../namespaces";
import { Chart } from "./chart";
import { chartData, quote, stepOf, type Unit } from "./series";

const RANGES = { "1h": 3600, "6h": 6 * 3600, "24h": 24 * 3600, "7d": 7 * 24 * 3600 } as const;
type Range = keyof typeof RANGES;
/** The pause between two queries of a chart, in milliseconds. */
const INTERVAL = 30_000;

interface Question {
  title: string;
  unit: Unit;
  text: string;
}

/** Returns the queries about the pods of a namespace, or of all namespaces. */
function questions(namespace: string): Question[] {
  const [by, where] = namespace === "" ? ["namespace", ""] : ["pod", `namespace=${quote(namespace)},`];
  const rate = (metric: string, more: string) => `sum by (${by}) (rate(${metric}{${where}${more}}[5m]))`;
  return [
    { title: "CPU", unit: "cores", text: rate("container_cpu_usage_seconds_total", 'container!=""') },
    {
      title: "Memory",
      unit: "bytes",
      text: `sum by (${by}) (container_memory_working_set_bytes{${where}container!=""})`,
    },
    {
      title: "Network, received and sent",
      unit: "bytes/s",
      text: `${rate("container_network_receive_bytes_total", 'pod!=""')} + ${rate("container_network_transmit_bytes_total", 'pod!=""')}`,
    },
    {
      title: "Restarts in the last hour",
      unit: "",
      text: `sum by (${by}) (increase(kube_pod_container_status_restarts_total{${where}pod!=""}[1h])) > 0`,
    },
  ];
}

export function Metrics({ agent, scope, graph }: ViewProps) {
  const namespace = scope?.namespace ?? query.value.get("namespace") ?? "";
  const asked = query.value.get("range") ?? "";
  const range: Range = asked in RANGES ? (asked as Range) : "1h";
  const own = query.value.get("promql") ?? "";
  return (
    <>
      <div class="row">
        {scope === null && <NamespaceSelect nodes={graph.nodes} />}
        {(Object.keys(RANGES) as Range[]).map((name) => (
          <button
            key={name}
            type="button"
            aria-pressed={name === range}
            onClick={() => {
              setQuery({ range: name === "1h" ? "" : name });
            }}
          >
            {name}
          </button>
        ))}
      </div>
      <QueryBox text={own} />
      {own !== "" && (
        <Panel agent={agent} question={{ title: own, unit: "", text: own }} range={range} isOwn />
      )}
      <div class="charts">
        {questions(namespace).map((question) => (
          <Panel key={question.title} agent={agent} question={question} range={range} />
        ))}
      </div>
    </>
  );
}

/** A query in PromQL, which the address has, so that it can be sent to others. */
function QueryBox({ text }: { text: string }) {
  const [draft, setDraft] = useState(text);
  return (
    <form
      class="row filter"
      role="search"
      onSubmit={(event) => {
        event.preventDefault();
        setQuery({ promql: draft.trim() }, false);
      }}
    >
      <input
        type="search"
        class="mono"
        aria-label="PromQL"
        placeholder="PromQL, such as sum by (pod) (rate(http_requests_total[5m]))"
        spellcheck={false}
        value={draft}
        onInput={(event) => {
          setDraft(event.currentTarget.value);
        }}
      />
      <button type="submit">Run</button>
    </form>
  );
}

function Panel({
  agent,
  question: { title, unit, text },
  range,
  isOwn = false,
}: {
  agent: string;
  question: Question;
  range: Range;
  isOwn?: boolean;
}) {
  const key = `metrics/${agent}/${range}/${text}`;
  const load = async (signal: AbortSignal) => {
    const end = Math.floor(Date.now() / 1000);
    const step = stepOf(RANGES[range]);
    const result = await queryRange(agent, text, { start: end - RANGES[range], end, step }, signal);
    return { data: chartData(result.series), warnings: result.warnings };
  };
  const { value, error } = useLoaded(key, load, INTERVAL);
  return (
    <section class="stack" aria-label={plain(title, 1000)}>
      <h2 class={isOwn ? "mono wrap" : "wrap"}>{plain(title, 1000)}</h2>
      {error !== null && <Failure what="The query failed" error={error} />}
      {value === null && error === null && <p class="muted">Asking Prometheus…</p>}
      {value !== null && value.data.lines.length === 0 && (
        <Notice>
          Prometheus has no value for this.{" "}
          {!isOwn && (
            <details>
              <summary>Query</summary>
              <code class="wrap">{plain(text, 1000)}</code>
            </details>
          )}
        </Notice>
      )}
      {value !== null && value.data.lines.length > 0 && <Chart title={title} data={value.data} unit={unit} />}
      {value !== null && <Partial reasons={value.warnings} />}
    </section>
  );
}
