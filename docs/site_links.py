#!/usr/bin/env python3
"""Names the links of a built site that lead nowhere: `docs/site_links.py target/site/0.2.0`."""

import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit


class Page(HTMLParser):
    """The anchors of a page, and where its links lead."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.anchors: set[str] = set()
        self.links: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for key, value in attrs:
            if key in ("id", "name") and value:
                self.anchors.add(value)
            elif key in ("href", "src") and value:
                self.links.append(value)


def broken_links(site: Path, pages: dict[Path, Page]) -> list[str]:
    broken = []
    for path, page in pages.items():
        for link in page.links:
            url = urlsplit(link)
            target = (path.parent / unquote(url.path)).resolve() if url.path else path
            outside = url.scheme or url.netloc or site not in target.parents
            target = target / "index.html" if target.is_dir() else target
            if outside or (target.exists() and (not url.fragment or unquote(url.fragment) in anchors(pages, target))):
                continue
            broken.append(f"{path.relative_to(site)}: {link}")
    return broken


def anchors(pages: dict[Path, Page], target: Path) -> set[str]:
    return pages[target].anchors if target in pages else set()


def main() -> None:
    site = Path(sys.argv[1]).resolve()
    # The page of printing is all others in one, with links of each.
    pages = {path: Page(path.read_text()) for path in site.rglob("*.html") if path.name not in ("print.html", "toc.html", "404.html")}
    broken = broken_links(site, pages)
    if broken or not pages:
        sys.exit("links of the site that lead nowhere:\n" + "\n".join(broken))
    print(f"{sum(len(page.links) for page in pages.values())} links of {len(pages)} pages lead somewhere")


if __name__ == "__main__":
    main()
