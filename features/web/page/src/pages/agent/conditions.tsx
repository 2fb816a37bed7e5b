import { getObject, keyOf } from "../../api/kubernetes";
import { conditionsOf } from "../../graph/conditions";
import { plain } from "../../text";
import { useLoaded } from "../../ui/loader";
import { Failure, Notice } from "../../ui/notice";
import { Table } from "../../ui/table";
import { Age } from "../../ui/time";
import type { TabProps } from "./drawer";
import { Words } from "../../ui/words";

/** The conditions of an object, as its controller reports them. */
export function Conditions({ agent, node }: TabProps) {
  const load = async (signal: AbortSignal) => conditionsOf(await getObject(agent, keyOf(node), signal));
  const { value, error } = useLoaded(`conditions/${agent}/${node.uid}/${node.sequence}`, load);
  return (
    <>
      {error !== null && <Failure what="The object cannot be read" error={error} />}
      {value === null && error === null && <p class="muted">Loading the conditions…</p>}
      {value?.length === 0 && <Notice>The object has no conditions.</Notice>}
      {value !== null && value.length > 0 && (
        <Table columns={["Type", "Status", "Reason", "Since"]}>
          {value.map(({ type, status, reason, message, since }) => (
            <tr key={type}>
              <td>
                <b>
                  <Words text={plain(type, 317)} />
                </b>
              </td>
              <td>{plain(status, 64)}</td>
              <td>
                <Words text={plain(reason, 1024)} />
                {message !== "" && (
                  <div class="small muted">
                    <Words text={plain(message)} />
                  </div>
                )}
              </td>
              <td>
                <Age time={since} />
              </td>
            </tr>
          ))}
        </Table>
      )}
    </>
  );
}
