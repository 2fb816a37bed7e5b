import type { MissingReplica } from "../api/recent";
import { plain } from "../text";
import { Partial } from "./notice";

/** The replicas that have not answered. */
export function Missing({ replicas }: { replicas: readonly MissingReplica[] }) {
  return (
    <Partial reasons={replicas.map(({ replica, error }) => `Replica ${replica}: ${plain(error, 500)}`)} />
  );
}
