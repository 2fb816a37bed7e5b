/** The service `gitops` of an agent: projects of manifests, and commands about them. */

import { getJson, request } from "./client";
import type { ApplicationDescriptor } from "./graph";
import { lines } from "./lines";
import { agentPath } from "./paths";

export type ProjectState =
  | "pending"
  | "syncing"
  | "synced"
  | "out-of-sync"
  | "degraded"
  | "suspended"
  | "held"
  | "orphaned"
  | "failed"
  | "inventory-lost"
  | "contested"
  | "empty"
  | "unattended"
  | "unknown";

export interface Commit {
  id: string;
  subject?: string;
  author?: string;
}

export interface ObjectId {
  group?: string;
  kind: string;
  namespace?: string;
  name: string;
}

export interface ObjectError {
  object?: ObjectId;
  file?: string;
  message: string;
}

export interface ObjectCounts {
  total: number;
  applied: number;
  unchanged: number;
  pruned: number;
  kept: number;
  failed: number;
  degraded: number;
  progressing: number;
  waiting?: number;
}

/** An object that a sync waits for, with the reason. The time is in milliseconds. */
export interface AwaitedObject {
  object: ObjectId;
  reason: string;
  since: number;
}

/** An object that would be deleted. `takes` is what goes with it and cannot be had back from Git. */
export interface HeldObject extends ObjectId {
  takes?: string;
}

/**
 * Deletions that wait for an approval. `count` is the number of all objects, and the list has the first ones. The time is in milliseconds;
 * 0 is unknown.
 */
export interface HeldDeletions {
  code: string;
  count: number;
  objects: HeldObject[];
  reason?: string;
  commit?: string;
  since?: number;
}

/** The inventory that agentk would write in place of a lost one. `left` of the `count` objects are not in Git. */
export interface RecoveryPlan {
  code: string;
  count: number;
  left: number;
  /** The first of those that are not in Git. */
  objects: ObjectId[];
  /** The kinds that cannot be listed, with the reasons. */
  unknown?: string[];
}

/** One sync of the past. Times are in milliseconds. */
export interface SyncRecord {
  commit: string;
  ended: number;
  duration: number;
  state: ProjectState;
  objects: ObjectCounts;
}

export interface Project {
  project: string;
  reference: string;
  state: ProjectState;
  message: string;
  /** The reason why kas has no files now. */
  problem?: string;
  /** The commit that is complete. */
  synced?: Commit;
  /** The commit that is being applied, or whose deletions wait. */
  working?: Commit;
  attempted?: Commit;
  /** The first objects that the sync waits for. */
  waiting?: AwaitedObject[];
  /** The first objects that start, after the commit was applied. Nothing waits for them. */
  starting?: AwaitedObject[];
  /** The time at which agentk saw the cluster in this state, in milliseconds; 0 is unknown. */
  as_of?: number;
  held?: HeldDeletions;
  recovery?: RecoveryPlan;
  settings?: { suspend?: boolean };
  objects: ObjectCounts;
  errors?: ObjectError[];
  kept?: ObjectError[];
  history?: SyncRecord[];
}

export type Command = "sync" | "suspend" | "resume" | "approve" | "prune" | "recover";

/** The difference of one field. The values of Secrets are masked. */
export interface FieldDiff {
  path: string;
  before?: unknown;
  after?: unknown;
}

export interface ObjectDiff {
  action: "create" | "change" | "recreate" | "delete" | "keep";
  object: ObjectId;
  file?: string;
  note?: string;
  fields?: FieldDiff[];
}

/** An Application of `app.k8s.io` in a manifest. Its texts are not trusted. */
export interface ManifestApplication {
  object: ObjectId;
  file: string;
  descriptor: ApplicationDescriptor;
}

export interface Diff {
  objects: ObjectDiff[];
  errors: ObjectError[];
  /** True if there are more objects than the page shows. */
  isCut: boolean;
  commit: Commit | null;
  unchanged: number;
  /** The reasons why something was not compared. */
  notes: string[];
  applications: ManifestApplication[];
}

type DiffLine =
  | { object: ObjectDiff }
  | { error: ObjectError }
  | { end: Partial<Pick<Diff, "unchanged" | "notes" | "applications">> & { commit?: Commit } };

/** The most objects and characters of a diff that the page keeps, and the longest line. */
const MAX_OBJECTS = 1000;
const MAX_SIZE = 16 << 20;
const MAX_LINE = 8 << 20;

function projectsPath(agent: string): string {
  return agentPath(agent, "/gitops/v1/projects");
}

export async function getProjects(agent: string, signal?: AbortSignal): Promise<Project[]> {
  const { projects } = await getJson<{ projects: Project[] }>(projectsPath(agent), signal);
  return projects;
}

/** Sends a command about a project. `code` approves exactly the deletions, or the inventory, that the project has shown. */
export async function command(
  agent: string,
  project: string,
  name: Command,
  signal: AbortSignal,
  code = "",
): Promise<void> {
  const query = code === "" ? "" : `?code=${encodeURIComponent(code)}`;
  const path = `${projectsPath(agent)}/${encodeURIComponent(project)}/${name}${query}`;
  await request(path, { method: "POST", signal });
}

/** Another version of a repository than the one that a project follows, or another directory of it. */
export interface Version {
  ref?: { branch: string } | { tag: string } | { commit: string };
  directory?: string;
}

/** Returns the version that a text names: a branch, tags/NAME or the id of a commit, as for `kas gitops diff --ref`. */
export function parseVersion(ref: string, directory: string): Version {
  const name = ref.replace(/^refs\//, "");
  const version: Version = {};
  if (/^([0-9a-f]{40}|[0-9a-f]{64})$/.test(ref)) version.ref = { commit: ref };
  else if (name.startsWith("tags/")) version.ref = { tag: name.slice("tags/".length) };
  else if (name !== "") version.ref = { branch: name.replace(/^heads\//, "") };
  if (directory !== "") version.directory = directory;
  return version;
}

/** Returns what a sync would change now. It writes nothing. */
export async function getDiff(
  agent: string,
  project: string,
  signal: AbortSignal,
  version: Version = {},
): Promise<Diff> {
  const path = `${projectsPath(agent)}/${encodeURIComponent(project)}/diff`;
  const headers = { "Content-Type": "application/json" };
  const response = await request(path, { method: "POST", headers, body: JSON.stringify(version), signal });
  const diff = { objects: [] as ObjectDiff[], errors: [] as ObjectError[], isCut: false };
  let size = 0;
  for await (const text of lines(response, MAX_LINE)) {
    size += text.length;
    const line = JSON.parse(text) as DiffLine;
    if ("end" in line) {
      const { commit = null, unchanged = 0, notes = [], applications = [] } = line.end;
      return { ...diff, commit, unchanged, notes, applications };
    }
    const list: unknown[] = "object" in line ? diff.objects : diff.errors;
    if (list.length >= MAX_OBJECTS || size > MAX_SIZE) diff.isCut = true;
    else list.push("object" in line ? line.object : line.error);
  }
  throw new Error("the diff has no end: the connection was cut");
}
