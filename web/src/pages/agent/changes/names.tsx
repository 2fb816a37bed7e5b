/** Names of commits and objects, and errors about them, as text. */

import type { ObjectError, ObjectId } from "../../../api/gitops";
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
