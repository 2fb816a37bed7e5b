import { useState } from "preact/hooks";
import { plain } from "../../text";
import { Health } from "../../ui/health";
import { useLoaded } from "../../ui/loader";
import { Failure, Notice } from "../../ui/notice";
import { Table } from "../../ui/table";
import { Age } from "../../ui/time";
import { addressOf, type EnvironmentHealth, grouped, loadEnvironments, summarize } from "./health";
import { Words } from "../../ui/words";
import { Deployed } from "./deployed-line";

/** The environments with a place that the caller may use, by group and tier. */
export function EnvironmentsPage() {
  const [arrived, setArrived] = useState<EnvironmentHealth[] | null>(null);
  const { value, error } = useLoaded(
    "environments",
    (signal) => loadEnvironments(signal, setArrived),
    15_000,
  );
  // Until all agents have answered for the first time, the page shows those that have.
  const all = value ?? arrived;
  return (
    <div class="stack">
      <h1>Environments</h1>
      {error !== null && <Failure what="The environments are not up to date" error={error} />}
      {all === null && error === null && <p class="muted">Loading the environments…</p>}
      {all?.length === 0 && <NoEnvironment />}
      {all !== null &&
        grouped(all).map(({ name, environments }) => (
          <section key={name} class="stack" aria-label={plain(name || "Without a group", 255)}>
            <h2 class="wrap">{plain(name || "Without a group", 255)}</h2>
            <EnvironmentTable environments={environments} />
          </section>
        ))}
    </div>
  );
}

function NoEnvironment() {
  return (
    <Notice>
      <p>No agent of this caller has an environment. Environments come from:</p>
      <ul>
        <li>
          the section <code>environments</code> of an agent&apos;s configuration, with <code>slug</code>,{" "}
          <code>project</code>, <code>tier</code> and <code>namespace</code>;
        </li>
        <li>
          the file of the operator of kas, which <code>environments.file</code> names.
        </li>
      </ul>
    </Notice>
  );
}

/** Environments with their health, one in each row. */
export function EnvironmentTable({ environments }: { environments: readonly EnvironmentHealth[] }) {
  return (
    <Table columns={["Tier", "Environment", "Health", "Reason", "Since", "Agent and namespace"]}>
      {environments.map(({ environment, places }) => {
        const { health, reason, since } = summarize(places);
        return (
          <tr key={`${environment.project}:${environment.slug}`}>
            <td>{plain(environment.tier, 64)}</td>
            <td>
              <a href={addressOf(environment)}>
                <Words text={plain(environment.slug, 64)} />
              </a>{" "}
              <span class="small muted">
                <Words text={plain(environment.project, 255)} />
              </span>
              <Deployed deployments={environment.deployments} />
            </td>
            <td>
              <Health state={health} />
            </td>
            <td>
              <Words text={plain(reason, 600)} />
            </td>
            <td>
              <Age time={since} />
            </td>
            <td class="small">
              {places.map(({ place }) => (
                <div key={`${place.agent}/${place.namespace}`}>
                  <Words text={`${plain(place.agent, 100)}/${plain(place.namespace, 64)}`} />
                </div>
              ))}
            </td>
          </tr>
        );
      })}
    </Table>
  );
}
