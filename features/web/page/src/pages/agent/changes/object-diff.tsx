import { type Diff, getDiff, getProjects, type ObjectDiff, type ObjectId } from "../../../api/gitops";
import { keyOf, type ObjectKey } from "../../../api/kubernetes";
import { getGroups, type Node } from "../../../api/graph";
import { plain } from "../../../text";
import { useLoaded } from "../../../ui/loader";
import { Failure, Notice, Partial } from "../../../ui/notice";
import type { TabProps } from "../drawer";
import { ObjectView } from "./diff";
import { CommitName, ErrorText } from "./names";

/** The beginning of the id of a group that is a project of manifests. */
const PROJECT = "gitops:";

interface Comparison {
  /** The project that manages the object, or `null` if it is not known. */
  project: string | null;
  diff: Diff | null;
  /** What a sync would change of the object. */
  change: ObjectDiff | null;
}

/** The difference between an object and Git. It writes nothing. */
export function ObjectDiffTab({ agent, node }: TabProps) {
  const load = (signal: AbortSignal) => compare(agent, node, signal);
  const { value, error } = useLoaded(`object-diff/${agent}/${node.uid}/${node.sequence}`, load);
  if (error !== null) return <Failure what="The object cannot be compared with Git" error={error} />;
  if (value === null) return <p class="muted">Comparing the object with Git…</p>;
  const { project, diff, change } = value;
  if (project === null || diff === null) {
    return (
      <Notice kind="warning">
        It is not known which project manages the object: its inventory is gone, or this caller may not see
        it. The object was not compared.
      </Notice>
    );
  }
  const isCompared = diff.errors.length === 0 && diff.notes.length === 0 && !diff.isCut;
  return (
    <section class="stack" aria-label={plain(project, 256)}>
      <h3 class="wrap">
        {plain(project, 256)}
        {diff.commit !== null && (
          <span class="muted">
            {" "}
            at <CommitName commit={diff.commit} />
          </span>
        )}
      </h3>
      {change !== null && <ObjectView diff={change} />}
      {diff.errors.map((one, index) => (
        <Notice key={index} kind="error">
          <ErrorText error={one} />
        </Notice>
      ))}
      {change === null && isCompared && <Notice>The object is as in Git.</Notice>}
      {change === null && !isCompared && (
        <Notice kind="warning">
          No difference was found, but the comparison is not complete
          {diff.isCut && ": the project has more differences than this page reads"}.
        </Notice>
      )}
      <Partial reasons={diff.notes} />
    </section>
  );
}

/** Returns what a sync of the project of an object would change of it. */
async function compare(agent: string, node: Node, signal: AbortSignal): Promise<Comparison> {
  const key = keyOf(node);
  const project = await projectOf(agent, key, signal);
  if (project === null) return { project, diff: null, change: null };
  const diff = await getDiff(agent, project, signal);
  const errors = diff.errors.filter(({ object }) => object === undefined || isObject(object, key));
  const change = diff.objects.find(({ object }) => isObject(object, key)) ?? null;
  return { project, diff: { ...diff, errors }, change };
}

/** Returns the project that manages an object: the inventory in the cluster names it. */
async function projectOf(agent: string, key: ObjectKey, signal: AbortSignal): Promise<string | null> {
  const groups = await getGroups(agent, key, signal);
  const group = groups.find((id) => id.startsWith(PROJECT));
  if (group !== undefined) return group.slice(PROJECT.length);
  // Without the inventory, only a single project is no guess.
  const projects = (await getProjects(agent, signal)).filter(({ state }) => state !== "orphaned");
  return projects.length === 1 ? (projects[0]?.project ?? null) : null;
}

function isObject(object: ObjectId, { group, kind, namespace, name }: ObjectKey): boolean {
  return (
    (object.group ?? "") === group &&
    object.kind === kind &&
    (object.namespace ?? "") === namespace &&
    object.name === name
  );
}
