"""cuDNN without some engines: its refusal is reported as cuDNN's only if the missing engines do not matter."""

from __future__ import annotations

import json
import os
import pty
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from itertools import cycle, product
from pathlib import Path
from typing import Any

import pytest

from cudnn_backend_py import EnvironmentNotReady, Graph, library
from cudnn_backend_py.diagnose import (
    Basis,
    Judge,
    Outcome,
    Query,
    Verdict,
    matrix,
    render_text,
    since,
    whatif,
)
from cudnn_backend_py.diagnose.engines import ENGINES_MISSING_CODE, _is_runtime_compiled_only
from cudnn_backend_py.diagnose.report.ci import list_test_cases
from cudnn_backend_py.diagnose.report.tables import (
    render_as_text,
    render_remedies,
    render_supporting_version_range,
    render_verdict_matrix,
)
from cudnn_backend_py.diagnose.surveys.baseline import check_baseline, compute_baseline_exit_code, update_baseline
from cudnn_backend_py.graph import save_graph
from cudnn_backend_py.known_issues import FAULTS
from cudnn_backend_py.native.environment import find_sublibraries
from cudnn_backend_py.system.child import make_call_command
from cudnn_backend_py.versions.store import find_installed, install, list_installed, make_environment_of_installed_cudnn
from tests.known_issues import EXAMPLES, make_example_graph
from tests.support.child import OLDER_VERSION, ROOT, run_python
from tests.support.full_cudnn_graphs import GRAPHS_OF_FULL_CUDNN
from tests.support.varied_graphs import VARIED_GRAPHS
from tests.support.wheels import FULL_FILES, make_wheel

TARGETS = ("sm75", "sm90", "sm120")

# Supported by the full wheels of 9.10, 9.14, 9.20, 9.24 and 9.28 on some target: each was judged once. For the first
# four, the engines of the JIT wheels refuse every one on some target.
GRAPHS_OF_FULL_WHEEL = (
    *("conv nchw f16", "conv nchw f32", "conv nchw f32 3 channels", "conv nchw f32 depthwise", "conv f64"),
    *("dgrad nchw f16", "dgrad nchw f32", "dgrad nchw f32 3 channels", "dgrad nchw f32 depthwise", "dgrad f64"),
    *("wgrad nhwc f32", "wgrad nchw f16", "wgrad nchw f32", "wgrad nchw f32 3 channels", "wgrad nhwc f16 3 channels"),
    *("wgrad nhwc f16 odd channels", "wgrad nhwc f16 grouped", "wgrad nhwc f16 depthwise", "wgrad nchw f32 depthwise"),
    *("wgrad f64", "wgrad f16 scale bias relu before", "conv f32 nchw bias relu", "convolution", "bn finalize"),
    *("max pooling f32 nchw", "mean pooling f32 nchw"),
    *("conv nhwc f16", "conv nhwc f32", "conv nhwc f16 3 channels", "conv nhwc f16 odd channels", "conv 3d f16"),
    *("dgrad nhwc f16", "dgrad nhwc f32", "dgrad nhwc f16 depthwise", "dgrad 3d f16", "wgrad nhwc f16", "wgrad 3d f16"),
    *("conv f16 bias relu", "conv f16 bias residual relu", "conv f16 stats", "max pooling f16", "mean pooling f16"),
    *("matmul f16 nt", "matmul f32 nn", "matmul bf16 odd", "matmul f16 gelu"),
)

ATTENTION_GRAPHS = [name for name in VARIED_GRAPHS if name.startswith(("flash", "unified", "two matmul"))]


@pytest.fixture(scope="module")
def partial_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a libcudnn with only the sub-libraries of a JIT wheel, taken from the cuDNN of this environment."""
    full_folder = Path(library().path).parent
    assert "engines_precompiled" in find_sublibraries(full_folder), (
        "the cuDNN of this environment has to be a full wheel"
    )
    folder = tmp_path_factory.mktemp("partial")
    shutil.copy(full_folder / "libcudnn.so.9", folder)
    for name in ("graph", "engines_runtime_compiled"):
        (folder / f"libcudnn_{name}.so.9").symlink_to(find_sublibraries(full_folder)[name][0])
    return folder / "libcudnn.so.9"


@pytest.fixture
def judge_with_partial_library_only(partial_library: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make child processes judge with the partial library."""
    monkeypatch.setenv("CUDNN_BACKEND_LIBRARY", str(partial_library))


@pytest.fixture(scope="module")
def full_wheel_judge() -> Iterator[Judge]:
    with Judge(limit_s=120) as judge:
        yield judge


def judge_queries_with_partial_library(
    partial_library: Path, monkeypatch: pytest.MonkeyPatch, questions: list[Query]
) -> list[Verdict]:
    with monkeypatch.context() as changed, Judge(limit_s=120) as judge:
        changed.setenv("CUDNN_BACKEND_LIBRARY", str(partial_library))
        return [judge.run_query(replace(question)) for question in questions]  # computed here: it reads the libraries


def is_limited_to_available_engines(verdict: Verdict) -> bool:
    """Return whether a verdict says nothing about engines that the library does not contain."""
    cause = verdict.cause
    if verdict.outcome is Outcome.SUPPORTED:
        return cause is None
    crashed = cause is not None and cause.code == "cudnn-crashed"
    before_engines = verdict.stage == "operation graph"  # the graph library is whole
    return crashed or before_engines or verdict.outcome is Outcome.NOT_JUDGED


def test_a_refusal_by_a_partial_library_is_not_reported_as_cudnns(
    partial_library: Path, full_wheel_judge: Judge, monkeypatch: pytest.MonkeyPatch
) -> None:
    graphs = [made for make in GRAPHS_OF_FULL_CUDNN.values() if not _is_runtime_compiled_only(made := make())]
    assert len(graphs) >= 100
    targets = cycle(TARGETS)  # one for each graph
    questions = [Query(graph, next(targets)) for graph in graphs]
    verdicts = judge_queries_with_partial_library(partial_library, monkeypatch, questions)
    wrong = [
        f"{one.graph} on {one.target}: {one.cause}" for one in verdicts if not is_limited_to_available_engines(one)
    ]
    assert not wrong
    not_judged = [
        (question, verdict)
        for question, verdict in zip(questions, verdicts, strict=True)
        if verdict.cause is not None and verdict.cause.code == ENGINES_MISSING_CODE
    ]
    for _, verdict in not_judged:
        assert verdict.cause is not None
        assert (verdict.cause.basis, verdict.exit_code) == (Basis.RULE, 2)
        assert f"cudnn install {verdict.cudnn} --full" in verdict.cause.remedy
        assert any(item.reasons for item in verdict.candidates) or verdict.reasons or not verdict.candidates
    full = [question for question, _ in not_judged if full_wheel_judge.run_query(question).supported]
    assert len(full) >= 15  # else it proves nothing


def test_graphs_that_need_no_missing_engine_get_the_full_wheels_verdict(
    partial_library: Path, full_wheel_judge: Judge, monkeypatch: pytest.MonkeyPatch
) -> None:
    alone = [make() for make in GRAPHS_OF_FULL_CUDNN.values() if _is_runtime_compiled_only(make())]
    graphs = [*alone, *(VARIED_GRAPHS[name]() for name in ATTENTION_GRAPHS)]
    assert len(graphs) >= 50
    questions = [Query(graph, target) for graph, target in product(graphs, ("sm89", "sm100"))]
    verdicts = judge_queries_with_partial_library(partial_library, monkeypatch, questions)
    reported = [(one.graph, one.target, one.outcome, one.cause and one.cause.code, one.limits) for one in verdicts]
    assert reported == [
        (one.graph, one.target, one.outcome, one.cause and one.cause.code, one.limits)
        for one in map(full_wheel_judge.run_query, questions)
    ]
    refused = [one for one in verdicts if one.outcome is Outcome.NOT_SUPPORTED]
    assert {verdict.exit_code for verdict in refused} == {1}
    assert len(refused) >= 20


ENGINES_PROGRAM = """
import json, sys
from cudnn_backend_py.errors import CudnnBackendError
from cudnn_backend_py.plans.engine import OperationGraph
from cudnn_backend_py.target import open_target
from cudnn_backend_py.diagnose.engines import _is_runtime_compiled_only
from tests.support.full_cudnn_graphs import GRAPHS_OF_FULL_CUDNN
from tests.known_issues import EXAMPLES, make_example_graph
from tests.support.varied_graphs import VARIED_GRAPHS
target, found = open_target("sm100"), {}
for name, make in {**VARIED_GRAPHS, **GRAPHS_OF_FULL_CUDNN}.items():
    try:
        question = OperationGraph(make(), target)
    except CudnnBackendError:
        continue
    offered = []
    for index in range(question.engine_count if _is_runtime_compiled_only(make()) else 0):
        try:
            question.engine(index)
            offered.append(index)
        except CudnnBackendError:
            pass
    found[name] = [question.engine_count, offered]
print(json.dumps({name: engines for name, engines in found.items() if engines[1]}))
"""


def test_graphs_that_need_no_missing_engine_keep_their_configs(partial_library: Path) -> None:
    lists = []
    for path in (library().path, str(partial_library)):
        environment = {**os.environ, "CUDNN_BACKEND_LIBRARY": path}
        lists.append(json.loads(run_python(["-c", ENGINES_PROGRAM], environment=environment, check=True).stdout))
    assert lists[0] == lists[1]
    assert len(lists[0]) >= 40


def list_installed_versions_of_wheel_kinds(*flavors: str) -> list[str]:
    return sorted({one.short_version for one in list_installed() if one.flavor in flavors})


@pytest.mark.parametrize(
    "version", [one for one in list_installed_versions_of_wheel_kinds("jit") if one in ("9.14.0", "9.20.0", "9.24.0")]
)
def test_a_jit_wheel_refuses_no_graph_that_missing_engines_might_support(version: str, full_wheel_judge: Judge) -> None:
    installed = find_installed(version, flavor="jit")
    assert installed is not None
    targets = cycle(("sm75", "sm100"))  # one for each graph
    questions = [Query(GRAPHS_OF_FULL_CUDNN[name](), next(targets)) for name in GRAPHS_OF_FULL_WHEEL]
    environment = make_environment_of_installed_cudnn(installed)
    graphs = [question.graph for question in questions]
    assert len({graph.name for graph in graphs}) >= 40
    with pytest.MonkeyPatch.context() as changed, Judge(limit_s=120) as judge:
        for name in ("CUDNN_BACKEND_LIBRARY", "CUDNN_BACKEND_NVRTC"):
            if name in environment:
                changed.setenv(name, environment[name])
        verdicts = [judge.run_query(replace(question)) for question in questions]
    assert {verdict.cudnn for verdict in verdicts if verdict.control} == {f"{version}+cu12"}
    assert not [verdict.graph for verdict in verdicts if verdict.outcome is Outcome.NOT_SUPPORTED]
    assert sum(verdict.cause is not None and verdict.cause.code == ENGINES_MISSING_CODE for verdict in verdicts) >= 10


def test_an_engine_of_a_jit_wheel_is_refused_by_its_own_reason(
    partial_library: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Engines of the full wheel do not change one that the JIT wheel has; one that it lacks is not judged."""
    graph = GRAPHS_OF_FULL_CUDNN["dgrad nchw f32"]()
    questions = [Query(graph, "h100", engine=name) for name in ("eng1", "eng999")]
    refused, unknown = judge_queries_with_partial_library(partial_library, monkeypatch, questions)
    assert refused.outcome is Outcome.NOT_SUPPORTED
    assert refused.cause is not None
    assert refused.cause.code == "engine-config-refused"
    assert refused.candidates[0].reasons[0].text in refused.cause.headline
    assert "--full" not in refused.cause.remedy
    assert unknown.outcome is Outcome.NOT_JUDGED
    assert unknown.cause is not None
    assert (unknown.cause.code, "--full" in unknown.cause.remedy) == ("engine-unknown", True)


# Consequences of a verdict


def make_graph_that_needs_missing_engine() -> Graph:
    return GRAPHS_OF_FULL_CUDNN["dgrad nchw f32"]()


def test_the_matrix_and_since_functions_and_junit_report_missing_engines(
    judge_with_partial_library_only: None, tmp_path: Path
) -> None:
    found = matrix([make_graph_that_needs_missing_engine()], ["sm80"], [None], cache=tmp_path, progress=False)
    [cell] = found.cells.values()
    assert (cell.letter, cell.cause, found.exit_code) == ("?", ENGINES_MISSING_CODE, 2)
    assert "could not be judged" in render_as_text(render_verdict_matrix(found))
    assert (
        matrix([make_graph_that_needs_missing_engine()], ["sm80"], [None], cache=tmp_path, progress=False).judged_count
        == 0
    )  # it stays so
    [case] = list_test_cases(found)
    assert (case.state, case.code) == ("error", ENGINES_MISSING_CODE)
    span = since(make_graph_that_needs_missing_engine(), "sm80", [None], cache=tmp_path)
    assert (span.first, span.unjudged, span.exit_code) == (None, (library().build_text,), 2)
    assert "by none of the 0 versions that could judge" in render_as_text(render_supporting_version_range(span))


def test_graphs_with_stored_verdicts_are_judged_again_with_more_engines(
    judge_with_partial_library_only: None, partial_library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = matrix([make_graph_that_needs_missing_engine()], ["sm80"], [None], cache=tmp_path, progress=False)
    assert first.exit_code == 2
    for name, files in find_sublibraries(Path(library().path).parent).items():
        if not (place := partial_library.with_name(f"libcudnn_{name}.so.9")).exists():
            place.symlink_to(files[0])
    try:
        second = matrix([make_graph_that_needs_missing_engine()], ["sm80"], [None], cache=tmp_path, progress=False)
        assert (second.judged_count, second.exit_code) == (1, 0)
    finally:
        for place in partial_library.parent.iterdir():
            if place.name not in (
                partial_library.name,
                "libcudnn_graph.so.9",
                "libcudnn_engines_runtime_compiled.so.9",
            ):
                place.unlink()


def test_a_baseline_can_pin_a_verdict_of_missing_engines(judge_with_partial_library_only: None, tmp_path: Path) -> None:
    save_graph(make_graph_that_needs_missing_engine(), tmp_path / "g.json")
    file = tmp_path / "verdicts.toml"
    file.write_text(
        'schema = "cudnn-backend-py/check"\nversion = 1\ntargets = ["sm80"]\n\n[graphs]\ng = "g.json"\n',
        encoding="utf-8",
    )
    [new] = update_baseline(file, cache=tmp_path / "answers", progress=False)
    assert new.can_be_recorded
    [same] = check_baseline(file, cache=tmp_path / "answers", progress=False)
    assert (same.changed, compute_baseline_exit_code([same]), same.expected) == (
        False,
        0,
        "could not be judged (engines-absent)",
    )


def test_whatif_names_the_wheel_with_the_missing_engines(judge_with_partial_library_only: None) -> None:
    with Judge() as judge:
        verdict = judge.run_query(Query(make_graph_that_needs_missing_engine(), "sm80"))
    remedies = whatif(make_graph_that_needs_missing_engine(), "sm80")
    assert remedies
    assert all(remedy.verdict is not None and remedy.verdict.supported for remedy in remedies)
    text = render_as_text(render_remedies(verdict, make_graph_that_needs_missing_engine(), remedies))
    assert text.startswith("COULD NOT BE JUDGED")
    assert f"; or cudnn-backend cudnn install {library().build_text} --full" in text


def test_supported_verdicts_name_engines_missing_in_the_library(judge_with_partial_library_only: None) -> None:
    with Judge() as judge:
        product_, sums = (
            judge.run_query(Query(VARIED_GRAPHS[name](), "sm80")) for name in ("matmul f16 64", "flash f16 causal")
        )
    assert product_.supported
    assert sums.supported
    assert [line for line in product_.limits if "lacks libcudnn_engines_precompiled" in line]
    assert not [line for line in sums.limits if "lacks" in line]
    assert "lacks libcudnn_engines_precompiled" in render_text(product_)


@pytest.mark.skipif(library().cuda_version >= 13000, reason="did not run: this cuDNN is for CUDA 13")
def test_refused_layout_operations_mention_the_cuda_13_engine(full_wheel_judge: Judge) -> None:
    for name in ("concat alone f16", "slice alone f16", "transpose alone f16", "reshape alone f32"):
        new, old = (
            full_wheel_judge.run_query(Query(GRAPHS_OF_FULL_CUDNN[name](), target)) for target in ("sm100", "sm90")
        )
        assert new.outcome is old.outcome is Outcome.NOT_SUPPORTED
        assert [line for line in new.limits if "cuDNN for CUDA 13 has one more engine" in line]
        assert not [line for line in old.limits if "CUDA 13" in line]
    refused = full_wheel_judge.run_query(Query(VARIED_GRAPHS["flash f16 d 20"](), "sm100"))
    assert not [line for line in refused.limits if "CUDA 13" in line]


# The command line


@pytest.fixture
def jit_wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a graph file next to a version store with one JIT wheel; pip finds a fake full wheel of a few bytes."""
    installed = find_installed(OLDER_VERSION, flavor="jit")
    assert installed is not None
    cache = tmp_path / "cache"
    cache.mkdir(mode=0o700)
    shutil.copytree(installed.path, cache / installed.path.name)
    monkeypatch.setenv("CUDNN_BACKEND_CACHE", str(cache))
    make_wheel(tmp_path / "index", "nvidia-cudnn-cu12", installed.version, FULL_FILES)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "index"))
    save_graph(make_graph_that_needs_missing_engine(), tmp_path / "g.json")
    return tmp_path / "g.json"


def make_explain_command(*arguments: str) -> list[str]:
    return make_call_command("cudnn_backend_py.cli.commands:main", *arguments)


def test_without_a_terminal_nothing_is_prompted_or_fetched(jit_wheel: Path) -> None:
    arguments = make_explain_command(
        "explain", str(jit_wheel), "--cudnn", OLDER_VERSION, "--target", "sm80", "--format", "json"
    )
    done = subprocess.run(arguments, capture_output=True, text=True, stdin=subprocess.DEVNULL, cwd=ROOT, check=False)
    assert done.returncode == 2
    verdict = Verdict.from_dict(json.loads(done.stdout))
    assert verdict.cause is not None
    assert (verdict.outcome, verdict.cause.code) == (Outcome.NOT_JUDGED, ENGINES_MISSING_CODE)
    assert f"cudnn-backend cudnn install {OLDER_VERSION}+cu12 --full" in verdict.cause.remedy
    assert [one.flavor for one in list_installed()] == ["jit"]


def run_at_terminal(arguments: list[str], answer: bytes) -> tuple[int, str]:
    """Run a command at a terminal, answer its prompts, and return its exit code and output."""
    shown = b""
    child, terminal = pty.fork()
    if child == 0:
        os.chdir(ROOT)
        os.execv(sys.executable, arguments)
    try:
        while True:
            try:
                data = os.read(terminal, 4096)
            except OSError:  # the end
                break
            if not data:
                break
            shown += data
            if b"[y/N]:" in data or shown.rstrip().endswith(b"[y/N]:"):
                os.write(terminal, answer)
                answer = b""
    finally:
        _, status = os.waitpid(child, 0)
        os.close(terminal)
    return os.waitstatus_to_exitcode(status), shown.decode()


@pytest.mark.parametrize(("flags", "prompts"), [((), True), (("--jit",), False)])
def test_at_a_terminal_the_full_wheel_is_offered_with_its_size(
    jit_wheel: Path, flags: tuple[str, ...], prompts: bool
) -> None:
    arguments = make_explain_command("explain", str(jit_wheel), "--cudnn", OLDER_VERSION, "--target", "sm80", *flags)
    code, shown = run_at_terminal(arguments, b"n\n")
    assert code == 2
    assert (f"fetch the full wheel of cuDNN {OLDER_VERSION}+cu12, <0.1 MB, and use it?" in shown) is prompts
    assert "COULD NOT BE JUDGED" in shown
    assert [one.flavor for one in list_installed()] == ["jit"]


@pytest.mark.parametrize("order", [("--full", "--cudnn", OLDER_VERSION), ("--cudnn", OLDER_VERSION, "--full")])
def test_the_full_option_fetches_the_wheel_without_a_prompt(jit_wheel: Path, order: tuple[str, ...]) -> None:
    """The fetched wheel has no library: the test checks only that it was fetched and used for judging."""
    arguments = make_explain_command("explain", "-v", str(jit_wheel), "--target", "sm80", *order)
    done = subprocess.run(arguments, capture_output=True, text=True, stdin=subprocess.DEVNULL, cwd=ROOT, check=False)
    assert done.returncode == 2
    assert [one.flavor for one in list_installed()] == ["full", "jit"]
    assert "-full/nvidia/cudnn/lib/libcudnn.so.9" in done.stdout
    for request in (
        ("--cudnn", OLDER_VERSION, "--jit"),
        ("--cudnn", f"{OLDER_VERSION}-jit"),
        (f"--cudnn={OLDER_VERSION}", "--jit"),
    ):
        again = subprocess.run(
            make_explain_command("explain", "-v", str(jit_wheel), "--target", "sm80", *request),
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
            cwd=ROOT,
            check=False,
        )
        assert again.returncode == 2
        assert "nvidia/cudnn_jit/lib/libcudnn.so.9" in again.stdout, request


def test_the_jit_option_also_applies_to_the_default_version(
    jit_wheel: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    [installed] = list_installed()
    shutil.copytree(installed.library.parent, tmp_path / "nvidia/cudnn/lib")  # where a full wheel has its libraries
    monkeypatch.setenv("CUDNN_BACKEND_LIBRARY", str(tmp_path / "nvidia/cudnn/lib"))
    arguments = make_explain_command("explain", "-v", str(jit_wheel), "--target", "sm80", "--jit")
    done = subprocess.run(arguments, capture_output=True, text=True, cwd=ROOT, check=False)
    assert str(installed.library) in done.stdout
    shutil.rmtree(installed.path)
    done = subprocess.run(arguments, capture_output=True, text=True, cwd=ROOT, check=False)
    assert f"cuDNN {OLDER_VERSION}+cu12 is not installed as the jit wheel" in done.stderr
    assert done.stdout == ""


SURVEY_COMMANDS = {
    "matrix": ("matrix", "g.json", "--target", "sm80", "--cudnn", OLDER_VERSION),
    "since": ("matrix", "--since", "g.json", "--target", "sm80", "--cudnn", OLDER_VERSION),
    "check": ("check", "verdicts.toml"),
}
BASELINE_TOML = f"""
schema = "cudnn-backend-py/check"
version = 1
targets = ["sm80"]
versions = ["{OLDER_VERSION}"]

[graphs]
g = "g.json"

[[expected]]
graph = "g"
target = "sm80"
version = "{OLDER_VERSION}"
outcome = "supported"
"""


@pytest.fixture
def survey_folder(jit_wheel: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder with a graph, and a baseline file that expects the verdict of the full cuDNN wheel."""
    folder = jit_wheel.parent
    (folder / "verdicts.toml").write_text(BASELINE_TOML, encoding="utf-8")
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder / "kept"))
    return folder


def make_matrix_or_check_command(folder: Path, name: str, *flags: str) -> list[str]:
    first, *rest = SURVEY_COMMANDS[name]
    return make_explain_command(
        first, *(str(folder / one) if (folder / one).is_file() else one for one in rest), *flags
    )


@pytest.mark.parametrize("name", SURVEY_COMMANDS)
def test_matrix_and_check_fetch_wheels_only_with_the_full_option(survey_folder: Path, name: str) -> None:
    options: dict[str, Any] = {"capture_output": True, "text": True, "stdin": subprocess.DEVNULL, "cwd": ROOT}
    done = subprocess.run(make_matrix_or_check_command(survey_folder, name), check=False, **options)
    assert (done.returncode, [one.flavor for one in list_installed()]) == (2, ["jit"]), done.stderr
    assert "the JIT wheel of this cuDNN refuses the graph" in " ".join(done.stdout.split())
    fetched = subprocess.run(make_matrix_or_check_command(survey_folder, name, "--full"), check=False, **options)
    assert [one.flavor for one in list_installed()] == ["full", "jit"], fetched.stderr
    assert fetched.returncode == 2  # the fetched wheel has no library
    assert "the JIT wheel of this cuDNN" not in " ".join(fetched.stdout.split())
    small = subprocess.run(make_matrix_or_check_command(survey_folder, name, "--jit"), check=False, **options)
    if name == "matrix":
        suffixed = make_matrix_or_check_command(survey_folder, name)
        suffixed[-1] += "-jit"
        assert subprocess.run(suffixed, check=False, **options).stderr == small.stderr
    assert "the JIT wheel of this cuDNN refuses the graph" in " ".join(small.stdout.split())


@pytest.mark.parametrize("name", SURVEY_COMMANDS)
@pytest.mark.parametrize(("flags", "prompts"), [((), True), (("--jit",), False)])
def test_matrix_and_check_offer_wheels_at_a_terminal(
    survey_folder: Path, name: str, flags: tuple[str, ...], prompts: bool
) -> None:
    code, shown = run_at_terminal(make_matrix_or_check_command(survey_folder, name, *flags), b"n\n")
    assert code == 2
    named = OLDER_VERSION if name == "check" else f"{OLDER_VERSION}+cu12"  # a baseline names versions as its author did
    assert (f"fetch the full wheel of cuDNN {named}, <0.1 MB, and use it?" in shown) is prompts
    assert [one.flavor for one in list_installed()] == ["jit"]


def test_a_version_with_one_wheel_is_found_without_its_flavor(jit_wheel: Path, tmp_path: Path) -> None:
    wheel = find_installed(f"{OLDER_VERSION}-jit")
    assert wheel is not None
    assert (wheel.short_version, wheel.flavor, wheel.name) == (OLDER_VERSION, "jit", f"{wheel.version}+cu12-jit")
    assert find_installed(f"{OLDER_VERSION}-full") is None
    with pytest.raises(EnvironmentNotReady, match=f"cuDNN {OLDER_VERSION} is not installed as the full wheel"):
        matrix(
            [make_graph_that_needs_missing_engine()],
            ["sm80"],
            [f"{OLDER_VERSION}-full"],
            cache=tmp_path / "kept",
            progress=False,
        )
    named = matrix(
        [make_graph_that_needs_missing_engine()],
        ["sm80"],
        {"small": wheel.name},
        cache=tmp_path / "kept",
        progress=False,
    )
    assert [(version, cell.cause) for (*_, version), cell in named.cells.items()] == [("small", ENGINES_MISSING_CODE)]


def test_info_shows_the_wheel_of_each_installed_version(jit_wheel: Path) -> None:
    version = install(OLDER_VERSION, flavor="full", progress=False).version
    done = subprocess.run(
        make_explain_command("doctor", "--format", "json"), capture_output=True, text=True, cwd=ROOT, check=True
    )
    named = json.loads(done.stdout)["cudnn versions installed"]
    assert named == [f"{version}+cu12 (full)", f"{version}+cu12 (jit)"]


def test_whatif_and_matrix_report_known_issues(tmp_path: Path) -> None:
    """One graph is supported with a known issue, the other might be supported by a missing engine."""
    row = next(row for row in FAULTS if row.code == "decoding-on-blackwell")
    save_graph(make_example_graph(next(iter(EXAMPLES[row.code].reproductions.values()))), tmp_path / "faulty.json")
    save_graph(GRAPHS_OF_FULL_CUDNN["concat alone f16"](), tmp_path / "concat.json")
    given = [str(tmp_path / "faulty.json"), str(tmp_path / "concat.json"), "--target", "sm100"]
    shown = subprocess.run(
        make_explain_command("matrix", *given), capture_output=True, text=True, cwd=ROOT, check=False
    )
    assert f"({row.code}" in shown.stdout
    options: dict[str, Any] = {"capture_output": True, "text": True, "cwd": ROOT, "check": False}
    tried = make_explain_command(
        "explain", "--whatif", given[0], "--target", "sm100", "--cudnn", OLDER_VERSION, "--no-build"
    )
    assert f"({row.code}" in subprocess.run(tried, **options).stdout
    found = json.loads(subprocess.run([*tried, "--format", "json"], **options).stdout)
    assert any(f"({row.code}" in hazard for hazard in found["verdict"]["hazards"])
    if library().cuda_version < 13000:
        other = subprocess.run(
            make_explain_command("explain", "--whatif", given[1], "--target", "sm100", "--no-build"), **options
        )
        assert "remark: cuDNN for CUDA 13 has one more engine" in other.stdout
