"""The fix of every known issue leads to a graph or a cuDNN version without another known issue."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from cudnn_backend_py import Graph
from cudnn_backend_py.known_issues import FAULTS, KnownIssue, find_known_issues
from cudnn_backend_py.system.version import Version, VersionTuple
from tests.known_issues import EXAMPLES, make_example_graph

CODES = [row.code for row in FAULTS]
BY_CODE = dict(zip(CODES, FAULTS, strict=True))
RELEASES = [(9, minor, 0) for minor in range(29)]
RELEASES += [(9, 10, 1), (9, 10, 2), (9, 13, 1), (9, 15, 1), (9, 18, 1), (9, 23, 1), (9, 24, 1), (9, 25, 1)]
AVOIDED = {  # these versions have a row about all attention, regardless of the fix of the graph
    (9, 10, 0),
    (9, 10, 1),
    (9, 23, 0),
}
NAMED = re.compile(r"(?:use|or) (9\.\d+\.\d+)( or later)?")


def get_affected_sm(row: KnownIssue) -> int:
    return row.sm[0] if row.sm else 90


def find_issue_codes(graph: Graph, row: KnownIssue, version: VersionTuple) -> set[str]:
    """Return the codes of a graph's known issues: those that depend only on the graph, and the one in `row`."""
    found = find_known_issues(graph, get_affected_sm(row), version)
    return {issue.code for issue in found if issue.code == row.code or not issue.depends_on}


def find_fixed_version(row: KnownIssue) -> VersionTuple | None:
    """Return the version that the row's fix names, else the first version without the issue."""
    later = [Version.from_text(text) for text, or_later in NAMED.findall(row.fix) if or_later]
    return later[0] if later else row.until


def iterate_issues_before_and_after_fixes(row: KnownIssue) -> Iterator[tuple[set[str], set[str], VersionTuple]]:
    """Yield, for each fix of a known issue, the codes found before and after the fix, and the cuDNN version."""
    held = sorted(version for version in RELEASES if version in row.versions)
    for made in EXAMPLES[row.code].reproductions.values():
        for version in held:
            before = find_issue_codes(make_example_graph(made), row, version) | {row.code}
            if EXAMPLES[row.code].fixed is not None:
                yield (
                    before,
                    find_issue_codes(make_example_graph(EXAMPLES[row.code].fixed, version), row, version),
                    version,
                )
            if row.sharing is not None:  # a plan for each shape
                yield before, find_issue_codes(make_example_graph(made, version), row, version), version
        fixed_version = find_fixed_version(row)
        if fixed_version is not None:
            before = find_issue_codes(make_example_graph(made), row, held[-1]) | {row.code}
            yield before, find_issue_codes(make_example_graph(made, fixed_version), row, fixed_version), fixed_version


@pytest.mark.parametrize("code", CODES)
def test_a_fix_removes_the_issue_and_adds_no_other(code: str) -> None:
    row = BY_CODE[code]
    ways = list(iterate_issues_before_and_after_fixes(row))
    assert ways
    for before, after, version in ways:
        assert code not in after, version
        assert version in AVOIDED or after <= before, version


@pytest.mark.parametrize("code", CODES)
def test_every_issue_has_a_fix_that_leaves_no_known_issue(code: str) -> None:
    assert any(not after for _, after, _ in iterate_issues_before_and_after_fixes(BY_CODE[code]))


@pytest.mark.parametrize("code", CODES)
def test_versions_named_in_a_fix_are_not_affected(code: str) -> None:
    row = BY_CODE[code]
    for text, later in NAMED.findall(row.fix):
        version = Version.from_text(text)
        assert version not in row.versions
        if later:
            assert (9, 99, 0) not in row.versions
            assert row.until is not None
            assert version >= row.until


def test_more_than_20_fix_texts_name_cudnn_versions() -> None:
    assert sum(len(NAMED.findall(row.fix)) for row in FAULTS) > 20


def test_more_than_40_known_issues_have_a_corrected_example_graph() -> None:
    assert sum(EXAMPLES[row.code].fixed is not None for row in FAULTS) > 40
