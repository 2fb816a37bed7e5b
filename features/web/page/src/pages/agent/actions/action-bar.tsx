import { useRef, useState } from "preact/hooks";
import { RequestFailure } from "../../../api/client";
import type { Node } from "../../../api/graph";
import { changeObject, getObject, keyOf, type KubernetesObject, mayChange } from "../../../api/kubernetes";
import type { GraphState } from "../../../graph/store";
import { plain } from "../../../text";
import { ConfirmDialog } from "../../../ui/dialog";
import { useLoaded } from "../../../ui/loader";
import { Failure, Notice } from "../../../ui/notice";
import { type Action, actionsOf } from "./actions";

/** The time that a change may take, in milliseconds. */
const TIMEOUT = 30_000;

/** The changes of an object for which the caller has the rights. `isThere` is false once the object was deleted. */
export function ActionBar({
  agent,
  node,
  graph,
  isThere,
}: {
  agent: string;
  node: Node;
  graph: GraphState;
  isThere: boolean;
}) {
  const [chosen, setChosen] = useState<Action | null>(null);
  const [done, setDone] = useState("");
  const actions = isThere ? actionsOf(node, graph.nodes) : [];
  const ids = actions.map(({ id }) => id).join();
  const rights = useLoaded(`rights/${agent}/${node.uid}/${ids}`, async (signal) => {
    const reviews = actions.map((action) => isAllowed(agent, node, action, signal));
    const allowed = await Promise.all(reviews);
    return new Set(actions.filter((_, index) => allowed[index]).map(({ id }) => id));
  });
  // The rights stay while those of other changes are asked for, so that a button keeps the focus.
  const last = useRef<ReadonlySet<string> | null>(null);
  if (rights.value !== null) last.current = rights.value;
  const offered = actions.filter(({ id }) => last.current?.has(id));
  return (
    <>
      <div class="row">
        {offered.map((action) => (
          <button
            key={action.id}
            type="button"
            onClick={() => {
              setDone("");
              setChosen(action);
            }}
          >
            {action.name}
          </button>
        ))}
        {rights.value !== null && actions.length > 0 && offered.length === 0 && (
          <span class="small muted">This caller may not change it.</span>
        )}
      </div>
      {rights.error !== null && actions.length > 0 && (
        <Failure what="The rights to change it are not known" error={rights.error} />
      )}
      {done !== "" && <Notice>{done}</Notice>}
      {chosen !== null && (
        <ActionDialog
          agent={agent}
          node={node}
          action={chosen}
          onDone={() => {
            setDone(`${chosen.name}: the API server has accepted it.`);
          }}
          onClose={() => {
            setChosen(null);
          }}
        />
      )}
    </>
  );
}

/** Asks the API server. Where a policy or a scope of agentk forbids the question, the change itself has the answer. */
async function isAllowed(agent: string, node: Node, action: Action, signal: AbortSignal): Promise<boolean> {
  try {
    return await mayChange(agent, targetKey(node, action), action.verb, action.subresource, signal);
  } catch (error) {
    if (error instanceof RequestFailure && error.status === 403 && error.reason !== null) return true;
    throw error;
  }
}

function targetKey(node: Node, { target: { kind, name } }: Action) {
  return { ...keyOf(node), kind, name };
}

function ActionDialog({
  agent,
  node,
  action,
  onDone,
  onClose,
}: {
  agent: string;
  node: Node;
  action: Action;
  onDone: () => void;
  onClose: () => void;
}) {
  const [replicas, setReplicas] = useState(node.ready?.desired ?? 1);
  const target = `${plain(action.target.kind, 128)}/${plain(action.target.name, 260)}`;
  const where = node.namespace === undefined ? "" : ` in ${plain(node.namespace, 64)}`;
  const confirm = async () => {
    const signal = AbortSignal.timeout(TIMEOUT);
    const object: KubernetesObject | null = action.needsObject
      ? await getObject(agent, keyOf(node), signal)
      : null;
    const change = action.change({ now: new Date(), replicas, object });
    await changeObject(agent, targetKey(node, action), change, signal);
    onDone();
  };
  return (
    <ConfirmDialog
      title={`${action.name} ${target}`}
      confirm={action.name}
      isReady={Number.isSafeInteger(replicas) && replicas >= 0}
      onConfirm={confirm}
      onClose={onClose}
    >
      <p>
        {target}
        {where} of {plain(agent, 100)}. {plain(action.effect)}
      </p>
      {action.asksForReplicas && (
        <label>
          Replicas{" "}
          <input
            type="number"
            min={0}
            step={1}
            value={replicas}
            onInput={(event) => {
              setReplicas(event.currentTarget.valueAsNumber);
            }}
          />
        </label>
      )}
      {replicas === 0 && action.asksForReplicas && <Notice kind="warning">No pod will run.</Notice>}
    </ConfirmDialog>
  );
}
