/** Names of commits and objects, and errors about them, as text. */

import type { Commit, ObjectError, ObjectId } from "../../../api/gitops";
import { plain } from "../../../text";

/** Returns the beginning of the id of a commit, or of the digest of an artifact. */
export function shortId(id: string): string {
  return id.replace(/^sha256:/, "").slice(0, 12);
}

export function objectName({ group, kind, namespace, name }: ObjectId): string {
  const type = group ? `${kind}.${group}` : kind;
  return plain(`${type} ${namespace ? `${namespace}/` : ""}${name}`, 700);
}

export function ErrorText({ error: { object, file, message } }: { error: ObjectError }) {
  return (
    <>
      {file !== undefined && (
        <>
          <code>{plain(file, 1024)}</code>{" "}
        </>
      )}
      {object && <b>{objectName(object)}: </b>}
      {plain(message)}
    </>
  );
}

export function CommitName({ commit }: { commit: Commit }) {
  return (
    <>
      <code>{plain(shortId(commit.id), 64)}</code> {plain(commit.subject ?? "", 512)}
      {commit.author !== undefined && <span class="muted"> by {plain(commit.author, 256)}</span>}
    </>
  );
}

/** Returns the index of the first character in which two texts differ. */
export function firstDifference(one: string, other: string): number {
  let index = 0;
  while (index < one.length && one[index] === other[index]) index += 1;
  return index;
}
