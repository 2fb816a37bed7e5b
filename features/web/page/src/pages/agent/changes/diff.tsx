import { stringify } from "yaml";
import {
  type FieldDiff,
  getDiff,
  type ManifestApplication,
  type ObjectDiff,
  parseVersion,
} from "../../../api/gitops";
import { plain } from "../../../text";
import { Links } from "../../../ui/links";
import { useLoaded } from "../../../ui/loader";
import { Failure, Notice, Partial } from "../../../ui/notice";
import { Table } from "../../../ui/table";
import { CommitName, ErrorText, firstDifference, objectName } from "./names";

/** The longest value of a field that is shown, in characters. */
const MAX_VALUE = 4096;

/**
 * The changes that a sync of a project would make now, or of another version of it. A sync that has changed something makes another
 * comparison necessary.
 */
export function DiffView({
  agent,
  project,
  lastSync,
  gitRef = "",
  directory = "",
}: {
  agent: string;
  project: string;
  lastSync: number;
  gitRef?: string;
  directory?: string;
}) {
  const key = `diff/${JSON.stringify([agent, project, lastSync, gitRef, directory])}`;
  const version = parseVersion(gitRef, directory);
  const { value, error } = useLoaded(key, (signal) => getDiff(agent, project, signal, version));
  if (error !== null) return <Failure what="The cluster cannot be compared with Git" error={error} />;
  if (value === null) return <p class="muted">Comparing the cluster with Git…</p>;
  const { objects, errors, isCut, unchanged, notes, commit, applications } = value;
  return (
    <div class="stack" role="region" aria-label="Comparison with Git">
      {commit !== null && (
        <p class="small muted">
          The commit is <CommitName commit={commit} />.
        </p>
      )}
      {objects.length === 0 && errors.length === 0 && (
        <Notice>The cluster is as in Git: {unchanged} objects.</Notice>
      )}
      {isCut && <Notice kind="warning">There are more objects. kas gitops diff shows all of them.</Notice>}
      {errors.map((one, index) => (
        <Notice key={index} kind="error">
          <ErrorText error={one} />
        </Notice>
      ))}
      {objects.map((object) => (
        <ObjectView key={objectName(object.object)} diff={object} />
      ))}
      {applications.length > 0 && <Applications applications={applications} />}
      <Partial reasons={notes} />
    </div>
  );
}

/** The Applications of `app.k8s.io` in the manifests. */
function Applications({ applications }: { applications: readonly ManifestApplication[] }) {
  return (
    <Table columns={["Application in Git", "Version", "Description", "Links"]}>
      {applications.slice(0, 50).map(({ object, file, descriptor }) => (
        <tr key={objectName(object)}>
          <td>
            {objectName(object)} <code class="muted">{plain(file, 1024)}</code>
          </td>
          <td>{plain(descriptor.version ?? "–", 256)}</td>
          <td>{plain(descriptor.description ?? "", 300)}</td>
          <td>
            <Links links={descriptor.links ?? []} />
          </td>
        </tr>
      ))}
    </Table>
  );
}

/** The action of a sync, in words. */
const ACTIONS: Readonly<Record<ObjectDiff["action"], string>> = {
  create: "is created",
  change: "is changed",
  recreate: "is deleted and created again",
  delete: "is deleted",
  keep: "stays, although it left Git",
};

export function ObjectView({ diff: { action, object, file, note, fields = [] } }: { diff: ObjectDiff }) {
  return (
    <details open={fields.length < 20}>
      <summary class="wrap">
        <b>{objectName(object)}</b> {ACTIONS[action]}
        {file !== undefined && <code class="muted"> {plain(file, 1024)}</code>}
      </summary>
      {note !== undefined && <p>{plain(note)}</p>}
      {fields.map((field) => (
        <Field key={field.path} field={field} />
      ))}
    </details>
  );
}

function Field({ field: { path, before, after } }: { field: FieldDiff }) {
  const texts = { before: textOf(before), after: textOf(after) };
  const from = firstDifference(texts.before, texts.after);
  return (
    <div class="field">
      {path !== "" && <code class="wrap">{plain(path, 1024)}</code>}
      {before !== undefined && <Value sign="−" name="in the cluster" text={texts.before} from={from} />}
      {after !== undefined && <Value sign="+" name="in Git" text={texts.after} from={from} />}
    </div>
  );
}

function textOf(value: unknown): string {
  return value === undefined
    ? ""
    : stringify(value, { lineWidth: 0, aliasDuplicateObjects: false }).trimEnd();
}

/** A part of a value, which begins a little before the difference. */
function Value({ sign, name, text, from }: { sign: string; name: string; text: string; from: number }) {
  const begin = from < MAX_VALUE / 2 ? 0 : from - MAX_VALUE / 4;
  return (
    <pre class={`code ${sign === "+" ? "added" : "removed"}`}>
      <span class="hidden-text">{name}: </span>
      {plain(`${begin > 0 ? "…" : ""}${text.slice(begin)}`, MAX_VALUE).replace(/^/gm, `${sign} `)}
    </pre>
  );
}
