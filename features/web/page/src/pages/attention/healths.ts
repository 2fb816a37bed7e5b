/** The health of all agents, which is asked for again when the objects of an agent that are not healthy change. */

import { useEffect, useState } from "preact/hooks";
import { isAbort } from "../../api/client";
import { getHealth, type HealthReport } from "../../api/graph";
import type { Agent } from "../../api/kas";
import { live, MAX_WATCHES } from "../../api/live";

/** The agents that are asked at the same time. */
const AT_ONCE = 16;
/** The time in which an agent has to answer, in milliseconds. */
const TIMEOUT = 15_000;
/** The shortest time between two reports of one agent. */
const PAUSE = 2000;
/** The time after which an agent without a change is asked again: warnings are events, which no watch has. */
const REFRESH = 30_000;
/** The objects that make a report another one. The numbers of healthy objects may be older. */
const CHANGES = new URLSearchParams({ health: "degraded,progressing,unknown" });

export interface AgentHealth {
  report: HealthReport | null;
  error: unknown;
}

/** Returns the health of the agents by their names: an agent without one has not answered yet. */
export function useHealths(agents: readonly Agent[]): ReadonlyMap<string, AgentHealth> {
  const [healths, setHealths] = useState<ReadonlyMap<string, AgentHealth>>(new Map());
  const isVisible = useVisible();
  const names = agents.map(({ name }) => name);
  useEffect(() => {
    // A tab in the background would use up the watches of agentk.
    if (!isVisible) return undefined;
    const reports = new Reports((name, health) => {
      setHealths((last) => new Map(last).set(name, health));
    });
    const stops = names.map((name, index) => {
      reports.ask(name);
      if (index >= MAX_WATCHES) return () => undefined;
      const again = () => {
        reports.ask(name);
      };
      const onEvent = ({ event }: { event: string }) => {
        if (event === "commit") again();
      };
      return live.follow(name, CHANGES, { onEvent, onFailure: again });
    });
    const timer = setInterval(() => {
      for (const name of names) reports.ask(name);
    }, REFRESH);
    return () => {
      clearInterval(timer);
      reports.stop();
      for (const stop of stops) stop();
    };
  }, [names.join("\n"), isVisible]);
  return healths;
}

/** Asks agents for their health, a few at the same time and none of them too often. */
class Reports {
  readonly #stop = new AbortController();
  /** The agents to ask, in the order of their changes. */
  readonly #waiting = new Set<string>();
  /** The agents that are being asked, or were a moment ago. */
  readonly #resting = new Set<string>();
  #running = 0;

  constructor(readonly onHealth: (name: string, health: AgentHealth) => void) {}

  ask(name: string): void {
    this.#waiting.add(name);
    this.#next();
  }

  stop(): void {
    this.#stop.abort();
  }

  #next(): void {
    for (const name of this.#waiting) {
      if (this.#running >= AT_ONCE || this.#stop.signal.aborted) return;
      if (this.#resting.has(name)) continue;
      this.#waiting.delete(name);
      void this.#load(name);
    }
  }

  async #load(name: string): Promise<void> {
    const { signal } = this.#stop;
    this.#running += 1;
    this.#resting.add(name);
    try {
      const report = await getHealth(name, null, AbortSignal.any([signal, AbortSignal.timeout(TIMEOUT)]));
      if (!signal.aborted) this.onHealth(name, { report, error: null });
    } catch (error) {
      if (!signal.aborted && !isAbort(error)) this.onHealth(name, { report: null, error });
    }
    this.#running -= 1;
    setTimeout(() => {
      this.#resting.delete(name);
      this.#next();
    }, PAUSE);
    this.#next();
  }
}

function useVisible(): boolean {
  const [isVisible, setVisible] = useState(!document.hidden);
  useEffect(() => {
    const change = () => {
      setVisible(!document.hidden);
    };
    document.addEventListener("visibilitychange", change);
    return () => {
      document.removeEventListener("visibilitychange", change);
    };
  }, []);
  return isVisible;
}
