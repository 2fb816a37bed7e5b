/** The projects of manifests: which commit the cluster has, what failed, and what waits for a person. */

import type { ComponentChildren } from "preact";
import { useState } from "preact/hooks";
import {
  type Command,
  command,
  getProjects,
  type ObjectError,
  type Project,
  type ProjectState,
  type SyncRecord,
} from "../../../api/gitops";
import { capitalized, plain } from "../../../text";
import { ConfirmDialog } from "../../../ui/dialog";
import { useLoaded } from "../../../ui/loader";
import { Failure, Notice } from "../../../ui/notice";
import { Age } from "../../../ui/time";
import { DiffView } from "./diff";
import { CommitName, ErrorText, objectName, shortId } from "./names";
import { Table } from "../../../ui/table";

/** The time that a command may take, in milliseconds. */
const TIMEOUT = 30_000;
/** The most objects of a list that are shown. */
const SHOWN = 100;

/** The sign and the colour of a state, which are those of the health of objects. */
const LOOKS: Readonly<Record<ProjectState, string>> = {
  pending: "progressing",
  syncing: "progressing",
  synced: "healthy",
  "out-of-sync": "degraded",
  degraded: "degraded",
  suspended: "suspended",
  held: "degraded",
  orphaned: "unknown",
  failed: "degraded",
};

export function Changes({ agent }: { agent: string }) {
  const [changes, setChanges] = useState(0);
  const key = `projects/${agent}/${changes}`;
  const { value, error, since } = useLoaded(key, (signal) => getProjects(agent, signal), 3000);
  // The last list stays until the one after a command is there.
  const [last, setLast] = useState<Project[] | null>(null);
  if (value !== null && value !== last) setLast(value);
  const projects = value ?? last;
  return (
    <>
      {error !== null && <Failure what="The projects are not up to date" error={error} since={since} />}
      {projects === null && error === null && <p class="muted">Loading the projects…</p>}
      {projects?.length === 0 && (
        <Notice>
          agentk applies no manifests from Git. The agent&apos;s configuration names projects in{" "}
          <code>gitops.manifest_projects</code>.
        </Notice>
      )}
      {projects?.map((project) => (
        <ProjectView
          key={project.project}
          agent={agent}
          project={project}
          onChange={() => {
            setChanges(changes + 1);
          }}
        />
      ))}
    </>
  );
}

function ProjectView({
  agent,
  project,
  onChange,
}: {
  agent: string;
  project: Project;
  onChange: () => void;
}) {
  const { objects } = project;
  const counts = [
    `${objects.total} in Git`,
    ...(["applied", "unchanged", "failed", "degraded", "progressing", "pruned", "kept"] as const)
      .filter((name) => objects[name] > 0)
      .map((name) => `${objects[name]} ${name}`),
  ];
  const isTried = project.attempted !== undefined && project.attempted.id !== project.synced?.id;
  return (
    <section class="stack project" aria-label={plain(project.project, 256)}>
      <h2 class="wrap">
        {plain(project.project, 256)} <span class={`health ${LOOKS[project.state]}`}>{project.state}</span>
      </h2>
      <dl class="facts">
        {project.message !== project.problem && <Fact name="State">{plain(project.message)}</Fact>}
        {project.problem !== undefined && <Fact name="Git">{plain(project.problem)}</Fact>}
        <Fact name="Follows">{plain(project.reference, 512)}</Fact>
        {project.synced && (
          <Fact name="In the cluster">
            <CommitName commit={project.synced} />
          </Fact>
        )}
        {isTried && project.attempted && (
          <Fact name="Tried">
            <CommitName commit={project.attempted} />
          </Fact>
        )}
        <Fact name="Objects">{counts.join(", ")}</Fact>
      </dl>
      <Errors title="What failed" errors={project.errors ?? []} open />
      <Errors title="Objects that left Git and stay" errors={project.kept ?? []} />
      <Commands agent={agent} project={project} onChange={onChange} />
      <History history={project.history ?? []} />
    </section>
  );
}

function Fact({ name, children }: { name: string; children: ComponentChildren }) {
  return (
    <>
      <dt>{name}</dt>
      <dd>{children}</dd>
    </>
  );
}

function Errors({ title, errors, open }: { title: string; errors: ObjectError[]; open?: boolean }) {
  if (errors.length === 0) return null;
  return (
    <details open={open}>
      <summary>
        {title} ({errors.length})
      </summary>
      <ul class="wrap">
        {errors.slice(0, SHOWN).map((error, index) => (
          <li key={index}>
            <ErrorText error={error} />
          </li>
        ))}
      </ul>
    </details>
  );
}

/** The effect of each command, in one sentence. */
const EFFECTS: Readonly<Record<Command, string>> = {
  sync: "agentk compares the newest commit with the cluster at once, and reverts changes of others.",
  suspend: "Later commits wait. The objects stay as they are.",
  resume: "agentk applies the newest commit.",
  approve: "agentk deletes exactly these objects.",
  prune: "agentk shows the objects that it would delete. It deletes none before they are approved.",
};

function Commands({ agent, project, onChange }: { agent: string; project: Project; onChange: () => void }) {
  // An approval is about what the dialog has shown, also if a newer commit is there meanwhile.
  const [chosen, setChosen] = useState<{ name: Command; held: Project["held"] } | null>(null);
  const [isCompared, setCompared] = useState(false);
  const { state } = project;
  // What was held before a suspension is not approved now.
  const held = state === "held" ? project.held : undefined;
  const commands = commandsOf(project);
  const name = plain(project.project, 256);
  return (
    <>
      <div class="row">
        {commands.map((one) => (
          <button
            key={one}
            type="button"
            onClick={() => {
              setChosen({ name: one, held });
            }}
          >
            {capitalized(one)}
          </button>
        ))}
        {state !== "orphaned" && (
          <button
            type="button"
            aria-pressed={isCompared}
            onClick={() => {
              setCompared(!isCompared);
            }}
          >
            Compare with Git
          </button>
        )}
      </div>
      {held && (
        <Notice kind="warning">
          {held.count} {held.count === 1 ? "object" : "objects"} would be deleted, and this waits for an
          approval.
        </Notice>
      )}
      {isCompared && (
        <DiffView agent={agent} project={project.project} lastSync={project.history?.[0]?.ended ?? 0} />
      )}
      {chosen !== null && (
        <ConfirmDialog
          title={`${capitalized(chosen.name)} ${name}`}
          confirm={capitalized(chosen.name)}
          onConfirm={async () => {
            const code = chosen.name === "approve" ? (chosen.held?.code ?? "") : "";
            await command(agent, project.project, chosen.name, AbortSignal.timeout(TIMEOUT), code);
            onChange();
          }}
          onClose={() => {
            setChosen(null);
          }}
        >
          <p>{EFFECTS[chosen.name]}</p>
          {chosen.name === "approve" && chosen.held && <HeldObjects held={chosen.held} />}
        </ConfirmDialog>
      )}
    </>
  );
}

function commandsOf({ state, settings }: Project): Command[] {
  switch (state) {
    case "orphaned":
      return ["prune"];
    case "suspended":
      // The configuration decides about a suspension of its own.
      return settings?.suspend === true ? [] : ["resume"];
    case "held":
      return ["sync", "suspend", "approve"];
    default:
      return ["sync", "suspend"];
  }
}

function HeldObjects({ held: { count, objects } }: { held: NonNullable<Project["held"]> }) {
  const shown = objects.slice(0, SHOWN);
  return (
    <ul class="wrap">
      {shown.map((object) => (
        <li key={objectName(object)}>{objectName(object)}</li>
      ))}
      {count > shown.length && <li class="muted">and {count - shown.length} more</li>}
    </ul>
  );
}

function History({ history }: { history: SyncRecord[] }) {
  if (history.length === 0) return null;
  return (
    <details>
      <summary>Last syncs ({history.length})</summary>
      <Table columns={["Commit", "State", "Objects", "Took", "Ended"]}>
        {history.map(({ commit, state, objects, duration, ended }, index) => (
          <tr key={index}>
            <td>
              <code>{plain(shortId(commit), 64)}</code>
            </td>
            <td>
              <span class={`health ${LOOKS[state]}`}>{state}</span>
            </td>
            <td>
              {objects.total} in Git, {objects.applied} applied, {objects.failed} failed, {objects.pruned}{" "}
              deleted
            </td>
            <td>{(duration / 1000).toFixed(1)} s</td>
            <td>
              <Age time={new Date(ended).toISOString()} />
            </td>
          </tr>
        ))}
      </Table>
    </details>
  );
}
