/** The projects of manifests: which commit the cluster has, what failed, and what waits for a person. */

import type { ComponentChildren } from "preact";
import { useState } from "preact/hooks";
import {
  type AwaitedObject,
  command,
  getProjects,
  type ObjectCounts,
  type ObjectError,
  type Project,
  type ProjectState,
  type SyncRecord,
} from "../../../api/gitops";
import { query } from "../../../router";
import { plain } from "../../../text";
import { may, useRights } from "../../../ui/agents";
import { ConfirmDialog } from "../../../ui/dialog";
import { useLoaded } from "../../../ui/loader";
import { Failure, Notice } from "../../../ui/notice";
import { Age } from "../../../ui/time";
import { commandsOf, type ProjectCommand, recoverySummary, verbOf } from "./commands";
import { DiffView } from "./diff";
import { CommitName, ErrorText, objectName, shortId } from "./names";
import { FirstOf, HeldList, HeldNotice, RecoveryDetails, RecoveryNotice, SHOWN } from "./plans";
import { Table } from "../../../ui/table";

/** The time that a command may take, in milliseconds. */
const TIMEOUT = 30_000;

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
  "inventory-lost": "degraded",
  contested: "degraded",
  empty: "degraded",
  unattended: "degraded",
  unknown: "unknown",
};

/** Shows a state. A newer agentk may have another one. */
function State({ state }: { state: ProjectState }) {
  const look = Object.hasOwn(LOOKS, state) ? LOOKS[state] : "unknown";
  return <span class={`health ${look}`}>{plain(state, 64)}</span>;
}

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
      <LinkedDiff agent={agent} />
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

/** The comparison that the address names: a project with another version or directory. Pages of GitLab link to it. */
function LinkedDiff({ agent }: { agent: string }) {
  const [project = "", gitRef = "", directory = ""] = ["project", "ref", "directory"].map(
    (name) => query.value.get(name) ?? "",
  );
  if (project === "" || (gitRef === "" && directory === "")) return null;
  return (
    <section class="stack project" aria-label="Another version">
      <h2 class="wrap">
        {plain(project, 256)}
        {gitRef !== "" && <> at {plain(gitRef, 256)}</>}
        {directory !== "" && <>, directory {plain(directory, 256)}</>}
      </h2>
      <DiffView agent={agent} project={project} lastSync={0} gitRef={gitRef} directory={directory} />
    </section>
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
  const counts = [`${objects.total} in Git`, ...nonZero(objects, ["failed", "degraded", "progressing"])];
  const lastSync = nonZero(objects, ["applied", "unchanged", "pruned", "kept"]);
  const { synced, working, attempted, as_of: asOf = 0 } = project;
  const isTried = attempted !== undefined && ![synced?.id, working?.id].includes(attempted.id);
  return (
    <section class="stack project" aria-label={plain(project.project, 256)}>
      <h2 class="wrap">
        {plain(project.project, 256)} <State state={project.state} />
      </h2>
      <dl class="facts">
        {project.message !== project.problem && <Fact name="State">{plain(project.message)}</Fact>}
        {project.problem !== undefined && <Fact name="Git">{plain(project.problem)}</Fact>}
        <Fact name="Follows">{plain(project.reference, 512)}</Fact>
        {synced && (
          <Fact name="In the cluster">
            <CommitName commit={synced} />
          </Fact>
        )}
        {working && (
          <Fact name="Not complete">
            <CommitName commit={working} />
          </Fact>
        )}
        {isTried && (
          <Fact name="Tried">
            <CommitName commit={attempted} />
          </Fact>
        )}
        {asOf > 0 && (
          <Fact name="As of">
            <Age time={asOf} /> ago
          </Fact>
        )}
        <Fact name="Objects">{counts.join(", ")}</Fact>
        {lastSync.length > 0 && <Fact name="Last sync">{lastSync.join(", ")}</Fact>}
      </dl>
      <Awaited what="What the sync waits for" awaited={project.waiting ?? []} count={objects.waiting ?? 0} />
      <Awaited what="What starts" awaited={project.starting ?? []} count={objects.progressing} />
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

/** The names of counts for people. */
const COUNTS = {
  applied: "applied",
  unchanged: "unchanged",
  failed: "failed",
  degraded: "degraded",
  progressing: "starting",
  pruned: "deleted",
  kept: "kept",
} as const;

/** Returns the counts that are not zero, such as "2 failed". */
function nonZero(objects: ObjectCounts, names: readonly (keyof typeof COUNTS)[]): string[] {
  return names.filter((name) => objects[name] > 0).map((name) => `${objects[name]} ${COUNTS[name]}`);
}

/** Objects that are not healthy yet, of which agentk names the first ones. */
function Awaited({ what, awaited, count }: { what: string; awaited: AwaitedObject[]; count: number }) {
  const all = Math.max(count, awaited.length);
  if (all === 0) return null;
  return (
    <details open>
      <summary>
        {what} ({all})
      </summary>
      <FirstOf items={awaited} count={all}>
        {({ object, reason, since }) => (
          <>
            <b>{objectName(object)}: </b>
            {plain(reason)}
            {since > 0 && (
              <>
                , for <Age time={since} />
              </>
            )}
          </>
        )}
      </FirstOf>
    </details>
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

function Commands({ agent, project, onChange }: { agent: string; project: Project; onChange: () => void }) {
  // An approval is about what the dialog has shown, also if a newer commit is there meanwhile.
  const [chosen, setChosen] = useState<ProjectCommand | null>(null);
  const [isCompared, setCompared] = useState(false);
  const { state, held, recovery, message } = project;
  const rights = useRights(agent);
  const offered = commandsOf(project).filter((one) => may(rights, "gitops", verbOf(one.command)));
  return (
    <>
      <div class="row">
        {offered.map((one) => (
          <button
            key={one.name}
            type="button"
            onClick={() => {
              setChosen(one);
            }}
          >
            {one.name}
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
      {state === "held" && held && <HeldNotice held={held} message={message} />}
      {state === "inventory-lost" && <RecoveryNotice recovery={recovery} />}
      {isCompared && (
        <DiffView agent={agent} project={project.project} lastSync={project.history?.[0]?.ended ?? 0} />
      )}
      {chosen !== null && (
        <ConfirmDialog
          title={`${chosen.name} ${plain(project.project, 256)}`}
          confirm={chosen.name}
          onConfirm={async () => {
            const signal = AbortSignal.timeout(TIMEOUT);
            await command(agent, project.project, chosen.command, signal, chosen.code);
            onChange();
          }}
          onClose={() => {
            setChosen(null);
          }}
        >
          <p>{chosen.effect}</p>
          {chosen.held && <HeldList held={chosen.held} />}
          {chosen.recovery && (
            <>
              <p>{recoverySummary(chosen.recovery)}</p>
              <RecoveryDetails recovery={chosen.recovery} />
            </>
          )}
        </ConfirmDialog>
      )}
    </>
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
              <State state={state} />
            </td>
            <td>
              {objects.total} in Git, {objects.applied} applied, {objects.failed} failed, {objects.pruned}{" "}
              deleted
            </td>
            <td>{(duration / 1000).toFixed(1)} s</td>
            <td>
              <Age time={ended} />
            </td>
          </tr>
        ))}
      </Table>
    </details>
  );
}
