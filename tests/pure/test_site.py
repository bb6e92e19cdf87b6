"""The website without building it: navigation, included files, explanations of cuDNN's reasons, dead links."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from cudnn_backend_py.cli.commands import main
from cudnn_backend_py.diagnose.causes.rule_texts import convert_sphinx_roles_to_markdown, find_rule_name_for_reason
from tools.website.links import find_dead_links
from tools.website.pages import make_source_files_page
from tools.website.reasons import (
    REASONS_TABLE_PATH,
    list_reason_entries,
    list_rules,
    make_reason_lookup_table,
    make_reason_search_key,
)

ROOT = Path(__file__).parents[2]
CONFIG = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
NAMED = re.findall(r"^ +- (?:[^:\n]+: )?(\S+\.md)$", CONFIG.partition("\nnav:\n")[2], re.MULTILINE)
# Written during the build of the site, from files elsewhere in the repository.
MADE = {f"project/{name}.md" for name in ("changelog", "contributing", "security", "code-of-conduct")}
MADE |= {"reference/header.md", "tutorials/notebook.md"}
S = "CUDNN_STATUS_NOT_SUPPORTED"


def test_every_page_is_in_the_navigation_once() -> None:
    pages = {str(path.relative_to(ROOT / "docs")) for path in ROOT.glob("docs/**/*.md")}
    assert sorted(NAMED) == sorted(pages | MADE)


QUOTE = re.compile(r'^--8<-- "([^":]+)(?::([^"]+))?"$', re.MULTILINE)
QUOTED = {match.groups() for path in ROOT.glob("docs/**/*.md") for match in QUOTE.finditer(path.read_text("utf-8"))}


@pytest.mark.parametrize(("path", "part"), sorted(QUOTED, key=str))
def test_markers_of_included_sections_exist(path: str, part: str | None) -> None:
    """Pages include a whole file, or the part between its `start` and `end` markers."""
    lines = [line.strip() for line in (ROOT / path).read_text(encoding="utf-8").splitlines()]
    assert part is None or lines.index(f"# --8<-- [start:{part}]") < lines.index(f"# --8<-- [end:{part}]")


def test_ci_page_includes_the_example_workflow() -> None:
    assert ("examples/workflow.yml", None) in QUOTED
    text = (ROOT / "examples/workflow.yml").read_text(encoding="utf-8")
    assert "architecture: [hopper, ampere]" in text
    commands = re.findall(r"cudnn-backend ([a-z]+)", text)
    assert {"check", "cudnn", "doctor", "run", "target"} <= set(commands) <= set(main.commands)


def test_page_of_source_files_describes_every_file() -> None:
    rows = re.findall(r"^\| `([^`]+)` \| (\S.*) \|$", make_source_files_page(), re.MULTILINE)
    files = [path for suffix in ("py", "c", "h", "cpp", "cu") for path in ROOT.glob(f"cudnn_backend_py/**/*.{suffix}")]
    assert sorted(name.rpartition("/")[2] for name, _ in rows) == sorted(path.name for path in files)


def test_refusal_reason_entries_have_unique_anchors_and_known_rules() -> None:
    found = list_reason_entries()
    assert len(found) > 500
    anchors = [entry.anchor for entry in found] + [rule.anchor for rule in list_rules()]
    assert len(set(anchors)) == len(anchors)
    assert {entry.rule for entry in found} <= {rule.name for rule in list_rules()}
    assert len({make_reason_search_key(entry.text) for entry in found}) == len(found)


def test_every_refusal_rule_has_a_description() -> None:
    for rule in list_rules():
        assert rule.title, rule.name
        assert "`:" not in rule.title + rule.text, rule.name
    by_docstring = [rule for rule in list_rules() if "Evidence" in rule.text]
    assert len(by_docstring) >= 15
    assert all(part in rule.text for rule in by_docstring for part in ("Problem", "Remedy", "Since"))


@pytest.mark.parametrize(
    ("status", "text", "rule"),
    [
        (f"{S}_SHAPE", "Embedding dim per head for q and k is not a multiple of 8 at: d_qk % 8 != 0", "head_dim"),
        (f"{S}_SHARED_MEMORY_INSUFFICIENT", "Kernel request for shared memory", "shared_memory_per_block_insufficient"),
        (f"{S}_ARCH_MISMATCH", "only Hopper is supported for this engine at: x", "vague"),
        (S, "cluster fits: cga_count == 0", "device"),
        (S, "nothing known", "none"),
    ],
)
def test_the_rule_explaining_a_refusal_message_is_found(status: str, text: str, rule: str) -> None:
    assert find_rule_name_for_reason(status, text) == rule


def test_regex_patterns_for_the_browser_have_no_inline_flags() -> None:
    table = make_reason_lookup_table()
    assert len(table["reasons"]) == len(list_reason_entries())
    for pattern, anchor, title in table["patterns"]:
        assert "(?i" not in pattern
        assert re.compile(pattern)
        assert anchor.startswith("rule-")
        assert title
    [either] = [re.compile(one[0]) for one in table["patterns"] if "[fF][pP]8" in one[0]]
    assert either.search("FP8 is not supported")
    assert either.search("block.scale e4m3")


def test_refusal_reason_search_keys_ignore_numbers_and_punctuation() -> None:
    assert make_reason_search_key("must be (1, 128, 8) but found (1, 128, 5) at: d != 8") == make_reason_search_key(
        "must be (2,64,8), but found 1 7 9 at d != 8"
    )
    assert make_reason_search_key("d_qk % 8 != 0") != make_reason_search_key("d_v % 8 != 0")


def test_refusal_reasons_come_from_several_cudnn_versions() -> None:
    versions = {version for entry in list_reason_entries() for version in entry.versions}
    assert {"9.14.0", "9.19.0", "9.28.0"} <= versions, REASONS_TABLE_PATH


def test_sphinx_roles_become_code_spans() -> None:
    assert (
        convert_sphinx_roles_to_markdown("see :func:`~a.b.name` and :class:`Graph`, ``x``")
        == "see `name` and `Graph`, `x`"
    )


def test_dead_links_are_reported(tmp_path: Path) -> None:
    (tmp_path / "a.html").write_text(
        '<a href="b.html#there">b</a><a href="https://example.org/x">out</a><img src="p.svg">'
    )
    (tmp_path / "b.html").write_text('<h2 id="there">b</h2><a href="a.html">a</a>')
    (tmp_path / "p.svg").write_text("<svg/>")
    assert find_dead_links(tmp_path) == []
    (tmp_path / "c.html").write_text(
        '<a href="b.html#gone">b</a><a href="d.html">d</a><a href="http://example.org">e</a>'
    )
    assert [line.split(": ", 1)[1] for line in find_dead_links(tmp_path)] == [
        "b.html#gone: no such place in it",
        "d.html: no such file",
        "http://example.org: neither a file of the site nor https",
    ]
