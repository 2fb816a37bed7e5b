import { useEffect, useState } from "preact/hooks";
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

/** The changes of an object for which the caller has the rights. */
export function ActionBar({ agent, node, graph }: { agent: string; node: Node; graph: GraphState }) {
  const [chosen, setChosen] = useState<Action | null>(null);
  const [done, setDone] = useState("");
  const actions = actionsOf(node, graph.nodes);
  const names = actions.map(({ name }) => name).join();
  const rights = useLoaded(`rights/${agent}/${node.uid}/${names}`, async (signal) => {
    const reviews = actions.map((action) =>
      mayChange(agent, targetKey(node, action), action.verb, action.subresource, signal),
    );
    const allowed = await Promise.all(reviews);
    return new Set(actions.filter((_, index) => allowed[index]).map(({ name }) => name));
  });
  useEffect(() => {
    setDone("");
  }, [node.uid]);
  if (actions.length === 0) return null;
  const offered = actions.filter(({ name }) => rights.value?.has(name));
  return (
    <>
      <div class="row">
        {offered.map((action) => (
          <button
            key={action.name}
            type="button"
            onClick={() => {
              setDone("");
              setChosen(action);
            }}
          >
            {action.name}
          </button>
        ))}
        {rights.value !== null && offered.length === 0 && (
          <span class="small muted">This caller may not change it.</span>
        )}
      </div>
      {rights.error !== null && <Failure what="The rights to change it are not known" error={rights.error} />}
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
