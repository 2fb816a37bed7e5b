/** The paths of an agent. */

/** Returns the path of the page of an agent, or, with `path`, that of a request to one of its services. */
export function agentPath(agent: string, path = ""): string {
  return `/agents/${encodeURIComponent(agent)}${path}`;
}
