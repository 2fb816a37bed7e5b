import { useEffect, useState } from "preact/hooks";
import { isAbort } from "../api/client";

export interface Loaded<T> {
  value: T | null;
  error: unknown;
  /** The time at which the value arrived. */
  since: string | null;
}

const NOTHING = { value: null, error: null, since: null };

/**
 * Loads a value, and again each `interval` milliseconds while the page is visible. With an error, the last value stays.
 * Another `key` begins anew.
 */
export function useLoaded<T>(
  key: string,
  load: (signal: AbortSignal) => Promise<T>,
  interval: number | null = null,
): Loaded<T> {
  const [state, setState] = useState<Loaded<T> & { key: string }>({ key, ...NOTHING });
  useEffect(() => {
    const stop = new AbortController();
    let timer: ReturnType<typeof setTimeout> | undefined;
    const run = async () => {
      try {
        // A value that is loaded once is loaded in a tab in the background, too.
        if (!document.hidden || interval === null) {
          const value = await load(stop.signal);
          if (!stop.signal.aborted) setState({ key, value, error: null, since: new Date().toISOString() });
        }
      } catch (error) {
        if (!stop.signal.aborted && !isAbort(error)) {
          setState((last) => ({ ...(last.key === key ? last : { key, ...NOTHING }), error }));
        }
      }
      if (interval !== null && !stop.signal.aborted) timer = setTimeout(() => void run(), interval);
    };
    void run();
    return () => {
      stop.abort();
      clearTimeout(timer);
    };
  }, [key, interval]);
  return state.key === key ? state : NOTHING;
}
