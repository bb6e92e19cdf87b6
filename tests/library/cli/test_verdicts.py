"""Commands that print verdicts: `explain`, `attention-table` and `attention-page`."""

from __future__ import annotations

import json
import os
import re
import shlex
from collections.abc import Iterable
from pathlib import Path

import pytest
from click.testing import CliRunner

from cudnn_backend_py import EnvironmentNotReady, attention, library, save_graph
from cudnn_backend_py.cli.commands import main
from cudnn_backend_py.cli.graph_file import load_graph_file
from cudnn_backend_py.diagnose.surveys.attention import SupportTable
from cudnn_backend_py.diagnose.surveys.inputs import available_versions, find_exact_version_name
from cudnn_backend_py.testing import assert_supported
from examples import flash_forward
from tests.library.diagnose.test_attention_support import TABLE_FILES, TABLES, assert_equals_stored_table
from tests.support.child import OLDER_VERSION, ROOT, run_code, run_python
from tests.support.logs import read_log_text
from tests.support.wheels import add_to_version_store


def test_explain_reports_the_shapes_that_a_plan_serves() -> None:
    graph = ROOT / "examples" / "flash_forward.py"
    result = CliRunner().invoke(main, ["explain", str(graph), "--target", "h100", "--format", "json"])
    assert json.loads(result.output)["shapes"].startswith("this plan serves only its own dims; a class plan"), (
        result.output
    )


@pytest.mark.parametrize("options", [("-v",), ("--format", "json"), ("--format", "html")])
def test_explain_reports_what_frameworks_would_do(options: tuple[str, ...], tmp_path: Path) -> None:
    output = tmp_path / "answer.txt"
    graph = ROOT / "examples" / "flash_forward.py"
    CliRunner().invoke(main, ["explain", str(graph), "--target", "h100", "--output", str(output), *options])
    text = output.read_text(encoding="utf-8")
    for name in ("torch", "TransformerEngine", "cudnn-frontend"):
        assert re.search(rf"{name} \d.*(uses cuDNN|queries cuDNN)", text), (name, text)


@pytest.mark.parametrize(
    ("options", "unwanted"),
    [
        (("--here",), ("versions.store", "system.child", "diagnose.causes", "cli.verdicts")),
        ((), ("versions.store", "diagnose.explanation", "diagnose.remedies", "known_issues", "cli.verdicts")),
    ],
)
def test_explain_imports_no_unused_module(options: tuple[str, ...], unwanted: tuple[str, ...], tmp_path: Path) -> None:
    save_graph(flash_forward.graph(), tmp_path / "graph.json")
    program = (
        "import atexit, sys\n"
        "atexit.register(lambda: print(*sys.modules, sep='\\n'))\n"
        "from cudnn_backend_py.__main__ import main\n"
        f"sys.argv[1:] = ['explain', {str(tmp_path / 'graph.json')!r}, '--target', 'h100', *{options!r}]\n"
        "main()\n"
    )
    loaded = run_code(program).stdout.splitlines()
    names = (
        "rich",
        "numpy",
        "importlib.metadata",
        *(f"cudnn_backend_py.{name}" for name in (*unwanted, "importers.graphs")),
    )
    assert [name for name in names if name in loaded] == []


def test_attention_page_command_prints_the_stored_docs_page() -> None:
    result = CliRunner().invoke(main, ["attention-page", *TABLE_FILES.values()], catch_exceptions=False)
    page = (ROOT / "docs" / "attention-support.md").read_text(encoding="utf-8")
    assert result.output == page, "run `make regen`, or `make attention-table` for new rows"
    refused = {cell.reason for table in TABLES.values() for cell in table.all_cells() if cell.answer in ("no", "crash")}
    assert all(f"`{reason}`" in page.partition("## Reasons")[2] for reason in refused)


def test_attention_table_judges_the_selected_rows() -> None:
    arguments = ["attention-table", "--target", "sm120", "--row", "fp8, causal", "--row", "forward: plain"]
    result = CliRunner().invoke(main, [*arguments, "--format", "json"], catch_exceptions=False)
    assert result.exit_code == 0
    table = SupportTable.from_json(result.output)
    assert list(table.cells) == [
        "forward: plain",
        *(f"{way}: {fp8}, causal" for way in ("forward", "backward") for fp8 in ("fp8", "mxfp8")),
    ]
    assert table.targets == ("sm120",)
    assert_equals_stored_table(table)


def test_attention_table_prints_answers_with_engines_and_numbered_reasons() -> None:
    arguments = ["attention-table", "--target", "sm120", "--target", "sm90", "--row", "forward: fp8, causal"]
    done = CliRunner().invoke(main, arguments, catch_exceptions=False)
    assert done.exit_code == 0
    title, head, *lines = done.stdout.splitlines()
    assert title.split()[0] == "cuDNN"
    assert head.split() == ["attention", "written", "as", "sm120", "sm90"]
    assert lines[0].startswith("forward: fp8, causal")
    table = SupportTable.from_json(CliRunner().invoke(main, [*arguments, "--format", "json"]).stdout)
    answers = {cell.answer for cell in table.all_cells()}
    assert answers <= {word for line in lines for word in line.split()}
    reasons = {cell.reason for cell in table.all_cells() if cell.reason}
    assert {line.partition(": ")[2] for line in lines if line[0].isdigit()} == reasons


def test_attention_table_refuses_an_unknown_row() -> None:
    result = CliRunner().invoke(main, ["attention-table", "--row", "mamba"])
    assert result.exit_code == 2
    assert "no row has 'mamba' in its name" in result.output


def test_the_cudnn_option_accepts_the_version_of_the_environment(tmp_path: Path) -> None:
    own = library().version_text
    graph = str(ROOT / "examples" / "flash_forward.py")
    arguments = ["-m", "cudnn_backend_py", "--cudnn", own, "explain", graph, "--target", "sm90"]
    done = run_python(arguments, environment={**os.environ, "CUDNN_BACKEND_CACHE": str(tmp_path)}, check=True)
    assert done.stdout.splitlines()[0].endswith(f"(sm_90), cuDNN {library().build_text}")


def test_versions_are_completed_to_the_name_of_the_installed_build(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDNN_BACKEND_CACHE", str(tmp_path / "store"))
    add_to_version_store(tmp_path / "store")
    names = ("9.19", "9.19.0", "9.19.0+cu12", "9.19-jit", "9.19.0.56", "9.18", "default")
    assert [find_exact_version_name(name) for name in names] == [
        *(("9.19.0+cu12",) * 3),
        "9.19.0+cu12-jit",
        "9.19.0.56+cu12",
        "9.18",
        "default",
    ]


def test_matrix_and_explain_have_the_same_target_names_in_json() -> None:
    graph = str(ROOT / "examples" / "flash_forward.py")
    arguments = ["matrix", graph, "--target", "a100", "--cudnn", "default", "--format", "json"]
    found = json.loads(CliRunner().invoke(main, arguments).stdout)
    assert found["profiles"] == {"a100": "a100-80gb"}
    explained = CliRunner().invoke(main, ["explain", graph, "--target", "a100", "--format", "json"])
    assert json.loads(explained.stdout)["target"] == "a100-80gb"


def test_frontend_command_counts_graphs_built_with_older_cudnn(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        "import cudnn\n"
        "half, single = cudnn.data_type.HALF, cudnn.data_type.FLOAT\n"
        "for name in ('once', 'twice', 'twice'):\n"
        "    g = cudnn.pygraph(name=name, io_data_type=half, intermediate_data_type=single, compute_data_type=single)\n"
        "    a, b = (g.tensor(name=x, dim=[1, 64, 64], stride=[4096, 64, 1]) for x in 'ab')\n"
        "    g.matmul(A=a, B=b).set_output(True)\n"
        "    g.build([cudnn.heur_mode.A, cudnn.heur_mode.FALLBACK])\n"
        "print(cudnn.backend_version())\n"
    )
    for module in (["cudnn_backend_py", "frontend"], ["cudnn_backend_py.frontend"]):
        done = run_python(["-m", *module, "--target", "h100", "--cudnn", OLDER_VERSION, str(program)])
        assert (done.code, done.stdout) == (0, "91900\n"), done.stderr
        assert done.stderr == (
            f"cudnn_backend_py.frontend ran {program} for h100: 3 graphs were built: twice (2), once\n"
        )


def test_the_command_that_log_prints_for_a_refused_graph_works_as_printed(tmp_path: Path) -> None:
    file = tmp_path / "three graphs.log"
    file.write_text("".join(read_log_text(name) for name in ("torch-attention-9.19.0.log.gz", "forum-9.1.1.log.gz")))
    done = CliRunner().invoke(main, ["log", str(file), "--target", "t4"])
    lines = done.stdout.splitlines()
    [printed, *_] = [line for line in lines if line.startswith("cudnn-backend ")]
    assert shlex.split(printed)[1:] == ["explain", "--whatif", str(file), "--graph", "1", "--target", "t4"]
    assert lines[-1].startswith(
        "The log is of cuDNN 9.1.1, 9.19.0, the verdicts are of cuDNN 9.28.0+cu12: --cudnn 9.19.0 "
    )
    found = CliRunner().invoke(main, [*shlex.split(printed)[1:], "--no-build"])
    assert (found.exit_code, found.stdout.partition(":")[0]) == (0, "NOT SUPPORTED")
    assert "1. sm_90 (" in found.stdout


def test_since_installs_the_version_in_the_middle_until_the_first_one_is_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph = attention.sdpa_forward(
        batch=2, heads=8, seq_q=512, head_dim=128, data_type="fp8_e4m3", output_type="bf16", mx=True
    )
    save_graph(graph, tmp_path / "mx.json")
    requested: list[str] = []

    def install(versions: Iterable[str]) -> None:
        requested.extend(versions)
        if requested[-1] == "9.21":
            raise EnvironmentNotReady("no network", code="cudnn-version-not-installed")

    monkeypatch.setattr("cudnn_backend_py.cli.verdicts.install_missing_versions", install)
    words = ["matrix", str(tmp_path / "mx.json"), "--target", "b200", "--cudnn", "9.14.0", "--cudnn", "9.24.0"]
    done = CliRunner().invoke(main, [*words, "--since"])
    assert "not judged is 9.15 to 9.23; --install installs up to 4 of these" in done.stdout
    done = CliRunner().invoke(main, [*words, "--since", "--install"])
    assert (done.exit_code, requested) == (2, ["9.14.0", "9.24.0"] * 2 + ["9.19", "9.21"])
    assert "--install applies only with --since" in CliRunner().invoke(main, [*words, "--install"]).stderr


@pytest.mark.parametrize(("target", "remedy"), [("h100", r""), ("sm89", r", and there: judge for sm_90 .*")])
def test_log_assertion_and_baseline_show_the_judged_older_version_as_explain_does(
    target: str, remedy: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    versions = (*available_versions(), "9.27.0+cu12")  # which has no such pattern either, so it is not judged
    monkeypatch.setattr("cudnn_backend_py.diagnose.other_versions.available_versions", lambda: versions)
    graph = load_graph_file(str(ROOT / "examples" / "forum_two_matmul.py"))
    file = str(tmp_path / "forum.json")
    save_graph(graph, file)
    baseline = tmp_path / "verdicts.toml"
    baseline.write_text(
        f'schema = "cudnn-backend-py/check"\nversion = 1\ntargets = ["{target}"]\n[graphs]\nforum = "forum.json"\n'
    )
    with pytest.raises(AssertionError) as failure:
        assert_supported(graph, target)
    texts = [str(failure.value)]
    for words in (["explain", file, "--target", target], ["log", file, "--target", target], ["check", str(baseline)]):
        done = CliRunner().invoke(main, words)
        assert done.exit_code == 1, done.output
        assert "--whatif" not in done.stdout
        texts.append(done.stdout)
    rows = [re.search(r"^remedy .*\n(?: .*\n)*", text, re.MULTILINE)[0].split() for text in texts]  # type: ignore[index]
    alone, *found = map(" ".join, rows)
    assert len(set(found)) == 1, found
    pattern = rf"remedy use cuDNN (9\.\d+\.0\+cu12) \(--cudnn \1\){remedy} \[passes its support check, not built\]"
    assert re.fullmatch(pattern, found[0])
    assert alone == re.sub(r" \(--cudnn \S+\)", "", found[0])  # pytest has no such option
    assert "(-v" not in texts[0]
