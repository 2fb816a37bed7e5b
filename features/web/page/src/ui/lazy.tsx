import type { ComponentType } from "preact";
import { useState } from "preact/hooks";
import { isAbort, request, RequestFailure } from "../api/client";
import { useLoaded } from "./loader";
import { Failure, Notice } from "./notice";

/** The pause between two attempts to load a part while kas is away, in milliseconds. */
const PAUSE = 2000;

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
  const [isAway, setAway] = useState(false);
  const { value: Part, error } = useLoaded(`part/${name}`, (signal) => loadPart(load, setAway, signal));
  if (error !== null) return <Failure what="kas has other files now. Reload the page" error={error} />;
  if (Part !== null) return <Part {...props} />;
  if (!isAway) return <p class="muted">Loading…</p>;
  return (
    <Notice kind="warning">
      kas does not respond, so that this part of the page cannot be loaded. The page tries again.
    </Notice>
  );
}

/** Loads a part. It is missing for good only if kas responds, and does not have it. */
async function loadPart<T>(
  load: () => Promise<T>,
  setAway: (isAway: boolean) => void,
  signal: AbortSignal,
): Promise<T> {
  let wasAway = false;
  for (;;) {
    try {
      return await load();
    } catch (error) {
      const isAway = !(await responds(signal));
      // kas may have come back between the two requests.
      if (!isAway && !wasAway) throw error;
      wasAway = isAway;
      setAway(isAway);
    }
    await new Promise((resolve) => setTimeout(resolve, PAUSE));
    signal.throwIfAborted();
  }
}

async function responds(signal: AbortSignal): Promise<boolean> {
  try {
    await request("/web/v1/session", { signal });
    return true;
  } catch (error) {
    if (isAbort(error)) throw error;
    return error instanceof RequestFailure && error.status !== 0 && error.status < 500;
  }
}
