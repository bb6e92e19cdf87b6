"""Check every link of the built site: ``python -m tools.website.links site``.

Each ``href`` and ``src`` has to refer to a file of the site, and a fragment to an element there. Of links to
other sites only the form is checked. MkDocs checks the Markdown sources; this program checks the HTML output.
"""

from __future__ import annotations

import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

__all__ = ["find_dead_links"]


class _LinkParser(HTMLParser):
    """Collects the ids and links of a page."""

    def __init__(self) -> None:
        super().__init__()
        self.ids: set[str] = set()
        self.links: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.ids |= {value for name in ("id", "name") if (value := given.get(name))}
        self.links += [value for name in ("href", "src") if (value := given.get(name)) is not None]


def find_dead_links(site: Path) -> list[str]:
    """Return one line of text for each dead link."""
    pages: dict[Path, _LinkParser] = {}
    for path in sorted(site.rglob("*.html")):
        pages[path.resolve()] = reader = _LinkParser()
        reader.feed(path.read_text(encoding="utf-8"))
    dead = []
    for path, reader in pages.items():
        if path.name == "404.html":  # the server shows this page for any path: its links start at the server's root
            continue
        name = path.relative_to(site.resolve())
        links = dict.fromkeys(reader.links)
        dead += [
            f"{name}: {link}: {why}" for link in links if (why := _describe_link_error(link, path, pages)) is not None
        ]
    return dead


def _describe_link_error(link: str, path: Path, pages: dict[Path, _LinkParser]) -> str | None:
    parts = urlsplit(link)
    if parts.scheme in ("https", "mailto", "data", "javascript"):
        return None
    if parts.scheme or parts.netloc:
        return "neither a file of the site nor https"
    target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
    if target.is_dir():
        target /= "index.html"
    if not target.is_file():
        return "no such file"
    fragment = unquote(parts.fragment)
    if fragment and target in pages and fragment not in pages[target].ids and not fragment.startswith("__"):
        return "no such place in it"
    return None


if __name__ == "__main__":
    found = find_dead_links(Path(sys.argv[1]))
    print("\n".join(found) or "every link leads somewhere")
    raise SystemExit(bool(found))
