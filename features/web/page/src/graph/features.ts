/** The features of kas and agentk that need a program in the cluster. */

import rules from "../../../../../proto/src/graph/features.json";
import type { Component, FeatureNeed } from "../api/graph";

/** A feature that lacks a component. */
export interface Lack {
  feature: string;
  name: string;
  needs: string[];
  state: FeatureNeed["state"] | "optional";
  /** The command that installs a component, if none is there. */
  command: string | null;
  docs: string;
}

/**
 * Returns the features that lack a component. Their names and commands are those of kas, because people copy commands into a shell: an
 * agent sends the states only. A command that changes a component needs this component.
 */
export function lacks(reported: readonly FeatureNeed[], components: readonly Component[]): Lack[] {
  return rules.flatMap(({ feature, name, needs, optional, requires, install }) => {
    const state = reported.find((one) => one.feature === feature)?.state;
    if (state === undefined || state === "present") return [];
    const hasBase = requires === undefined || components.some(({ id }) => id === requires);
    const command = state === "missing" && hasBase ? install.command : null;
    const shown = state === "missing" && optional === true ? "optional" : state;
    return [{ feature, name, needs, state: shown, command, docs: install.docs }];
  });
}
