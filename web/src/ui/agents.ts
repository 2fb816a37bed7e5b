import { useEffect, useState } from "preact/hooks";
import type { AgentList } from "../api/kas";
import { live } from "../api/live";
import type { Loaded } from "./loader";

/** Follows the list of the caller's agents while the component is shown. With an error, the last list stays. */
export function useAgents(): Loaded<AgentList> {
  const [state, setState] = useState<Loaded<AgentList>>({ value: null, error: null });
  useEffect(
    () =>
      live.followAgents({
        onList: (value) => {
          setState({ value, error: null });
        },
        onFailure: (error) => {
          setState((last) => ({ ...last, error }));
        },
      }),
    [],
  );
  return state;
}
