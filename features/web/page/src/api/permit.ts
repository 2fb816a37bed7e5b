/**
 * Permits for the streams of tabs. Without HTTP/2, browsers open six connections to a server for all tabs together: one stream in each of
 * six tabs would leave none for anything else, and the seventh tab would not even load.
 */

/** The streams that all tabs together keep open. */
const STREAMS = 3;
/** The pause between two attempts, in milliseconds. */
const PAUSE = 2000;
const SHORT_PAUSE = 100;

/** Returns whether kas answers over a protocol with one request in a connection. */
export function isScarce(): boolean {
  const types = ["navigation", "resource"];
  const entries = types.flatMap((type) => performance.getEntriesByType(type) as PerformanceResourceTiming[]);
  // A response from the cache of the browser has no protocol, also if kas has confirmed it.
  const known = entries.find((entry) => entry.nextHopProtocol);
  // Without TLS, browsers do not use HTTP/2.
  const isHttp1 = known
    ? known.nextHopProtocol.startsWith("http/1")
    : entries.some((entry) => entry.name.startsWith("http:"));
  return isHttp1 && "locks" in navigator;
}

/** Waits for a permit. Calls `onWait` if other tabs have all of them. Returns the function that gives it back. */
export async function acquire(signal: AbortSignal, onWait: () => void): Promise<() => void> {
  for (let attempt = 0; ; attempt += 1) {
    signal.throwIfAborted();
    for (let number = 0; number < STREAMS; number += 1) {
      const release = await tryAcquire(`kas-stream-${number}`);
      if (release !== null) return release;
    }
    // The last stream of this tab may have ended just now.
    if (attempt === 1) onWait();
    await new Promise((resolve) => setTimeout(resolve, attempt === 0 ? SHORT_PAUSE : PAUSE));
  }
}

/** Takes a lock that this tab holds until it gives it back, or ends. Returns `null` if another tab has it. */
function tryAcquire(name: string): Promise<(() => void) | null> {
  return new Promise((resolve, reject) => {
    const held = navigator.locks.request(name, { ifAvailable: true }, (lock) => {
      if (lock === null) {
        resolve(null);
        return;
      }
      return new Promise<void>((release) => {
        resolve(release);
      });
    });
    held.catch(reject);
  });
}
