/** The features of kas and agentk that need a program in the cluster. */

import rules from "../../../../../proto/src/graph/features.json";
import type { FeatureNeed } from "../api/graph";

/** A feature that lacks a component. */
export interface Lack {
  feature: string;
  name: string;
  needs: string[];
  state: FeatureNeed["state"];
  /** The command that installs a component, if none is there. */
  command: string | null;
  docs: string;
}

/**
 * Returns the features that lack a component. Their names and commands are those of kas, because people copy commands into a shell: an
 * agent sends the states only.
 */
export function lacks(reported: readonly FeatureNeed[]): Lack[] {
  return rules.flatMap(({ feature, name, needs, install }) => {
    const state = reported.find((one) => one.feature === feature)?.state;
    if (state === undefined || state === "present") return [];
    const command = state === "missing" ? install.command : null;
    return [{ feature, name, needs, state, command, docs: install.docs }];
  });
}
