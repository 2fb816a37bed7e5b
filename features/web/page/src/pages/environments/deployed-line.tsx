import type { LastDeployments } from "../../api/kas";
import { plain } from "../../text";
import { Age } from "../../ui/time";
import { Words } from "../../ui/words";
import { deployed, later } from "./deployed";

/** The last successful deployment of an environment: its commit, who started it, and when. Nothing if no deployment is known. */
export function Deployed({ deployments }: { deployments: LastDeployments | undefined }) {
  if (deployments === undefined) return null;
  const found = deployed(deployments);
  const note = later(deployments);
  if (found === null && note === "") return null;
  return (
    <div class="small muted">
      {found !== null && (
        <span>
          deployed <Commit commit={found.commit} link={found.link} />
          {found.by !== "" && ` by ${plain(found.by, 100)}`}
          {found.time !== null && (
            <>
              , <Age time={found.time} /> ago
            </>
          )}
        </span>
      )}
      {found !== null && note !== "" && "; "}
      {note !== "" && <Words text={plain(note, 300)} />}
    </div>
  );
}

function Commit({ commit, link }: { commit: string; link: string | null }) {
  const name = commit === "" ? "an unknown commit" : plain(commit, 64);
  if (link === null) return <code>{name}</code>;
  return (
    <a href={link} target="_blank" rel="noopener noreferrer nofollow">
      <code>{name}</code>
    </a>
  );
}
