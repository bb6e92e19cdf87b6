"""Bisection over cuDNN versions, and support matrices (verdicts by graph, GPU and version); loads no library."""

from __future__ import annotations

import dataclasses
import json
from itertools import product

import pytest

from cudnn_backend_py.diagnose.report.tables import (
    format_verdict_matrix_markdown,
    render_as_text,
    render_supporting_version_range,
    render_verdict_matrix,
)
from cudnn_backend_py.diagnose.surveys.matrix import Cell, Matrix, matrix
from cudnn_backend_py.diagnose.surveys.since import Since, _bisect_supporting_version_range, since
from cudnn_backend_py.diagnose.verdict import Outcome
from cudnn_backend_py.errors import UsageError
from cudnn_backend_py.graph.attention import sdpa_forward
from cudnn_backend_py.system.streams import format_markdown_table

CELL_BY_LETTER = {
    "S": Cell(Outcome.SUPPORTED, engines=(1, 2), stage="heuristics"),
    "-": Cell(Outcome.NOT_SUPPORTED, "refused", "head dim 20 is no multiple of 8", stage="heuristics"),
    "?": Cell(Outcome.NOT_JUDGED, "no-gpu", "there is no GPU", stage="environment"),
    "!": Cell(Outcome.NOT_JUDGED, "cudnn-crashed", "cuDNN crashed with SIGSEGV in heuristics", stage="heuristics"),
}
SUPPORT_BY_LETTER = {"S": True, "-": False, "?": None}


def bisect_fake_versions(truth: str) -> Since:
    """Bisect fake versions, oldest first; each letter of `truth` is the outcome for one version."""
    versions = tuple(f"9.{number}.0" for number in range(len(truth)))
    of = dict(zip(versions, truth, strict=True))
    answers: dict[str, Cell] = {}

    def record_and_return_support(version: str) -> bool | None:
        answers[version] = CELL_BY_LETTER[of[version]]
        return SUPPORT_BY_LETTER[of[version]]

    _bisect_supporting_version_range(list(versions), record_and_return_support)
    return Since("g", "sm90", versions, {one: answers[one] for one in versions if one in answers})


@pytest.mark.parametrize(("begin", "end"), [(begin, end) for end in range(1, 13) for begin in range(end)])
def test_bisection_finds_any_range_of_supporting_versions(begin: int, end: int) -> None:
    found = bisect_fake_versions("-" * begin + "S" * (end - begin) + "-" * (12 - end))
    assert (found.first, found.last) == (f"9.{begin}.0", f"9.{end - 1}.0")
    assert found.first_after == (f"9.{end}.0" if end < 12 else None)
    assert found.monotone


def test_bisection_skips_versions_without_a_verdict() -> None:
    for truth in map("".join, product("S-?", repeat=6)):
        known = truth.replace("?", "")
        if known.count("-S") + known.startswith("S") != 1:  # not one span
            continue
        found = bisect_fake_versions(truth)
        assert found.first == f"9.{truth.index('S')}.0", truth
        assert found.last == f"9.{truth.rindex('S')}.0", truth


def test_bisection_needs_few_queries() -> None:
    assert len(bisect_fake_versions("-" * 700 + "S" * 324).asked) <= 12
    assert len(bisect_fake_versions("S" * 64).asked) == 2
    assert len(bisect_fake_versions("-" * 64).asked) == 64


def test_support_lost_and_regained_by_versions_is_reported() -> None:
    versions = ("9.0.0", "9.1.0", "9.2.0", "9.3.0")
    found = Since("g", "sm90", versions, dict(zip(versions, map(CELL_BY_LETTER.get, "S-S-"), strict=True)))  # type: ignore[arg-type]
    assert (found.first, found.last, found.first_after) == ("9.0.0", "9.2.0", "9.3.0")
    assert not found.monotone
    assert "not monotone: 9.1.0" in render_as_text(render_supporting_version_range(found))


@pytest.mark.parametrize(("truth", "code"), [("--", 1), ("??", 2), ("-?", 2), ("?S", 0), ("-S", 0)])
def test_a_bisection_has_the_documented_exit_code(truth: str, code: int) -> None:
    assert bisect_fake_versions(truth).exit_code == code


@pytest.mark.parametrize(
    ("truth", "says", "before", "after"),
    [
        ("?S-", "supported from 9.1.0 at the latest to 9.1.0;", ("9.0.0",), ()),
        ("-?S", "supported from 9.2.0 at the latest on\n", ("9.1.0",), ()),
        ("-S?", "supported from 9.1.0 to 9.1.0 at least\n", (), ("9.2.0",)),
        ("-!S", "supported from 9.2.0 on\n", (), ()),  # a crash is an answer of that version
        ("?-S", "supported from 9.2.0 on\n", (), ()),
        ("?-", "supported by none of the 1 versions that could judge\n", (), ()),
    ],
)
def test_cells_without_a_verdict_are_not_counted_as_refusals(
    truth: str, says: str, before: tuple[str, ...], after: tuple[str, ...]
) -> None:
    versions = tuple(f"9.{number}.0" for number in range(len(truth)))
    found = Since(
        "g", "sm90", versions, {one: CELL_BY_LETTER[letter] for one, letter in zip(versions, truth, strict=True)}
    )
    assert (found.open_before, found.open_after) == (before, after)
    assert says in render_as_text(render_supporting_version_range(found))
    assert (found.to_dict()["open_before"], found.to_dict()["open_after"]) == (list(before), list(after))


def test_versions_that_were_not_judged_are_listed() -> None:
    text = render_as_text(render_supporting_version_range(bisect_fake_versions("SSSSS")))
    assert "not judged: 9.1.0, 9.2.0, 9.3.0" in text
    assert "support may be older; 'cudnn-backend cudnn list --available'" in text


def make_support_matrix_of_fake_versions(letters: str) -> Matrix:
    versions = tuple(f"9.{number}.0" for number in range(len(letters)))
    cells = {("g", "sm90", version): CELL_BY_LETTER[one] for version, one in zip(versions, letters, strict=True)}
    return Matrix(("g",), ("sm90",), versions, cells)


def test_a_support_matrix_is_read_from_its_json_unchanged() -> None:
    whole = make_support_matrix_of_fake_versions("S-?!")
    assert Matrix.from_dict(json.loads(json.dumps(whole.to_dict()))) == whole


@pytest.mark.parametrize(("key", "value"), [("schema", "other"), ("version", 2), ("cells", [{"graph": "g"}])])
def test_an_invalid_support_matrix_is_refused(key: str, value: object) -> None:
    with pytest.raises(UsageError, match="matrix-schema"):
        Matrix.from_dict(make_support_matrix_of_fake_versions("S").to_dict() | {key: value})


@pytest.mark.parametrize(("letters", "code"), [("S", 0), ("S-", 1), ("S-?", 2), ("!", 2)])
def test_a_support_matrix_has_the_documented_exit_code(letters: str, code: int) -> None:
    assert make_support_matrix_of_fake_versions(letters).exit_code == code


def test_a_matrix_table_has_version_letters_and_each_cause_once() -> None:
    lines = render_as_text(render_verdict_matrix(make_support_matrix_of_fake_versions("S--?!"))).splitlines()
    assert next(line.split() for line in lines if line.strip().startswith("sm90")) == [
        "sm90",
        "S",
        "-1",
        "-1",
        "?2",
        "!3",
    ]
    assert [line.split()[0] for line in lines if line.endswith("of 8")] == ["-1"]
    assert any(line.startswith("!3") and "SIGSEGV" in line for line in lines)


def test_causes_that_differ_only_in_the_architecture_are_listed_once() -> None:
    targets = ("sm86", "sm89", "sm120", "sm75")
    causes = {name: f"{name[:2]}_{name[2:]} has 99 KiB, sm_90 has more" for name in targets[:3]}
    causes["sm75"] = "sm_75 does not support it"
    cells = {
        ("g", name, "9.0.0"): dataclasses.replace(CELL_BY_LETTER["-"], headline=cause) for name, cause in causes.items()
    }
    table = render_as_text(render_verdict_matrix(Matrix(("g",), targets, ("9.0.0",), cells)))
    assert [line.split()[1] for line in table.splitlines() if line.startswith("sm")] == ["-1", "-1", "-1", "-2"]
    assert "-1  sm_86, sm_89 or sm_120 has 99 KiB, sm_90 has more\n-2  sm_75 does not support it\n" in table


def test_a_matrix_in_markdown_has_the_letters_of_its_text_table() -> None:
    matrix = make_support_matrix_of_fake_versions("S-?!")
    text = format_verdict_matrix_markdown(matrix)
    assert "| target | 9.0.0 | 9.1.0 | 9.2.0 | 9.3.0 |\n|---|---|---|---|---|\n| sm90 | S | -1 | ?2 | !3 |\n" in text
    for letter, cell in (("-1", CELL_BY_LETTER["-"]), ("!3", CELL_BY_LETTER["!"])):
        assert f"* {letter}: {cell.headline}" in text


def test_pipes_and_newlines_in_a_markdown_cell_are_escaped() -> None:
    assert format_markdown_table(["a", "b"], [["1|2", "x\ny"]], right=["b"])[1:] == ["|---|---:|", "| 1\\|2 | x y |"]


def test_a_narrow_table_still_shows_its_versions_and_targets() -> None:
    whole = make_support_matrix_of_fake_versions("S" * 14)
    lines = render_as_text(render_verdict_matrix(whole), width=80).splitlines()
    heads = [number for number, line in enumerate(lines) if line.startswith("target")]
    assert [name for head in heads for name in lines[head].split()[1:]] == [*whole.versions]
    assert [lines[head + 1].split() for head in heads] == [["sm90", *"S" * 8], ["sm90", *"S" * 6]]
    assert max(map(len, lines)) <= 80


GRAPH = sdpa_forward(batch=1, heads=1, seq_q=64, head_dim=64)


@pytest.mark.parametrize(
    ("graphs", "targets", "versions", "code"),
    [
        ([GRAPH, GRAPH], ["sm90"], [None], "matrix-graph-names"),
        ([], ["sm90"], [None], "matrix-empty"),
        ([GRAPH], [], [None], "matrix-empty"),
        ([GRAPH], ["sm90"], [], "matrix-empty"),
        ([GRAPH], ["sm90", "sm91"], [None], "unknown-target"),
    ],
)
def test_invalid_support_matrix_arguments_are_refused(graphs: list, targets: list, versions: list, code: str) -> None:  # type: ignore[type-arg]
    with pytest.raises(UsageError, match=code):
        matrix(graphs, targets, versions)


def test_the_since_function_requires_at_least_one_version() -> None:
    with pytest.raises(UsageError, match="matrix-empty"):
        since(GRAPH, "sm90", [])


def make_since_result_with_known_issues(issues: tuple[str, ...]) -> Since:
    """Return a `Since`: 9.24.0 supports the graph but has these issues and one more, 9.25.0 refuses it."""
    supported = Cell(Outcome.SUPPORTED, "", "", (), "", (*issues, "both"))
    refused = Cell(Outcome.NOT_SUPPORTED, "", "", (), "", ("both",))
    return Since("g", "sm100", ("9.24.0", "9.25.0"), {"9.24.0": supported, "9.25.0": refused})


def test_a_refusal_that_removes_a_known_issue_is_not_a_regression() -> None:
    found = make_since_result_with_known_issues(("a matmul: it crashes (its-code)",))
    assert (found.repaired, found.sound, found.exit_code) == (("a matmul: it crashes (its-code)",), None, 1)
    text = render_as_text(render_supporting_version_range(found))
    assert "accepted from 9.24.0 to 9.24.0, with a known issue; 9.25.0 refuses it" in text
    assert "no version supports it without it; do not go back to 9.24.0" in text
    assert "supported since" not in text


def test_the_oldest_judged_version_is_not_called_the_oldest_installed() -> None:
    """Versions may be named, and others installed."""
    found = Since("g", "sm90", ("9.19.0", "9.28.0"), {"9.19.0": CELL_BY_LETTER["S"]})
    text = render_as_text(render_supporting_version_range(found))
    assert "9.19.0 is the oldest version judged: support may be older: not judged is 9.13 to 9.18; --install" in text
    assert "installed" not in text


def test_a_refusal_without_a_known_issue_is_a_regression() -> None:
    found = make_since_result_with_known_issues(())
    assert (found.repaired, found.sound, found.exit_code) == ((), "9.24.0", 0)
    text = render_as_text(render_supporting_version_range(found))
    assert "supported from 9.24.0 to 9.24.0; refused by 9.25.0, the next version judged" in text


@pytest.mark.parametrize(
    ("versions", "letters", "said"),
    [
        (
            ("9.19.0", "9.28.0"),
            "-S",
            "not judged is 9.20 to 9.27; --install installs up to 4 of these, some 60 MB each, and judges again",
        ),
        (("9.19.0", "9.21.1+cu12"), "-S", "not judged is 9.20; --install installs it, some 60 MB, and"),
        (("9.14.0", "9.19.0"), "S-", "may have ended between 9.14.0 and 9.19.0: not judged is 9.15 to 9.18; "),
        (("9.14.0", "9.17.0", "9.19.0"), "S?-", "between 9.14.0 and 9.19.0: not judged is 9.15 to 9.18; --install"),
        (("9.20.0", "9.21.0"), "-S", None),
    ],
)
def test_versions_between_the_judged_ones_are_named_with_the_option_that_installs_them(
    versions: tuple[str, ...], letters: str, said: str | None
) -> None:
    cells = {version: CELL_BY_LETTER[letter] for version, letter in zip(versions, letters, strict=True)}
    text = render_as_text(render_supporting_version_range(Since("g", "sm90", versions, cells)))
    assert (said in text) if said else ("not judged is" not in text)
