/** The commands about a project that the page offers. Pure. */

import type { Command, HeldDeletions, Project, RecoveryPlan } from "../../../api/gitops";

export interface ProjectCommand {
  /** The name of the button. */
  name: string;
  command: Command;
  /** The effect, in one sentence. */
  effect: string;
  /** The code of the plan that the command approves, which is for exactly what the dialog shows. */
  code?: string;
  held?: HeldDeletions;
  recovery?: RecoveryPlan;
}

const SYNC: ProjectCommand = {
  name: "Sync",
  command: "sync",
  effect: "agentk compares the newest commit with the cluster at once, and reverts changes of others.",
};
const SUSPEND: ProjectCommand = {
  name: "Suspend",
  command: "suspend",
  effect: "Later commits wait. The objects stay as they are.",
};
const RESUME: ProjectCommand = {
  name: "Resume",
  command: "resume",
  effect: "agentk applies the newest commit.",
};
const PRUNE: ProjectCommand = {
  name: "Prune",
  command: "prune",
  effect: "agentk shows the objects that it would delete. It deletes none before they are approved.",
};
const LOOK: ProjectCommand = {
  name: "Find objects",
  command: "recover",
  effect:
    "agentk shows the objects in the cluster that belong to the project. It writes nothing before this is approved.",
};

/** Returns the verb of the service that the caller needs for a command. */
export function verbOf(command: Command): string {
  switch (command) {
    case "sync":
      return "sync";
    case "suspend":
    case "resume":
      return "suspend";
    default:
      return "approve";
  }
}

/** Returns what may be done with a project now. */
export function commandsOf({ state, settings, held, recovery }: Project): ProjectCommand[] {
  switch (state) {
    case "orphaned":
      return [PRUNE];
    case "suspended":
      // The configuration decides about a suspension of its own.
      return settings?.suspend === true ? [] : [RESUME];
    case "held":
      // What was held before a suspension is not approved now.
      return held === undefined ? [SYNC, SUSPEND] : [SYNC, SUSPEND, approval(held)];
    case "inventory-lost":
      // No other command has an effect.
      return recovery === undefined ? [LOOK] : [recover(recovery), { ...LOOK, name: "Find objects again" }];
    default:
      return [SYNC, SUSPEND];
  }
}

function approval(held: HeldDeletions): ProjectCommand {
  const effect = "agentk deletes exactly these objects.";
  return { name: "Approve", command: "approve", effect, code: held.code, held };
}

function recover(recovery: RecoveryPlan): ProjectCommand {
  const effect =
    "agentk makes exactly these objects the inventory again, and those that are not in Git wait for an approval then. A project that is suspended then can be resumed.";
  return { name: "Recover", command: "recover", effect, code: recovery.code, recovery };
}

/** Returns the numbers of a recovery plan: `12 objects, 1 of them not in Git`. */
export function recoverySummary({ count, left }: RecoveryPlan): string {
  const objects = countOf(count);
  if (count === 0) return objects;
  return left === 0 ? `${objects}, all of them in Git` : `${objects}, ${left} of them not in Git`;
}

/** Returns a number of objects: `1 object`. */
export function countOf(objects: number): string {
  return `${objects} ${objects === 1 ? "object" : "objects"}`;
}
