"""Tests that every command and API reports an environment problem instead of a verdict.

Each query runs in a child with libraries that are mixed or incomplete; only files are changed.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from cudnn_backend_py import attention
from cudnn_backend_py.cli.commands import main
from cudnn_backend_py.diagnose import Judge, Query, control_graph
from cudnn_backend_py.graph import graph_to_json
from cudnn_backend_py.native.environment import find_sublibraries
from cudnn_backend_py.native.find import find_cudnn_places
from tests.support.child import OLDER_VERSION, FinishedChild, make_older_cudnn_environment, run_code, run_python
from tests.support.logs import LOG_FOLDER

MIXED_LIBRARIES_PROBLEM = "cudnn-sublibraries-mixed", "belongs to another cuDNN version than the libraries next to it"
NVRTC_PROBLEM = "nvrtc-unusable", "is not an NVRTC library: cuDNN supports no graph without it"


ATTENTION_SIZES = {"batch": 1, "heads": 2, "seq_q": 128, "head_dim": 64}


def find_older_cudnn_library_folder() -> Path:
    return Path(make_older_cudnn_environment()["CUDNN_BACKEND_LIBRARY"]).parent


@pytest.fixture
def environment_with_mixed_cudnn(tmp_path: Path) -> dict[str, str]:
    """Return the environment of a child with a cuDNN that has engines of another version."""
    source = Path(next(place.path for place in find_cudnn_places() if place.path is not None)).parent
    folder = tmp_path / "lib"
    folder.mkdir()
    shutil.copy(source / "libcudnn.so.9", folder)
    for name, files in find_sublibraries(source).items():
        (folder / f"libcudnn_{name}.so.9").symlink_to(files[0])
    engines = folder / "libcudnn_engines_runtime_compiled.so.9"
    engines.unlink()
    engines.symlink_to(find_older_cudnn_library_folder() / engines.name)
    return {**os.environ, "CUDNN_BACKEND_LIBRARY": str(folder)}


@pytest.fixture
def environment_with_invalid_nvrtc(tmp_path: Path) -> dict[str, str]:
    """Return the environment of a child with a cuDNN that needs NVRTC, and with an invalid NVRTC library."""
    (tmp_path / "nothing.c").write_text("int nothing;")
    built = tmp_path / "libnvrtc.so.12"
    run_command = ["cc", "-shared", "-fPIC", f"-Wl,-soname,{built.name}", "-o", built, tmp_path / "nothing.c"]
    subprocess.run(run_command, check=True)
    return {**make_older_cudnn_environment(), "CUDNN_BACKEND_NVRTC": str(tmp_path)}


@pytest.fixture
def graph_file(tmp_path: Path) -> str:
    path = tmp_path / "graph.json"
    path.write_text(json.dumps(graph_to_json(attention.sdpa_forward(**ATTENTION_SIZES))))
    return str(path)


def run_cudnn_backend_command(environment: dict[str, str], *arguments: str) -> FinishedChild:
    return run_python(["-m", "cudnn_backend_py", *arguments], environment=environment)


@pytest.mark.parametrize("broken", ["environment_with_mixed_cudnn", "environment_with_invalid_nvrtc"])
def test_commands_report_the_environment_problem_without_a_verdict(
    broken: str, graph_file: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    environment = {**request.getfixturevalue(broken), "XDG_CACHE_HOME": str(tmp_path / "answers"), "COLUMNS": "1000"}
    code, words = {
        "environment_with_mixed_cudnn": MIXED_LIBRARIES_PROBLEM,
        "environment_with_invalid_nvrtc": NVRTC_PROBLEM,
    }[broken]
    versions = ("--cudnn", "default")
    for arguments in (
        ("explain", "-v", graph_file, "--target", "sm90"),
        ("explain", "-v", graph_file, "--target", "sm90", "--here"),
        ("explain", "--whatif", graph_file, "--target", "sm90"),
        ("explain", "--whatif", graph_file, "--target", "sm90", "--no-build"),
        ("matrix", graph_file, "--target", "sm90", *versions),
        ("matrix", "--since", graph_file, "--target", "sm90", *versions),
        *([("run", graph_file, "--target", "sm90")] if code == NVRTC_PROBLEM[0] else []),
    ):
        if "--here" in arguments:  # which loads the library in its own process
            done = run_cudnn_backend_command(environment, *arguments)
        else:
            result = CliRunner().invoke(main, arguments, env=environment, catch_exceptions=False)
            done = FinishedChild(result.exit_code, result.stdout, result.stderr)
        assert words in done.stdout + done.stderr, arguments
        assert done.code == 2, arguments
        assert "SUPPORTED" not in done.stdout, arguments
    shown = json.loads(run_cudnn_backend_command(environment, "doctor", "--format", "json").stdout)
    named = {problem["code"]: problem for problem in shown["environment"]}
    assert named[code]["prevents"] == "verdicts"
    assert words in named[code]["headline"]
    assert (
        f"cannot judge until this is fixed: {named[code]['headline']}"
        in run_cudnn_backend_command(environment, "doctor").stdout
    )


def test_the_log_command_reports_the_environment_problem(environment_with_mixed_cudnn: dict[str, str]) -> None:
    done = run_cudnn_backend_command(
        environment_with_mixed_cudnn, "log", str(LOG_FOLDER / "torch-attention-9.19.0.log.gz"), "-v", "--target", "sm90"
    )
    assert MIXED_LIBRARIES_PROBLEM[1] in done.stdout
    assert done.code == 2


FRONTEND_PROGRAM = """
import cudnn_backend_py.frontend as cudnn
from cudnn_backend_py import attention, build, errors
from cudnn_backend_py.frontend import cudnnGraphNotSupportedError
from cudnn_backend_py.frontend.handles import set_default_target
from cudnn_backend_py.plans.select import select

graph = attention.sdpa_forward(batch=1, heads=2, seq_q=128, head_dim=64)
set_default_target("sm90")
kinds = {"io_data_type": cudnn.data_type.HALF, "compute_data_type": cudnn.data_type.FLOAT}
g = cudnn.pygraph(**kinds)
a, b = (g.tensor(name=name, dim=[1, 64, 64], stride=[4096, 64, 1]) for name in "ab")
g.matmul(A=a, B=b).set_output(True)
try:
    g.build([cudnn.heur_mode.A])
except cudnnGraphNotSupportedError as error:
    print(error.code, error.headline, error.sections["fix"])
for run_query in (lambda: build(graph, "sm90", cache=False), lambda: select(graph, "sm90")):
    try:
        run_query()
    except errors.CudnnBackendError as error:
        print(error.code, error.headline, error.sections["fix"])
"""


def test_frontend_graphs_and_plans_report_the_environment_problem(
    environment_with_invalid_nvrtc: dict[str, str],
) -> None:
    lines = run_code(FRONTEND_PROGRAM, environment=environment_with_invalid_nvrtc).stdout.splitlines()
    assert len(lines) == 3
    for line in lines:
        assert NVRTC_PROBLEM[1] in line
        assert "pip install --force-reinstall nvidia-cuda-nvrtc-cu12" in line
    assert lines[0].startswith("nvrtc-unusable ")


FAILED_BUILD_PROGRAM = """
from cudnn_backend_py import attention, build, errors
try:
    build(attention.sdpa_forward(batch=1, heads=2, seq_q=128, head_dim=64), "sm90", cache=False)
except errors.EnvironmentNotReady as error:
    print(error.code, error.__cause__.status.name)
"""


def test_a_failure_to_build_any_plan_is_an_environment_problem(tmp_path: Path) -> None:
    """If NVRTC lacks its builtins library, every support check passes, but no plan can be built."""
    from cudnn_backend_py.native.find import find_nvrtc_places

    shutil.copy(next(place.path for place in find_nvrtc_places(12) if place.path is not None), tmp_path)
    broken = {**make_older_cudnn_environment(), "CUDNN_BACKEND_NVRTC": str(tmp_path)}
    assert run_code(FAILED_BUILD_PROGRAM, environment=broken).stdout.startswith("nvrtc-builtins-missing ")
    inside = {**os.environ, "CUDNN_BACKEND_NVRTC": str(tmp_path)}
    assert run_code(FAILED_BUILD_PROGRAM, environment=inside).stdout == "", "since 9.21, cuDNN must use its own NVRTC"


DOCTOR_PROGRAM = """
import sys
class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {"click", "rich", "numpy", "platformdirs", "tomlkit", "jinja2", "markupsafe"}:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Blocked())
from cudnn_backend_py.__main__ import main
main()
"""


def test_doctor_needs_only_the_standard_library() -> None:
    for style in ("text", "json"):
        done = run_python(["-c", DOCTOR_PROGRAM, "doctor", "--format", style])
        assert done.code == 0, done.stderr
        assert "click is not installed" in done.stderr
        shown = done.stdout if style == "text" else json.loads(done.stdout)
        assert "environment" in shown
        assert "9.28.0" in (shown if isinstance(shown, str) else shown["cudnn"])
    for other in (["explain", "graph.json"], ["doctor", "--cudnn", "9.19.0"], []):
        done = run_python(["-c", DOCTOR_PROGRAM, *other])
        assert done.code == 2
        assert "the command line needs click" in done.stderr
        assert "Traceback" not in done.stderr


def test_a_running_judge_switches_to_a_newly_requested_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDNN_BACKEND_LIBRARY", raising=False)
    question = Query(control_graph(), "sm90")
    with Judge() as judge:
        own = judge.run_query(question).cudnn
        for name in ("CUDNN_BACKEND_LIBRARY", "CUDNN_BACKEND_NVRTC"):
            if name in make_older_cudnn_environment():
                monkeypatch.setenv(name, make_older_cudnn_environment()[name])
        older = replace(question)
        assert judge.run_query(older).cudnn == f"{OLDER_VERSION}+cu12"
        assert older.key() != question.key()
        assert judge.run_query(question).cudnn == own != OLDER_VERSION


WHATIF_PROGRAM = """
from cudnn_backend_py import attention
from cudnn_backend_py.diagnose import whatif
from cudnn_backend_py.native import loaded_library
graph = attention.sdpa_forward(batch=1, heads=2, seq_q=128, head_dim=20)
print(len(whatif(graph, "sm90")) > 0, loaded_library(), "libcudnn" in open("/proc/self/maps").read())
"""


def test_whatif_loads_no_cudnn_into_its_caller() -> None:
    assert run_code(WHATIF_PROGRAM).stdout == "True None False\n"
