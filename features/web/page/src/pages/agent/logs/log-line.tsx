import Anser from "anser";
import { useMemo } from "preact/hooks";
import { plain } from "../../../text";
import type { Line } from "./merge";

/** The classes of colours in `agent.css`. Other ones than these are left out. */
const COLOURS = new Set(["black", "red", "green", "yellow", "blue", "magenta", "cyan", "white"]);

/** The most colours of a line, after which the rest has none. */
const MAX_PARTS = 200;

/** One line of a log. Of its escape sequences, only colours have an effect. */
export function LogLine({ line: { pod, time, text }, withPod }: { line: Line; withPod: boolean }) {
  // Other lines arrive all the time, and this one stays as it is.
  const parts = useMemo(() => split(text), [text]);
  return (
    <>
      {withPod && (
        <span class="muted" title={plain(`${pod} ${time}`, 320)}>
          {plain(pod.slice(pod.lastIndexOf("-") + 1), 64)}{" "}
        </span>
      )}
      {parts.map((part, index) => (
        <span key={index} class={classOf(part.fg)}>
          {plain(part.content, 16_384)}
        </span>
      ))}
      {"\n"}
    </>
  );
}

function split(text: string): { fg: string | null; content: string }[] {
  const line = text.endsWith("\r") ? text.slice(0, -1) : text;
  if (!line.includes("\u001b")) return [{ fg: null, content: line }];
  const parts = Anser.ansiToJson(line, { use_classes: true, remove_empty: true });
  if (parts.length <= MAX_PARTS) return parts;
  const rest = parts.slice(MAX_PARTS).map(({ content }) => content);
  return [...parts.slice(0, MAX_PARTS), { fg: null, content: rest.join("") }];
}

function classOf(colour: string | null): string | undefined {
  const name = colour?.replace(/^ansi-(bright-)?/, "") ?? "";
  return COLOURS.has(name) ? `ansi-${name}` : undefined;
}
