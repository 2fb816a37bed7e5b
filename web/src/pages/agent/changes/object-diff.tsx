import { getDiff, getProjects, type ObjectDiff } from "../../../api/gitops";
import { keyOf } from "../../../api/kubernetes";
import type { Node } from "../../../api/graph";
import { plain } from "../../../text";
import { useLoaded } from "../../../ui/loader";
import { Failure, Notice } from "../../../ui/notice";
import type { TabProps } from "../drawer";
import { ObjectView } from "./diff";

/** The most projects that are compared. */
const MAX_PROJECTS = 10;

interface Comparison {
  project: string;
  diff: ObjectDiff;
}

/** The difference between an object and Git. It writes nothing. */
export function ObjectDiffTab({ agent, node }: TabProps) {
  const load = (signal: AbortSignal) => compare(agent, node, signal);
  const { value, error } = useLoaded(`object-diff/${agent}/${node.uid}/${node.sequence}`, load);
  if (error !== null) return <Failure what="The object cannot be compared with Git" error={error} />;
  if (value === null) return <p class="muted">Comparing the object with Git…</p>;
  if (value.length === 0) return <Notice>The object is as in Git.</Notice>;
  return (
    <>
      {value.map(({ project, diff }) => (
        <section key={project} aria-label={plain(project, 256)}>
          <h3 class="wrap">{plain(project, 256)}</h3>
          <ObjectView diff={diff} />
        </section>
      ))}
    </>
  );
}

/** Returns what a sync of the projects of the agent would change of an object. */
async function compare(agent: string, node: Node, signal: AbortSignal): Promise<Comparison[]> {
  const { group, kind, namespace, name } = keyOf(node);
  const projects = (await getProjects(agent, signal)).filter(({ state }) => state !== "orphaned");
  const found: Comparison[] = [];
  // One after another: each comparison renders a project and reads all of its objects.
  for (const { project } of projects.slice(0, MAX_PROJECTS)) {
    const { objects } = await getDiff(agent, project, signal);
    const diff = objects.find(
      ({ object }) =>
        (object.group ?? "") === group &&
        object.kind === kind &&
        (object.namespace ?? "") === namespace &&
        object.name === name,
    );
    if (diff !== undefined) found.push({ project, diff });
  }
  return found;
}
