"""Command output compared with golden files (`make regen` writes them); options, shell completion, colours."""

from __future__ import annotations

import gzip
import io
import json
import os
import re
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from xml.etree import ElementTree

import click
import pytest
from click.shell_completion import get_completion_class
from click.testing import CliRunner, Result
from rich.text import Text

from cudnn_backend_py import GraphBuilder, PointwiseMode, native, save_graph
from cudnn_backend_py import command_line as group
from cudnn_backend_py.audit.__main__ import _parse_command as audit_program
from cudnn_backend_py.cli import options, output
from cudnn_backend_py.cli.commands import HELP_SECTIONS, main
from cudnn_backend_py.cli.graph_file import load_graph_file, load_graph_files
from cudnn_backend_py.cli.wheels import _install_missing_version, _replace_version_option
from cudnn_backend_py.errors import EnvironmentNotReady
from cudnn_backend_py.graph import graph_to_json
from cudnn_backend_py.importers.graphs import read_graphs
from cudnn_backend_py.plans.record import add_hash
from cudnn_backend_py.system.child import make_call_command
from cudnn_backend_py.system.nearest import find_most_similar_name
from cudnn_backend_py.system.version import __version__
from cudnn_backend_py.target import list_profiles
from cudnn_backend_py.terminal import open_console
from cudnn_backend_py.versions import store
from cudnn_backend_py.why.__main__ import _make_program_runner as why_program
from tests.support.logs import LOG_FOLDER, read_log_text
from tests.support.reporting import make_two_matmuls

GOLDEN_FOLDER = Path(__file__).parent / "golden"


def list_commands(command: click.Command, *before: str) -> Iterator[tuple[str, click.Command]]:
    """Yield the name and the command object of a command and of all its subcommands."""
    yield " ".join(before), command
    if isinstance(command, click.Group):
        for name in sorted(command.commands):
            yield from list_commands(command.commands[name], *before, name)


ALL_COMMANDS = dict(list_commands(main))
MODULE_PROGRAMS = {"python -m cudnn_backend_py.why": why_program, "python -m cudnn_backend_py.audit": audit_program}
HELP_COMMAND_LINES = [[*words.split(), "--help"] for words in ALL_COMMANDS]
LIST_COMMAND_LINES = [
    ["target", "list"],
    ["target", "show", "l40s"],
    ["target", "show", "l40s", "--format", "json"],
    ["cudnn", "list"],
    ["cudnn", "list", "--format", "json"],
    ["cache", "list"],
    ["cache", "list", "--format", "json"],
    ["audit", "--folder", "cases"],
    ["audit", "--folder", "cases", "--format", "json"],
    ["graph", "lint", "slow.json"],
    ["graph", "lint", "slow.json", "--format", "json"],
    ["graph", "lint", "good.json", "--format", "json"],
]
ERROR_COMMAND_LINES = [
    [],
    ["explan"],
    ["nothing-like-it"],
    ["good.json"],
    ["target", "lst"],
    ["--cudn", "9.19"],
    ["explain"],
    ["explain", "good.json", "--traget", "l40s"],
    ["explain", "good.json", "--format", "jsn"],
    ["explain", "good.json", "--format", "yaml"],
    ["explain", "good.json", "--output", "nowhere/out.txt"],
    ["explain", "good.json", "--limit", "long"],
    ["explain", "good.json", "--limit", "nan"],
    ["run", "good.json", "--limit", "-1"],
    ["explain", "good.json", "--cudnn", "9.19.0"],
    ["explain", "good.json", "--cudnn", "nine"],
    ["explain", "absent.json"],
    ["explain", "cut.json"],
    ["graph", "lint", "fails.py"],
    ["graph", "lint", "ours.py"],
    ["graph", "lint", "syntax.py"],
    ["graph", "lint", "none.py"],
    ["graph", "draw", "good.json", "--graph", "0"],
    ["graph", "draw", "large.json"],
    ["graph", "draw", "good.json", "--output", "good.gif"],
    ["graph", "draw", "good.json", "--graph", "2"],
    ["explain", "good.json", "--output", "good.svg"],
    ["target", "show", "l40z"],
    ["target", "show", "sm130"],
    ["cudnn", "remove", "9.19.0"],
    ["cudnn", "remove", "9.19.0", "--cuda", "14"],
    ["cudnn", "verify", "9.19.0"],
    ["matrix", "good.json", "--workers", "0"],
    ["check", "good.json", "--time"],
    ["run"],
    ["completion", "bsh"],
    ["explain", "good.json", "--target", "l40s", "--mode", "FALBACK"],
    ["why", "--formt", "json", "train.py"],
    ["why", "--format", "jsn", "train.py"],
]
COMMAND_LINES_BY_FILE = {"help": HELP_COMMAND_LINES, "lists": LIST_COMMAND_LINES, "errors": ERROR_COMMAND_LINES}
NARROW_COMMAND_LINES = [
    ["--help"],
    ["explain", "--help"],
    ["target", "list"],
    ["cudnn", "list"],
    ["explain", "g", "--fromat"],
]


def write_input_files(folder: Path) -> None:
    """Write the graph files and programs that the command lines of this module read."""
    graph = make_two_matmuls()
    save_graph(graph, folder / "good.json")
    text = (folder / "good.json").read_text(encoding="utf-8")
    (folder / "cut.json").write_text(text[:-20])
    g = GraphBuilder("large")
    y = g.tensor("x", (1, 1, 64))
    for _ in range(201):
        y = g.pointwise(PointwiseMode.RELU_FWD, y, virtual=False)
    save_graph(g.graph(), folder / "large.json")
    data = json.loads(text)
    data["tensors"][0]["strides"] = [one * 3 for one in data["tensors"][0]["strides"]]
    (folder / "slow.json").write_text(json.dumps(data))
    (folder / "beside.py").write_text("def make(sizes):\n    return sizes['batch']\n")
    (folder / "fails.py").write_text(
        "import subprocess\nimport beside\n\nsubprocess.run(['echo', 'a child says so'])\nprint('hello')\n\n\n"
        "def graph():\n    try:\n        return beside.make({})\n    except KeyError as error:\n"
        "        raise ValueError('sizes are needed') from error\n"
    )
    (folder / "ours.py").write_text(
        "from cudnn_backend_py import GraphBuilder\n\n\ndef graph():\n    b = GraphBuilder('g')\n"
        "    return b.matmul(b.tensor('x', (2, 3)), b.tensor('y', (4, 5)))\n"
    )
    (folder / "syntax.py").write_text("x = = 1\n")
    (folder / "none.py").write_text("")


def run_command(arguments: list[str], **environment: str) -> Result:
    return CliRunner().invoke(main, arguments, prog_name="cudnn-backend", env={"COLUMNS": "80", **environment})


def run_command_lines(lines: list[list[str]], folder: Path, **environment: str) -> str:
    """Run command lines and return their joined output, without parts that vary between machines."""
    parts = []
    for arguments in lines:
        done = run_command(arguments, **environment)
        said = f"\n[standard error]\n{done.stderr}" if done.stderr else ""
        parts.append(f"$ cudnn-backend {' '.join(arguments)}\n{done.stdout}{said}[exit code {done.exit_code}]\n")
    text = "\n".join(parts)
    for place in {str(folder), str(folder.resolve())}:
        text = text.replace(place, "FOLDER")
    return re.sub(rf"\b{re.escape(__version__)}\b", "VERSION", text)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name in ("NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE"):
        monkeypatch.delenv(name, raising=False)
    for name, value in make_cache_environment_variables(tmp_path).items():
        monkeypatch.setenv(name, value)
    return tmp_path


@pytest.fixture
def files(folder: Path) -> Path:
    write_input_files(folder)
    return folder


def make_cache_environment_variables(folder: Path) -> dict[str, str]:
    """Return the environment variables of the cache folders, set to paths inside ``folder``."""
    return {
        "CUDNN_BACKEND_CACHE": str(folder / "versions"),
        "CUDNN_BACKEND_PLAN_CACHE": str(folder / "plans"),
        "XDG_CACHE_HOME": str(folder / "user"),
    }


@pytest.mark.parametrize("name", COMMAND_LINES_BY_FILE)
def test_command_output_equals_the_golden_file(name: str, files: Path) -> None:
    assert run_command_lines(COMMAND_LINES_BY_FILE[name], files) == (GOLDEN_FOLDER / f"{name}.txt").read_text(
        encoding="utf-8"
    ), "run `make regen`"


def test_command_output_in_forty_columns_equals_the_golden_file(files: Path) -> None:
    text = run_command_lines(NARROW_COMMAND_LINES, files, COLUMNS="40")
    assert text == (GOLDEN_FOLDER / "narrow.txt").read_text(encoding="utf-8"), "run `make regen`"
    assert "..." not in text.replace("[ARGS]...", "").replace("GRAPH...", "")
    assert "…" not in text
    helps = text.partition("$ cudnn-backend target list")[0]
    assert max(map(len, helps.splitlines())) <= 40


# Help


def test_every_command_is_in_one_help_section() -> None:
    assert sorted(name for names in HELP_SECTIONS.values() for name in names) == sorted(
        name for name, command in main.commands.items() if not command.hidden
    )


def test_no_command_summary_is_truncated_at_eighty_columns(folder: Path) -> None:
    for words, command in ALL_COMMANDS.items():
        if isinstance(command, click.Group):
            lines = run_command([*words.split(), "--help"]).stdout.splitlines()
            for name, one in command.commands.items():
                if one.hidden:
                    continue
                summary = one.get_short_help_str(1000)
                assert "..." not in summary
                assert any(line.split() == [name, *summary.split()] for line in lines), (words, name)


def test_exit_codes_equal_the_documented_exit_codes() -> None:
    page = (Path(__file__).parents[3] / "docs" / "how-to" / "command-line.md").read_text(encoding="utf-8")
    printed = run_command(["--help"]).stdout.partition("Exit codes:\n")[2]
    for code, text in output.EXIT_CODES.items():
        assert re.search(rf"^ +{code} +{re.escape(text)}$", printed, re.MULTILINE)
        assert f"| {code} | {text} |" in page


def test_documented_output_formats_equal_the_command_options() -> None:
    page = (Path(__file__).parents[3] / "docs" / "how-to" / "command-line.md").read_text(encoding="utf-8")
    named = re.findall(r"^\| (`.*) \| (`.*) \|$", page.partition("### Formats")[2].partition("\n## ")[0], re.MULTILINE)
    documented = {
        form: set(re.findall("`([a-z ]+)`", commands))
        for forms, commands in named
        for form in re.findall("`(.+?)`", forms)
    }
    found: dict[str, set[str]] = defaultdict(set)
    for words, one in list_all_options():
        if words in ALL_COMMANDS and not ALL_COMMANDS[words].hidden and one.name == "style":
            for form in set(one.type.to_info_dict()["choices"]) - {"text", "json"}:
                found[form].add(words)
    assert documented == found


# Options


def list_all_options() -> Iterator[tuple[str, click.Option]]:
    for words, command in (ALL_COMMANDS | MODULE_PROGRAMS).items():
        for one in command.params:
            if isinstance(one, click.Option):
                yield words, one


HELP_TEXT_STARTS = {
    "--format": "The format: ",
    "--target": "A described GPU (l40s, sm89, a JSON file); ",
    "--cudnn": "Judge with this installed cuDNN",
    "--mode": "Heuristics mode: A, B",
    "--build": "Also build a plan: compilation can fail where the check passed.",
    "--cuda": "CUDA major version of the wheel.",
}
OUTPUT_HELP_TEXTS = {
    "plan build": "Write the plan here; required.",
    "plan tune": "Write the figures here, as JSON.",
    "target verify": "Write the answers here, as JSON; named after architecture and version if not given.",
    "python -m cudnn_backend_py.why": "Write it here, not to standard error.",
    "python -m cudnn_backend_py.audit": "Write it here, not to standard error, and as JSON.",
}
METAVARS = {"--output": "FILE", "--plot": "FILE", "--target": "NAME", "--cudnn": "VERSION"}
METAVARS |= {"--limit": "SECONDS", "--budget": "SECONDS", "--reduce": "SECONDS", "--folder": "FOLDER"}


def test_options_have_consistent_names_metavars_and_help_texts() -> None:
    by_help = defaultdict(set)
    for words, one in list_all_options():
        names, text = [name for name in one.opts if name.startswith("--")], one.help
        assert len(names) == 1, (words, names)
        assert text, (words, names)
        (name,) = names
        assert text.startswith(HELP_TEXT_STARTS.get(name, "")), (words, name)
        if name == "--output":
            assert text == OUTPUT_HELP_TEXTS.get(words, "Write it here, not to standard output.")
        if name in METAVARS:
            context = click.Context(click.Command("x"))
            assert (one.metavar or one.make_metavar(context)) == METAVARS[name], (words, name)
        if isinstance(one.type, output.OutputFile):
            assert name in ("--output", "--plot"), words
        if isinstance(one.type, options.TargetParameter):
            assert name == "--target" or (words, name) == ("target verify", "--as"), words
        if isinstance(one.type, options.InstalledVersionParameter):
            assert name == "--cudnn", words
        by_help[text].add(name)
    assert {text: names for text, names in by_help.items() if len(names) > 1} == {}


def test_every_list_command_can_print_json() -> None:
    for words, command in ALL_COMMANDS.items():
        forms = [one.type for one in command.params if "--format" in one.opts]
        if forms and words != "graph draw":
            assert isinstance(forms[0], group.Choice)
            assert "json" in forms[0].choices, words
        if words.endswith(" list"):
            assert forms, words


def test_every_choice_option_suggests_the_nearest_value() -> None:
    for words, command in ALL_COMMANDS.items():
        for one in command.params:
            assert not isinstance(one.type, click.Choice) or isinstance(one.type, group.Choice), (words, one.name)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--whatif --target l40s --target h100", "--whatif cannot be combined with more than one --target"),
        ("--format archive g.py", "--format archive cannot be combined with more than one GRAPH"),
        ("--whatif --execute --format junit", "--whatif cannot be combined with --execute and --format junit"),
    ],
)
def test_the_error_names_the_incompatible_explain_options(words: str, message: str) -> None:
    done = CliRunner().invoke(main, ["explain", "graph.py", *words.split()])
    assert (done.exit_code, message + "\n" in done.output) == (2, True)


def test_global_and_command_cudnn_options_are_removed_separately() -> None:
    words = ["--cudnn", "9.19", "matrix", "g", "--cudnn", "9.28"]
    assert _replace_version_option(words, None, whole=True) == ["matrix", "g", "--cudnn", "9.28"]
    assert _replace_version_option(words[2:], None, whole=False) == ["matrix", "g"]


def test_the_command_of_an_entry_point_uses_this_python() -> None:
    command = make_call_command("cudnn_backend_py.cli.commands:main", "--version")
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.startswith("cudnn-backend, version")


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ("--cudnn 9.19 explain g.py --cudnn=9.24 --build", "explain g.py --build"),
        ("explain --cudnn 9.19 -- --cudnn=a.py --cudnn", "explain -- --cudnn=a.py --cudnn"),
        ("explain --cudnn", "explain"),
    ],
)
def test_the_cudnn_option_is_not_passed_to_the_child_process(given: str, kept: str) -> None:
    assert _replace_version_option(given.split(), None, whole=False) == kept.split()


def test_output_format_follows_the_file_suffix(folder: Path) -> None:
    for name, begins in {"t.json": "[", "t.txt": "name ", "t": "name "}.items():
        done = run_command(["target", "list", "--output", name])
        assert (done.exit_code, done.output) == (0, "")
        assert Path(name).read_text(encoding="utf-8").startswith(begins)
    assert run_command(["target", "list", "--output", "t.json", "--format", "text"]).exit_code == 0
    assert Path("t.json").read_text(encoding="utf-8").startswith("name ")


def test_target_list_as_json_has_all_profiles() -> None:
    found = json.loads(run_command(["target", "list", "--format", "json"]).stdout)
    assert [(one["name"], one["sm"]) for one in found] == [(one.name, one.sm) for one in list_profiles()]
    assert all(one["properties"]["deviceVer"] == 10 * one["sm"] for one in found)


# Suggestions


def test_the_nearest_name_is_suggested_for_a_misspelt_name() -> None:
    assert find_most_similar_name("EXPLIAN", ["lint", "explain"]) == "explain"
    assert find_most_similar_name("l40z", ["l4", "L40S"]) == "L40S"
    assert find_most_similar_name("zzz", ["explain", "lint"]) is None


# Drawings


def test_a_graph_drawing_is_complete_svg(files: Path) -> None:
    assert run_command(["graph", "draw", "good.json", "--output", "g.svg"]).exit_code == 0
    root = ElementTree.parse("g.svg").getroot()
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    names = {one.text for one in root.iter("{http://www.w3.org/2000/svg}text") if one.get("class") == "name"}
    assert names == {tensor.name for tensor in make_two_matmuls().tensors}


def test_a_graph_drawing_is_written_as_png(files: Path) -> None:
    pytest.importorskip("resvg_py")
    assert run_command(["graph", "draw", "good.json", "--output", "g.png"]).exit_code == 0
    assert Path("g.png").read_bytes().startswith(b"\x89PNG\r\n")


def test_png_drawing_without_resvg_is_refused(files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "resvg_py", None)
    done = run_command(["graph", "draw", "good.json", "--format", "png"])
    assert (done.exit_code, done.stdout, done.stderr.partition(":")[0]) == (2, "", "resvg-missing")
    assert "pip install 'cudnn-backend-py[draw]'" in done.stderr


# Graph files


def test_output_of_a_graph_program_is_not_mixed_into_json(files: Path, capfd: pytest.CaptureFixture[str]) -> None:
    Path("says.py").write_text(
        "import os, subprocess\nfrom cudnn_backend_py import load_graph\nprint('hello')\n"
        "subprocess.run(['echo', 'a child'])\nos.write(1, b'written\\n')\n"
        "def graph(): return load_graph('good.json')\n"
    )
    done = run_command(["graph", "lint", "says.py", "--format", "json"])
    assert (json.loads(done.stdout), done.stderr) == (
        json.loads(run_command(["graph", "lint", "good.json", "--format", "json"]).stdout),
        "hello\n",
    )
    assert capfd.readouterr() == ("", "a child\nwritten\n")
    print("after")
    assert capfd.readouterr().out == "after\n"


@pytest.mark.parametrize(
    ("name", "text", "commands"),
    [
        ("level0.py", "def main(): pass", ("log -- python level0.py", "frontend level0.py")),
        ("attention.ipynb", "{}", ("frontend attention.ipynb",)),
        ("notebook.txt", "import cudnn", ("log -- PROGRAM", "frontend PROGRAM.py")),
    ],
)
def test_error_for_a_program_given_as_graph_names_run_commands(
    folder: Path, name: str, text: str, commands: tuple[str, ...]
) -> None:
    Path(name).write_text(text)
    done = run_command(["graph", "lint", name])
    assert (done.exit_code, done.stderr.partition(":")[0]) == (2, "graph-file")
    assert all(f"cudnn-backend {command}" in done.stderr for command in commands), done.stderr


def test_a_log_without_a_graph_is_refused(folder: Path) -> None:
    Path("training.log").write_text("I! CuDNN (v92800) function cudnnBackendFinalize() called:\n")
    assert run_command(["graph", "lint", "training.log"]).stderr == (
        "graph-file: training.log has no graph\n"
        "  fix:    a log has graphs if CUDNN_LOGLEVEL_DBG=3 was set before the program started\n"
        "          or run a program: cudnn-backend log -- PROGRAM, or cudnn-backend frontend PROGRAM.py\n"
    )


def test_graph_formats_are_recognized_with_any_suffix(files: Path) -> None:
    graph = make_two_matmuls()
    text = Path("good.json").read_text(encoding="utf-8")
    facts = {"cudnn": "9.28.0", "target": "h100", "sm": 90, "tag": "eng0", "graph": graph_to_json(graph), "plan": "{}"}
    plan = add_hash({"schema": "cudnn-backend-py/plan", "version": 1, **facts})
    for name in ("g.JSON", "g.txt", "g.log", "g.log.3", "g.out", "g", "p.plan", "p.json", "p.txt"):
        Path(name).write_text(json.dumps(plan) if name[0] == "p" else text)
        assert load_graph_file(name) == graph, name
    Path("g.json.gz").write_bytes(gzip.compress(text.encode()))
    assert load_graph_file("g.json.gz") == graph
    found = CliRunner().invoke(main, ["graph", "lint", "-"], input=text)
    assert found.stdout == run_command(["graph", "lint", "good.json"]).stdout


def test_source_code_is_refused_with_instructions_for_a_log(folder: Path) -> None:
    for name in ("a.c", "a.cc", "a.cpp", "a.cxx", "a.cu", "a.h", "A.CPP"):
        Path(name).write_text("int main() {}")
        for command in ("graph lint", "graph draw", "log", "plan compare"):
            said = run_command([*command.split(), name]).stderr
            assert f"{name} is C or C++ source code" in said
            assert "CUDNN_LOGLEVEL_DBG=3 CUDNN_LOGDEST_DBG=cudnn.log" in said


def test_graphs_of_equal_names_get_their_files_into_their_names(folder: Path) -> None:
    source = "from cudnn_backend_py import attention\ndef graph():\n"
    for name, dim in (("one.py", 64), ("two.py", 32)):
        Path(name).write_text(
            f"{source}    return attention.sdpa_forward(batch=1, heads=1, seq_q=64, head_dim={dim})\n"
        )
    found = load_graph_files(["one.py", "two.py"])
    assert [(path, graph.name) for path, graph in found] == [
        ("one.py", "one.py:sdpa_forward"),
        ("two.py", "two.py:sdpa_forward"),
    ]
    assert [graph.name for _, graph in load_graph_files(["one.py"])] == ["sdpa_forward"]


def test_a_log_of_several_graphs_is_refused_as_a_graph(folder: Path) -> None:
    several = next(path for path in sorted(LOG_FOLDER.iterdir()) if len(list(read_graphs(path))) > 1)
    Path("several.log").write_text(read_log_text(several.name), encoding="utf-8")
    count = len(list(read_graphs(several)))
    for command in ("graph lint", "graph draw", "explain --whatif", "matrix", "matrix --since", "plan tune"):
        said = run_command([*command.split(), "several.log"]).stderr
        assert f"several.log has {count} graphs, one is needed\n  fix:    choose one with --graph, 1 to {count}" in said
        other = run_command([*command.split(), "several.log", "--graph", str(count + 1)]).stderr
        assert f"--graph is {count + 1}, but" in other
    assert run_command(["graph", "draw", "several.log", "--graph", str(count)]).exit_code == 0


def test_download_warns_that_a_version_judges_no_described_gpu(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def raise_not_ready(*_: object) -> None:
        raise EnvironmentNotReady("no network", code="download-failed")

    monkeypatch.setattr(store, "find_download_size", raise_not_ready)
    for version, is_named in (("9.7.0", True), ("9.8", False), ("latest", False)):
        _install_missing_version(version, None)
        assert (f"cuDNN {version} judges only for the GPU of this machine" in capsys.readouterr().err) is is_named


def test_diff_command_says_how_to_correct_its_arguments(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("good.json").touch()
    swapped = run_command(["diff", "good.json", "9.24", "9.28"])
    assert "good.json is a file, and OLD and NEW come first: cudnn-backend diff OLD NEW good.json" in swapped.stderr
    monkeypatch.setattr(native, "load_driver", lambda: SimpleNamespace(kind="missing", devices=0))
    done = run_command(["diff", "9.24", "9.28", "good.json"])
    assert (done.exit_code, done.stderr) == (
        2,
        "no-gpu: there is no GPU in this process\n"
        "  where:  libcuda.so.1: missing, 0 devices\n"
        "  fix:    name a described GPU: cudnn-backend diff 9.24 9.28 good.json --target l40s\n",
    )


def test_check_reports_a_broken_graph_file_in_every_format(folder: Path) -> None:
    Path("bad.json").write_text("{")
    Path("b.toml").write_text(
        'schema = "cudnn-backend-py/check"\nversion = 1\ntargets = ["sm80", "sm90"]\n[graphs]\ng = "bad.json"\n'
    )
    done = run_command(["check", "b.toml"], CUDNN_LOGLEVEL_DBG="3")
    assert done.exit_code == 2
    assert done.stdout.splitlines()[0] == "g on sm80, cuDNN default: cannot be judged"
    assert done.stdout.splitlines()[-1] == "1 verdict checked, 0 changed; 1 could not be judged"
    assert "CUDNN_LOGLEVEL_DBG is set, and stored answers call no cuDNN: --fresh judges all again" in done.stderr
    assert "stored answers" not in run_command(["check", "b.toml", "--fresh"], CUDNN_LOGLEVEL_DBG="3").stderr
    found = run_command(["check", "b.toml", "--format", "github"])
    assert found.stdout.startswith("::error file=bad.json,title=g on sm80%2C cuDNN default::cannot be judged: ")
    assert run_command(["check", "b.toml", "--output", "r.xml"]).exit_code == 2
    assert 'errors="1"' in Path("r.xml").read_text()


# Completion


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
@pytest.mark.parametrize(
    ("line", "incomplete", "expected"),
    [
        ("", "exp", {"explain"}),
        ("plan", "co", {"compare"}),
        ("target", "", {"list", "read", "show", "verify"}),
        ("explain g.json", "--ta", {"--target"}),
        ("explain g.json --target", "l4", {"l4", "l40s"}),
        ("target show", "h2", {"h200", "h200-sxm"}),
        ("explain g.json --format", "j", {"json", "junit"}),
        ("explain g.json --cudnn", "", set()),
    ],
)
def test_shell_completions_match_the_typed_text(
    shell: str, line: str, incomplete: str, expected: set[str], folder: Path
) -> None:
    chosen = get_completion_class(shell)
    assert chosen is not None
    completion = chosen(main, {}, "cudnn-backend", "_CUDNN_BACKEND_COMPLETE")
    assert f"_CUDNN_BACKEND_COMPLETE={shell}_complete" in run_command(["completion", shell]).stdout
    found = completion.get_completions(line.split(), incomplete)
    assert {one.value for one in found} == expected
    assert all(one.value in completion.format_completion(one) for one in found)


def test_fish_completion_shows_complete_help_in_order(folder: Path) -> None:
    source = run_command(["completion", "fish"]).stdout
    assert 'string split --max 1 ","' in source
    assert "complete --keep-order --no-files --command cudnn-backend " in source
    chosen = get_completion_class("fish")
    assert chosen is not None
    [found] = chosen(main, {}, "cudnn-backend", "_CUDNN_BACKEND_COMPLETE").get_completions(["plan"], "compa")
    assert found.help == "Compare attention: cuDNN, torch's backends, flash-attn."


def test_the_shell_itself_completes_file_names(folder: Path) -> None:
    chosen = get_completion_class("bash")
    assert chosen is not None
    completion = chosen(main, {}, "cudnn-backend", "_CUDNN_BACKEND_COMPLETE")
    for line, word in {"explain": "g", "explain g.json --target": "./mine", "explain g.json --output": "o"}.items():
        assert [(one.type, one.value) for one in completion.get_completions(line.split(), word)] == [("file", word)]


# Colours and progress


def test_colours_appear_only_on_terminals_without_no_color(monkeypatch: pytest.MonkeyPatch) -> None:
    def print_red() -> str:
        written = io.StringIO()
        monkeypatch.setattr(sys, "stdout", written)
        open_console().print(Text("refused", style="red"))
        return written.getvalue()

    for name in ("NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    assert print_red() == "refused\n"
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert "\x1b[31m" in print_red()
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b[31m" not in print_red()


def test_progress_is_shown_only_on_terminals(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("FORCE_COLOR", "1")  # which is about colours, and makes no pipe a terminal
    for terminal in (False, True):
        written = io.StringIO()
        monkeypatch.setattr(written, "isatty", lambda terminal=terminal: terminal)
        monkeypatch.setattr(sys, "stderr", written)
        with output.show_progress_line("judging") as step:
            step("a\x1b[31m")
        assert bool(written.getvalue()) is terminal
        assert "\x1b[31m" not in written.getvalue()


def write_golden_files() -> None:
    """Run all command lines and write their golden files."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_input_files(folder)
        os.chdir(folder)
        os.environ.update(make_cache_environment_variables(folder))
        for golden, lines in COMMAND_LINES_BY_FILE.items():
            (GOLDEN_FOLDER / f"{golden}.txt").write_text(run_command_lines(lines, folder), encoding="utf-8")
        (GOLDEN_FOLDER / "narrow.txt").write_text(
            run_command_lines(NARROW_COMMAND_LINES, folder, COLUMNS="40"), encoding="utf-8"
        )


if __name__ == "__main__":
    write_golden_files()
