import { type Environment, type EnvironmentPlace, getEnvironments } from "../../api/kas";
import { agentPath } from "../../api/paths";
import { query, setQuery } from "../../router";
import { plain } from "../../text";
import { useLoaded } from "../../ui/loader";
import { Failure, Notice } from "../../ui/notice";
import { ClusterViews } from "../agent/agent";
import { Deployed } from "../environments/deployed-line";

/** The page of one environment, with the views of the cluster of each of its places. */
export function EnvironmentPage({ project, slug }: { project: string; slug: string }) {
  const { value, error } = useLoaded(`environment/${project}:${slug}`, getEnvironments, 30_000);
  const found = value?.find((one) => one.project === project && one.slug === slug);
  if (found !== undefined) return <Places environment={found} />;
  return (
    <div class="stack">
      <h1>{plain(`${project} ${slug}`, 330)}</h1>
      {error !== null && <Failure what="The environment is not known" error={error} />}
      {value === null && error === null && <p class="muted">Loading the environment…</p>}
      {value !== null && (
        <Notice>
          There is no such environment, or this caller may use none of its agents.{" "}
          <a href="/environments">All environments</a>
        </Notice>
      )}
    </div>
  );
}

function idOf({ agent, namespace, labels }: EnvironmentPlace): string {
  const selector = Object.entries(labels).map(([name, value]) => `${name}=${value}`);
  return [agent, namespace, ...selector].join("/");
}

function Places({ environment }: { environment: Environment }) {
  const { project, slug, tier, agents } = environment;
  const asked = query.value.get("place");
  const place = agents.find((one) => idOf(one) === asked) ?? agents[0];
  // kas leaves out environments without a place.
  if (place === undefined) return null;
  const heading = (
    <div>
      <h1>
        {plain(project, 255)} <span class="muted">{plain(slug, 64)}</span>
      </h1>
      <p class="facts-line small muted">
        {plain(tier, 64)}, namespace {plain(place.namespace, 64)} of{" "}
        <a href={agentPath(place.agent)}>{plain(place.agent, 100)}</a>
        {Object.entries(place.labels).map(([name, value]) => ` ${plain(`${name}=${value}`, 400)}`)}
      </p>
      <Deployed deployments={environment.deployments} />
    </div>
  );
  return (
    <div class="stack">
      {agents.length > 1 && (
        <nav class="row" aria-label="Places">
          {agents.map((one) => (
            <button
              key={idOf(one)}
              type="button"
              aria-pressed={one === place}
              onClick={() => {
                // The objects of another place are others.
                setQuery({ place: one === agents[0] ? "" : idOf(one), o: "", tab: "", w: "" }, false);
              }}
            >
              {plain(`${one.agent}/${one.namespace}`, 170)}
            </button>
          ))}
        </nav>
      )}
      <ClusterViews key={idOf(place)} agent={place.agent} scope={place} heading={heading} />
    </div>
  );
}
