import { type Application, getApplications, type Scope } from "../../../api/graph";
import { plain } from "../../../text";
import { Health } from "../../../ui/health";
import { Links } from "../../../ui/links";
import { useLoaded } from "../../../ui/loader";
import { Failure, Notice, Partial } from "../../../ui/notice";
import { Table } from "../../../ui/table";
import { Words } from "../../../ui/words";

/** The applications of a cluster or of a namespace, with owners and links. */
export function Applications({ agent, scope }: { agent: string; scope: Scope | null }) {
  const load = (signal: AbortSignal) => getApplications(agent, scope, signal);
  const { value, error, since } = useLoaded(`applications/${agent}/${scope?.namespace ?? ""}`, load, 30_000);
  return (
    <>
      <h2>Applications</h2>
      {error !== null && <Failure what="The applications are not up to date" error={error} since={since} />}
      {value === null && error === null && <p class="muted">Loading the applications…</p>}
      {value?.applications.length === 0 && (
        <Notice>
          There is no object of the kind Application that this caller may see, and no workload with the label
          app.kubernetes.io/part-of, instance or name.
        </Notice>
      )}
      {value !== null && value.applications.length > 0 && (
        <Table columns={["Application", "Version", "Health", "Objects", "Owners", "Links"]}>
          {value.applications.map((application) => (
            <ApplicationRow
              key={`${application.namespace}/${application.name}/${application.label ?? ""}`}
              application={application}
            />
          ))}
        </Table>
      )}
      {value?.omitted !== undefined && <Notice>{value.omitted} more applications are left out.</Notice>}
      <Partial reasons={value?.partial ?? []} />
    </>
  );
}

function ApplicationRow({ application }: { application: Application }) {
  const { namespace, name, descriptor, health, members, omitted_members } = application;
  const owners = (descriptor.owners ?? descriptor.maintainers ?? []).map(
    ({ name: owner, email }) => owner ?? email ?? "",
  );
  return (
    <tr>
      <td>
        <Words text={plain(`${namespace}/${name}`, 600)} />
        {descriptor.description !== undefined && (
          <div class="small muted">{plain(descriptor.description, 300)}</div>
        )}
      </td>
      <td>
        <Words text={plain(descriptor.version ?? "–", 256)} />
      </td>
      <td>
        <Health state={health.health} />
      </td>
      <td>{(members?.length ?? 0) + (omitted_members ?? 0)}</td>
      <td>
        <Words text={plain(owners.join(", "), 512)} />
      </td>
      <td>
        <Links links={descriptor.links ?? []} />
      </td>
    </tr>
  );
}
