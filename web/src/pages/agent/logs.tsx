import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { isAbort } from "../../api/client";
import { containersOf, getLog, getObject, keyOf } from "../../api/kubernetes";
import { lines } from "../../api/lines";
import { useLoaded } from "../../ui/loader";
import { Failure, Notice } from "../../ui/notice";
import type { TabProps } from "./drawer";
import { LogLine } from "./log-line";

/** The most lines that the page keeps. */
const MAX_LINES = 5000;
/** The longest line, in characters. */
const MAX_LINE = 8192;
/** The time for which lines are collected before the page changes, in milliseconds. */
const BATCH = 150;

interface Line {
  number: number;
  text: string;
}

/** The log of a container of a pod. */
export function Logs({ agent, node }: TabProps) {
  const [chosen, setChosen] = useState("");
  const [previous, setPrevious] = useState(false);
  const [follow, setFollow] = useState(true);
  const [filter, setFilter] = useState("");
  const pod = useLoaded(`pod/${agent}/${node.uid}`, (signal) => getObject(agent, keyOf(node), signal));
  const containers = pod.value === null ? [] : containersOf(pod.value);
  const container = chosen || (containers[0] ?? "");
  const { log, error, isOpen } = useLog(agent, node, container, previous, follow && !previous);
  const shown = useMemo(() => {
    const wanted = filter.toLowerCase();
    return wanted === "" ? log : log.filter(({ text }) => text.toLowerCase().includes(wanted));
  }, [log, filter]);
  const box = useRef<HTMLPreElement>(null);
  const isAtEnd = useRef(true);
  useEffect(() => {
    if (box.current && isAtEnd.current) box.current.scrollTop = box.current.scrollHeight;
  }, [shown]);
  return (
    <>
      {pod.error !== null && <Failure what="The pod cannot be read" error={pod.error} />}
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
            download(`${node.name}.${container}.log`, log);
          }}
        >
          Download
        </button>
      </div>
      {error !== null && <Failure what="The log cannot be read" error={error} />}
      {log.length === 0 && error === null && !isOpen && container !== "" && (
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
        {shown.map(({ number, text }) => (
          <LogLine key={number} text={text} />
        ))}
      </pre>
      <p class="small muted">
        {shown.length} of {log.length} lines
        {log.length >= MAX_LINES && `; this page keeps the newest ${MAX_LINES}`}
      </p>
    </>
  );
}

/** Reads a log, from its last lines on. */
function useLog(
  agent: string,
  node: TabProps["node"],
  container: string,
  previous: boolean,
  follow: boolean,
) {
  const [log, setLog] = useState<Line[]>([]);
  const [error, setError] = useState<unknown>(null);
  const [isOpen, setOpen] = useState(true);
  useEffect(() => {
    if (container === "") return;
    const stop = new AbortController();
    let waiting: Line[] = [];
    let number = 0;
    const flush = () => {
      if (waiting.length === 0) return;
      const arrived = waiting;
      waiting = [];
      setLog((last) => [...last, ...arrived].slice(-MAX_LINES));
    };
    const read = async () => {
      setLog([]);
      setError(null);
      setOpen(true);
      try {
        const query = { container, previous, follow, tailLines: MAX_LINES };
        const response = await getLog(agent, keyOf(node), query, stop.signal);
        for await (const text of lines(response, MAX_LINE, true)) {
          waiting.push({ number, text });
          number += 1;
          if (waiting.length > MAX_LINES) waiting.shift();
        }
      } catch (failure) {
        if (!isAbort(failure)) setError(failure);
      }
      if (!stop.signal.aborted) {
        flush();
        setOpen(false);
      }
    };
    const timer = setInterval(flush, BATCH);
    void read();
    return () => {
      stop.abort();
      clearInterval(timer);
    };
  }, [agent, node.uid, container, previous, follow]);
  return { log, error, isOpen };
}

function download(name: string, log: readonly Line[]): void {
  const text = log.map((line) => `${line.text}\n`).join("");
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([text], { type: "text/plain" }));
  link.download = name;
  link.click();
  URL.revokeObjectURL(link.href);
}
