import type { ApplicationLink } from "../api/graph";
import { hiddenHost, plain, safeLink } from "../text";

/** The links of an application, with their hosts. Links that are not `https` are left out. */
export function Links({ links }: { links: readonly ApplicationLink[] }) {
  const safe = links.flatMap(({ description, url }) => {
    const link = safeLink(url);
    if (link === null) return [];
    const text = plain(description ?? url, 100);
    return [{ link, text, host: hiddenHost(text, link) }];
  });
  return (
    <>
      {safe.slice(0, 8).map(({ link, text, host }, index) => (
        <div key={index}>
          <a href={link} target="_blank" rel="noopener noreferrer nofollow">
            {text}
          </a>
          {host !== null && <span class="small muted"> ({plain(host, 100)})</span>}
        </div>
      ))}
    </>
  );
}
