import { useRef, useState } from "preact/hooks";
import { stringify } from "yaml";
import { getMetadata, getObject, keyOf, type KubernetesObject } from "../../api/kubernetes";
import { decodeSecret, plain } from "../../text";
import { useLoaded } from "../../ui/loader";
import { Failure, Notice } from "../../ui/notice";
import { Copy, type TabProps } from "./drawer";

/** The longest YAML that is shown, in characters. */
const MAX_YAML = 1 << 18;

/** An object as the API server has it. Of a Secret, the page loads only the metadata. */
export function Yaml({ agent, node }: TabProps) {
  const isSecret = node.kind === "Secret" && !node.group;
  const load = (signal: AbortSignal) =>
    isSecret ? getMetadata(agent, keyOf(node), signal) : getObject(agent, keyOf(node), signal);
  const { value: newest, error } = useLoaded(`yaml/${agent}/${node.uid}/${node.sequence}`, load);
  // The last version stays until the next one is there.
  const last = useRef<KubernetesObject | null>(null);
  if (newest !== null) last.current = newest;
  const value = last.current;
  const text = value === null ? "" : yamlOf(value, isSecret);
  return (
    <>
      {error !== null && <Failure what="The object cannot be read" error={error} />}
      {value === null && error === null && <p class="muted">Loading the object…</p>}
      {value !== null && (
        <>
          <div class="row">
            <Copy text={text} />
          </div>
          <pre class="code" tabIndex={0} aria-label="YAML">
            {plain(text, MAX_YAML)}
          </pre>
        </>
      )}
      {isSecret && <Values key={node.sequence} agent={agent} node={node} />}
    </>
  );
}

function yamlOf(object: KubernetesObject, isSecret: boolean): string {
  const { managedFields: _, ...metadata } = object.metadata ?? {};
  if (isSecret && metadata.annotations) {
    // kubectl apply keeps the values of the Secret in it.
    const { "kubectl.kubernetes.io/last-applied-configuration": _, ...annotations } = metadata.annotations;
    metadata.annotations = annotations;
  }
  return stringify({ ...object, metadata }, { lineWidth: 0, aliasDuplicateObjects: false });
}

/** The values of a Secret, which are loaded and shown when the reader says so. */
function Values({ agent, node }: Omit<TabProps, "graph">) {
  const [object, setObject] = useState<KubernetesObject | null>(null);
  const [error, setError] = useState<unknown>(null);
  const [revealed, setRevealed] = useState<ReadonlySet<string>>(new Set());
  const load = () => {
    setError(null);
    getObject(agent, keyOf(node), AbortSignal.timeout(30_000)).then(setObject, setError);
  };
  const values = Object.entries(object?.data ?? {});
  return (
    <>
      {error !== null && <Failure what="The Secret cannot be read" error={error} />}
      {object === null && (
        <div>
          <button type="button" onClick={load}>
            Load the values
          </button>{" "}
          <span class="small muted">The audit log of kas records the request.</span>
        </div>
      )}
      {object !== null && values.length === 0 && <Notice>The Secret has no value.</Notice>}
      <dl class="facts">
        {values.map(([name, value]) => (
          <>
            <dt>{plain(name, 253)}</dt>
            <dd>
              {revealed.has(name) ? (
                <pre class="code">{plain(decodeSecret(value), MAX_YAML)}</pre>
              ) : (
                <button
                  type="button"
                  aria-label={`Show the value of ${plain(name, 253)}`}
                  onClick={() => {
                    setRevealed(new Set(revealed).add(name));
                  }}
                >
                  Show
                </button>
              )}
            </dd>
          </>
        ))}
      </dl>
    </>
  );
}
