"""MkDocs hooks: write pages during the build, and copy files outside ``docs/`` that pages link to."""

from __future__ import annotations

import json
import posixpath
import re
from html import unescape
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.structure.nav import Navigation
from mkdocs.structure.pages import Page
from nbconvert import MarkdownExporter

from cudnn_backend_py import __version__
from tools.website.pages import (
    ROOT,
    find_graph_files,
    format_json,
    list_known_issues,
    list_operations,
    make_commands_page,
    make_enums_page,
    make_graph_gallery_page,
    make_reasons_page,
    make_source_files_page,
)
from tools.website.reasons import make_reason_lookup_table

DATA_FOLDER = "tests/library/diagnose/data"
#: Files that exist only in the site; the page of tables links to them.
GENERATED_DATA_FILES = {
    "`known_issues.json`": "faults.json",
    "`operations.json`": "operations.json",
    "`llms.txt`": "../llms.txt",
}
#: Pages that are made from files outside ``docs/``.
GENERATED_PAGES = {
    "README.md": "index.md",
    "CHANGELOG.md": "project/changelog.md",
    "CONTRIBUTING.md": "project/contributing.md",
    "SECURITY.md": "project/security.md",
    "CODE_OF_CONDUCT.md": "project/code-of-conduct.md",
    "cudnn_backend_py/generated/REPORT.md": "reference/header.md",
    "docs/tutorials/notebook.ipynb": "tutorials/notebook.md",
    "examples": "gallery.md",
    "logs": "measurements.md",
}
#: Pages with wide tables, shown without the list of pages.
PAGES_WITH_WIDE_TABLES = ("attention-speed.md", "attention-support.md", "known-issues.md", "operations.md")
_LINK_PATTERN = re.compile(r"(\]\()(?!https?:|mailto:|#)([^)#\s]+)")


def _resolve_link(link: str, folder: str) -> str:
    """Return the path in the repository to which a link in a file of `folder` refers."""
    return posixpath.normpath(posixpath.join(folder, link)).rstrip("/")


def _make_site_path(place: str) -> str:
    """Return the path in the site at which a file of the repository is published."""
    if place in GENERATED_PAGES:
        return GENERATED_PAGES[place]
    if place.startswith(f"{DATA_FOLDER}/"):
        return place.replace(DATA_FOLDER, "tables")
    return place.removeprefix("docs/") if place.startswith("docs/") else f"files/{place}"


def _rewrite_links(text: str, folder: str, page: str) -> str:
    """Return the Markdown of a file in `folder` with its links changed to paths in the site."""

    def rewrite_link(match: re.Match[str]) -> str:
        target = _make_site_path(_resolve_link(match[2], folder))
        return match[1] + posixpath.relpath(target, posixpath.dirname(page) or ".")

    return _change_text_outside_code(text, lambda part: _LINK_PATTERN.sub(rewrite_link, part))


def _change_text_outside_code(text: str, change: Any) -> str:
    parts = re.split(r"(^```.*?^```$)", text, flags=re.MULTILINE | re.DOTALL)
    return "".join(part if number % 2 else change(part) for number, part in enumerate(parts))


def _find_linked_files(text: str, folder: str) -> set[str]:
    """Return the files outside ``docs/`` that a page links to; the site includes them."""
    found: set[str] = set()

    def collect_links(part: str) -> str:
        found.update(_resolve_link(match[2], folder) for match in _LINK_PATTERN.finditer(part))
        return part

    _change_text_outside_code(text, collect_links)
    return {
        place
        for place in found
        if place not in GENERATED_PAGES and not place.startswith("docs/") and (ROOT / place).is_file()
    }


def _read_notebook() -> tuple[str, dict[str, bytes]]:
    """Return the notebook as Markdown, with HTML outputs inline, and its pictures by file name."""
    text, resources = MarkdownExporter().from_filename(str(ROOT / "docs" / "tutorials" / "notebook.ipynb"))  # type: ignore[no-untyped-call, unused-ignore]
    return text.replace("![svg]", "![drawing of the graph]"), resources["outputs"]


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the generated pages, and the files that pages link to."""
    texts = {
        site: _rewrite_links((ROOT / place).read_text(encoding="utf-8"), posixpath.dirname(place), site)
        for place, site in GENERATED_PAGES.items()
        if place.endswith(".md") and place != "README.md"
    }
    header = GENERATED_PAGES["cudnn_backend_py/generated/REPORT.md"]
    texts[header] = f"---\nsearch:\n  boost: 0.2\n---\n\n{texts[header]}"  # long lists of names, last in search results
    reasons = json.dumps(make_reason_lookup_table(), ensure_ascii=False)
    texts |= {
        "gallery.md": make_graph_gallery_page(),
        "reference/commands.md": make_commands_page(),
        "reference/enums.md": make_enums_page(),
        "reference/files.md": make_source_files_page(),
        "tables/reasons.md": make_reasons_page(),
        "tables/faults.json": format_json(
            {"schema": "cudnn-backend-py/faults", "version": 1, "faults": list_known_issues()}
        ),
        "tables/operations.json": format_json(
            {"schema": "cudnn-backend-py/operations", "version": 1, "operations": list_operations()}
        ),
        "llms.txt": "",  # written by on_post_build
        "assets/reasons-data.js": f"window.cudnnReasons = {reasons};\n",
    }
    texts["tutorials/notebook.md"], pictures = _read_notebook()
    for name, picture in pictures.items():
        files.append(File.generated(config, f"tutorials/{name}", content=picture))
    linked = {str(path.relative_to(ROOT)) for path in find_graph_files()}
    for place in GENERATED_PAGES:
        if place.endswith(".md") and place != "README.md":
            linked |= _find_linked_files((ROOT / place).read_text(encoding="utf-8"), posixpath.dirname(place))
    for file in files.documentation_pages():
        linked |= _find_linked_files(file.content_string, posixpath.dirname(f"docs/{file.src_uri}"))
    for name, text in texts.items():
        if (stub := files.get_file_from_path(name)) is not None:
            files.remove(stub)
        files.append(File.generated(config, name, content=text))
    for place in sorted(linked):
        files.append(File.generated(config, _make_site_path(place), abs_src_path=str(ROOT / place)))
    return files


def on_config(config: MkDocsConfig) -> None:
    """Show the version of the package in the footer of each page."""
    config.copyright = f"Version {__version__}. {config.copyright}"


def on_page_markdown(markdown: str, *, page: Page, **_: Any) -> str:
    """Change links to files outside ``docs/`` to their copies in the site."""
    if page.file.src_uri in PAGES_WITH_WIDE_TABLES:
        page.meta["hide"] = ["navigation"]
    if page.file.generated_by:
        return markdown
    if page.file.src_uri == "tables/index.md":
        for name, place in GENERATED_DATA_FILES.items():
            markdown = markdown.replace(name, f"[{name.strip('`')}]({place})")
    return _rewrite_links(markdown, posixpath.dirname(f"docs/{page.file.src_uri}"), page.file.src_uri)


_navigation_pages: list[tuple[str, str, str]] = []


def on_nav(nav: Navigation, **_: Any) -> None:
    """Store the order of the pages for llms.txt."""
    _navigation_pages[:] = [
        ((page if page.parent is None else page.parent).title, page.file.src_uri, page.file.url) for page in nav.pages
    ]


def on_page_content(html: str, *, page: Page, **_: Any) -> str:
    """Make wide tables scrollable by keyboard, and give each known issue an anchor."""
    if page.file.src_uri == "known-issues.md":
        html = re.sub(r"<td><code>([\w-]+)</code>", r'<td id="\1"><code>\1</code>', html)
    return re.sub(r"<table>", '<table tabindex="0">', html)


def on_post_page(output: str, **_: Any) -> str:
    """Add a name to the search dialog for screen readers."""
    return output.replace(
        'data-md-component="search" role="dialog"', 'data-md-component="search" role="dialog" aria-label="Search"'
    )


def on_post_build(config: MkDocsConfig) -> None:
    """Write llms.txt: every page with its first sentence, and the tables as JSON; correct the search."""
    site = Path(config.site_dir)
    _correct_search_of_words_with_digits(site)
    lines = [f"# {config.site_name}\n\n> {config.site_description}\n"]
    section = None
    for group, _, url in _navigation_pages:
        if group != section:
            lines.append(f"\n## {group}\n\n")
            section = group
        title, first = _read_heading_and_first_sentence((site / url).read_text(encoding="utf-8"))
        lines.append(f"- [{title}]({url}): {first}\n")
    lines.append("\n## Tables as JSON\n\n")
    lines += [f"- [{path.name}](tables/{path.name})\n" for path in sorted((site / "tables").glob("*.json"))]
    (site / "llms.txt").write_text("".join(lines), encoding="utf-8")


# lunr names a node of its index by its letters and the numbers of the next nodes, without anything between them: where
# words have digits, two nodes can get one name, and the search of "cuda" then finds nothing.
_NODE_NAME, _UNIQUE_NODE_NAME = "e=e+s+o.id}", 'e=e+s+o.id+","}'


def _correct_search_of_words_with_digits(site: Path) -> None:
    """Separate the parts of names of index nodes in the theme's copy of lunr."""
    (worker,) = (site / "assets" / "javascripts" / "workers").glob("search.*.js")
    text = worker.read_text(encoding="utf-8")
    if text.count(_NODE_NAME) != 1:
        raise PluginError(f"{worker.name} has no {_NODE_NAME}: see whether this lunr separates the parts of node names")
    worker.write_text(text.replace(_NODE_NAME, _UNIQUE_NODE_NAME), encoding="utf-8")


def _read_heading_and_first_sentence(page: str) -> tuple[str, str]:
    """Return the heading and the first sentence of a page."""
    body = page.partition("<article")[2]
    title = re.search(r"<h1[^>]*>(.*?)</h1>", body, re.DOTALL)
    after = body[title.end() :] if title else body
    words = re.search(r"<p>(.*?)</p>", after, re.DOTALL)
    plain = [
        " ".join(unescape(re.sub(r"<a class=.headerlink.*?</a>|<[^>]+>", "", one[1] if one else "")).split())
        for one in (title, words)
    ]
    return plain[0], re.split(r"(?<=[.?]) ", plain[1])[0]
