import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { containersOf, getObject, keyOf } from "../../../api/kubernetes";
import { podsOf } from "../../../graph/pods";
import { plain } from "../../../text";
import { useLoaded } from "../../../ui/loader";
import { Failure, Notice } from "../../../ui/notice";
import type { TabProps } from "../drawer";
import { LogLine } from "./log-line";
import { blocksOf, type Line } from "./merge";
import { MAX_LINES, useLogs } from "./streams";

/** The most pods whose logs are read at the same time. Browsers open six connections to a server without TLS. */
const MAX_PODS = window.location.protocol === "https:" ? 10 : 3;

/** The log of a pod, or the logs of the pods of a workload. */
export function Logs({ agent, node, graph }: TabProps) {
  const [chosen, setChosen] = useState("");
  const [previous, setPrevious] = useState(false);
  const [follow, setFollow] = useState(true);
  const [filter, setFilter] = useState("");
  const all = podsOf(node, graph.nodes);
  const pods = all.slice(0, MAX_PODS);
  const newest = pods[0];
  const first = useLoaded(`pod/${agent}/${newest?.uid ?? ""}`, async (signal) =>
    newest === undefined ? null : getObject(agent, keyOf(newest), signal),
  );
  // The newest pod may change during a rollout; the names of the containers stay until those of the next one are there.
  const names = useRef<string[]>([]);
  if (first.value !== null) names.current = containersOf(first.value);
  const containers = names.current;
  const container = chosen || (containers[0] ?? "");
  const { log, errors, isOpen } = useLogs(agent, pods, { container, previous, follow: follow && !previous });
  const wanted = filter.toLowerCase();
  const shown = useMemo(() => log.lines.filter((line) => contains(line, wanted)).length, [log, wanted]);
  const box = useRef<HTMLPreElement>(null);
  const isAtEnd = useRef(true);
  useEffect(() => {
    if (box.current && isAtEnd.current) box.current.scrollTop = box.current.scrollHeight;
  }, [log, wanted]);
  return (
    <>
      {first.error !== null && <Failure what="The pod cannot be read" error={first.error} />}
      {newest === undefined && <Notice>There is no pod of this object now.</Notice>}
      {all.length > MAX_PODS && (
        <Notice>
          These are the logs of the {MAX_PODS} newest pods of {all.length}.
        </Notice>
      )}
      <div class="row">
        <select
          aria-label="Container"
          value={container}
          onChange={(event) => {
            setChosen(event.currentTarget.value);
          }}
        >
          {containers.map((name) => (
            <option key={name}>{name}</option>
          ))}
        </select>
        <button
          type="button"
          aria-pressed={previous}
          title="The log of the container before its last restart"
          onClick={() => {
            setPrevious(!previous);
          }}
        >
          Previous
        </button>
        <button
          type="button"
          aria-pressed={follow}
          disabled={previous}
          onClick={() => {
            setFollow(!follow);
          }}
        >
          Follow
        </button>
        <input
          type="search"
          aria-label="Show lines with this text"
          placeholder="Filter"
          value={filter}
          onInput={(event) => {
            setFilter(event.currentTarget.value);
          }}
        />
        <button
          type="button"
          onClick={() => {
            download(`${node.name}.${container}.log`, log.lines, pods.length > 1);
          }}
        >
          Download
        </button>
      </div>
      {[...errors].map(([pod, error]) => (
        <Failure key={pod} what={`The log of ${plain(pod, 260)} cannot be read`} error={error} />
      ))}
      {log.lines.length === 0 && errors.size === 0 && !isOpen && newest !== undefined && container !== "" && (
        <Notice>The container has written nothing.</Notice>
      )}
      <pre
        ref={box}
        class="code log"
        tabIndex={0}
        aria-label="Log"
        onScroll={(event) => {
          const { scrollTop, scrollHeight, clientHeight } = event.currentTarget;
          isAtEnd.current = scrollTop + clientHeight > scrollHeight - 40;
        }}
      >
        {blocksOf(log).map(({ number, lines }) => (
          <Block key={number} lines={lines} wanted={wanted} withPod={pods.length > 1} />
        ))}
      </pre>
      <p class="small muted">
        {shown} of {log.lines.length} lines
        {pods.length > 1 && ` of ${pods.length} pods`}
        {log.dropped > 0 && `; this page keeps the newest ${MAX_LINES}`}
      </p>
    </>
  );
}

function contains({ text }: Line, wanted: string): boolean {
  return wanted === "" || text.toLowerCase().includes(wanted);
}

/** Some lines with the wanted text. They are compared again only if one of them has changed, and the browser skips them out of sight. */
function Block({ lines, wanted, withPod }: { lines: readonly Line[]; wanted: string; withPod: boolean }) {
  return useMemo(() => {
    const shown = lines.filter((line) => contains(line, wanted));
    if (shown.length === 0) return null;
    return (
      <span class="log-block" style={{ containIntrinsicBlockSize: `auto ${shown.length * 1.5}em` }}>
        {shown.map((line) => (
          <LogLine key={`${line.uid}/${line.number}`} line={line} withPod={withPod} />
        ))}
      </span>
    );
  }, [wanted, withPod, ...lines]);
}

function download(name: string, log: readonly Line[], withPods: boolean): void {
  const text = log.map((line) => `${withPods ? `${line.pod} ${line.time} ` : ""}${line.text}\n`).join("");
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([text], { type: "text/plain" }));
  link.download = name;
  link.click();
  URL.revokeObjectURL(link.href);
}
