import type { ApplicationLink } from "../api/graph";
import { plain, safeLink } from "../text";

/** The links of an application. Those that are not `https` are left out. */
export function Links({ links }: { links: readonly ApplicationLink[] }) {
  const safe = links.flatMap(({ description, url }) => {
    const link = safeLink(url);
    return link === null ? [] : [{ link, text: plain(description ?? url, 100) }];
  });
  return (
    <>
      {safe.slice(0, 8).map(({ link, text }, index) => (
        <div key={index}>
          <a href={link} target="_blank" rel="noopener noreferrer nofollow">
            {text}
          </a>
        </div>
      ))}
    </>
  );
}
