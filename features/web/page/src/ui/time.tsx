import { signal } from "@preact/signals";
import { age } from "../text";

/** The present time, which moves every ten seconds. */
export const now = signal(Date.now());
setInterval(() => {
  now.value = Date.now();
}, 10_000);

/** The age of a time, as text or in milliseconds. The time itself is in the title: in the zone of the reader, and in UTC. */
export function Age({ time }: { time: string | number | null | undefined }) {
  const date = time ? new Date(time) : null;
  if (date === null || Number.isNaN(date.getTime())) return <span class="muted">–</span>;
  const title = `${date.toLocaleString()} (${date.toISOString()})`;
  return (
    <time dateTime={date.toISOString()} title={title}>
      {age(date.toISOString(), now.value)}
    </time>
  );
}
