import Anser from "anser";
import { plain } from "../../text";

/** The classes of colours in `agent.css`. Other ones than these are left out. */
const COLOURS = new Set(["black", "red", "green", "yellow", "blue", "magenta", "cyan", "white"]);

/** One line of a log. Of its escape sequences, only colours have an effect. */
export function LogLine({ text }: { text: string }) {
  const line = text.endsWith("\r") ? text.slice(0, -1) : text;
  if (!line.includes("\u001b")) return <>{`${plain(line, 16_384)}\n`}</>;
  const parts = Anser.ansiToJson(line, { use_classes: true, remove_empty: true });
  return (
    <>
      {parts.map((part, index) => (
        <span key={index} class={classOf(part.fg)}>
          {plain(part.content, 16_384)}
        </span>
      ))}
      {"\n"}
    </>
  );
}

function classOf(colour: string | null): string | undefined {
  const name = colour?.replace(/^ansi-(bright-)?/, "") ?? "";
  return COLOURS.has(name) ? `ansi-${name}` : undefined;
}
