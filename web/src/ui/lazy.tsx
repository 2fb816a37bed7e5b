import type { ComponentType } from "preact";
import { useLoaded } from "./loader";
import { Failure } from "./notice";

/** A part of the page that the first load does not need. `name` identifies it. */
export function Lazy<P extends object>({
  name,
  load,
  props,
}: {
  name: string;
  load: () => Promise<ComponentType<P>>;
  props: P;
}) {
  const { value: Part, error } = useLoaded(`part/${name}`, load);
  if (error !== null) return <Failure what="kas has other files now. Reload the page" error={error} />;
  return Part === null ? <p class="muted">Loading…</p> : <Part {...props} />;
}
