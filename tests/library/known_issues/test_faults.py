"""Known issues that appear without a GPU appear in exactly their versions; cuDNN supports the fixed graphs."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping

import pytest

from cudnn_backend_py import library
from cudnn_backend_py.known_issues import FAULTS, KnownIssue
from cudnn_backend_py.native.crashing_graphs import CRASHING_GRAPHS
from cudnn_backend_py.system.version import VersionTuple
from cudnn_backend_py.target import list_profiles
from tests.known_issues import EXAMPLES
from tests.support.child import make_older_cudnn_environment, run_python

OLD = (9, 19, 0)
HERE = library().version
PROFILES = {profile.sm for profile in list_profiles()}

ASK = """
import json, sys
from cudnn_backend_py import explain, library
from cudnn_backend_py.native import crash_guards
from tests.known_issues import EXAMPLES, make_example_graph
crash_guards.CRASHING_GRAPHS = ()
for code, which, sm, build in json.loads(sys.argv[1]):
    made = EXAMPLES[code].fixed if which == "fixed" else EXAMPLES[code].reproductions[which]
    verdict = explain(make_example_graph(made, library().version), f"sm{sm}", build=build)
    print(json.dumps([code, which, str(verdict.outcome), verdict.stage]), flush=True)
"""


def make_environment_for_version(version: VersionTuple) -> dict[str, str]:
    return (make_older_cudnn_environment() if version == OLD else dict(os.environ)) | {"CUDA_VISIBLE_DEVICES": ""}


def run_queries_with_cudnn_version(
    version: VersionTuple, questions: list[tuple[str, str, int, bool]], **variables: str
) -> tuple[list[list[str]], str]:
    """Return cuDNN's answers to the queries, and how the child process ended."""
    where = make_environment_for_version(version) | variables
    done = run_python(["-c", ASK, json.dumps(questions)], environment=where, timeout_s=300)
    return [json.loads(line) for line in done.stdout.splitlines()], done.ending


def find_affected_architecture(row: KnownIssue) -> int | None:
    """Return an architecture that has the known issue `row` and a described GPU, or None."""
    return next((sm for sm in row.sm or (90,) if sm in PROFILES), None)


# Effects on a described GPU: how the process ends, or where it stops

SHOWN: Mapping[tuple[str, str], str] = {
    ("boolean-bias", ""): "SIGFPE",
    ("boolean-bias", "backward"): "SIGFPE",
    ("eight-bit-bias", ""): "SIGABRT",
    ("eight-bit-bias", "float"): "SIGABRT",
    ("fp8-one-query", ""): "not supported at plan",
    ("mxfp8-one-query", ""): "SIGSEGV",
    ("mxfp8-other-architectures", ""): "not supported at plan",
    ("bias-inner-stride", ""): "SIGSEGV",
    ("backward-of-one-row", ""): "SIGSEGV",
    ("mxfp8-wide-heads", ""): "not supported at plan",
    ("backward-head-dim-256", ""): "not supported at plan",
    ("inner-stride", ""): "SIGSEGV",
    ("fp8-bias", ""): "SIGABRT",
    ("fp8-dropout-mask", ""): "SIGABRT",
    ("weight-gradient-prologue", ""): "SIGSEGV",
    ("weight-gradient-prologue", "relu"): "SIGSEGV",
    ("norm-activation-gradient", ""): "SIGSEGV",
    ("experts-and-matmul", ""): "SIGSEGV",
    ("bilinear-one-dim", ""): "SIGFPE",
    ("max-pool-gradient-of-both", ""): "SIGSEGV",
    ("max-pool-gradient-one-dim", ""): "SIGFPE",
    ("normed-convolution-reduced", ""): "SIGSEGV",
    ("vector-product-select", ""): "SIGSEGV",
    ("bilinear-16-bits", ""): "not supported at plan",
    ("bilinear-16-bits", "bfloat16"): "not supported at plan",
    ("float32-matmul-dims", ""): "not supported at plan",
    ("float32-matmul-dims", "batches"): "not supported at plan",
    ("bfloat16-product-on-turing", ""): "not supported at plan",
    ("elementwise-booleans", ""): "not supported at plan",
    ("elementwise-booleans", "image"): "not supported at plan",
    ("elementwise-64-bits", ""): "not supported at plan",
    ("elementwise-64-bits", "float"): "not supported at plan",
    ("elementwise-64-bits", "int"): "not supported at plan",
    ("fused-convolution-alignment", ""): "not supported at plan",
}
READS_BEHIND = {"max-pool-gradient-one-dim"}  # its allocated memory: 0 in the fresh pages of each allocation
FRESH_PAGES = {"GLIBC_TUNABLES": "glibc.malloc.mmap_threshold=1:glibc.malloc.mmap_max=1000000"}
NEEDS_ALL_ENGINES = {
    "bfloat16-product-on-turing",
    "bilinear-16-bits",
    "float32-matmul-dims",
    "fused-convolution-alignment",
    "weight-gradient-prologue",
}
# no version with all engines, or none of those here; no description of the GPU; not every graph, engine or config
UNSHOWN = {
    "code-of-sm-100",
    "mxfp8-backward",
    "ragged-decoding-build",
    "signal",
    "unified-backward-without-knob",
    "vector-product-select-among-many",
    "weight-gradient-normed",
}


def test_every_known_issue_that_appears_without_a_gpu_is_tested() -> None:
    assert {row.code for row in FAULTS if row.step != "run"} == {code for code, _ in SHOWN} | UNSHOWN


@pytest.mark.parametrize("version", [OLD, HERE], ids=["9.19.0", "newest"])
@pytest.mark.parametrize(("code", "which"), SHOWN, ids=[":".join(name) for name in SHOWN])
def test_a_known_issue_appears_in_exactly_its_versions(code: str, which: str, version: VersionTuple) -> None:
    row = next(row for row in FAULTS if row.code == code)
    sm = find_affected_architecture(row)
    assert sm is not None
    answers, ending = run_queries_with_cudnn_version(
        version, [(code, which, sm, True)], **(FRESH_PAGES if code in READS_BEHIND else {})
    )
    said = f"{answers[0][2]} at {answers[0][3]}" if answers else ending
    if version == OLD and code in NEEDS_ALL_ENGINES:  # of which 9.19 has only the runtime-compiled ones here
        assert said.startswith("could not be judged")
        return
    assert (said == SHOWN[code, which]) is (version in row.versions), said


BUILD = """
import sys
from cudnn_backend_py import OperationGraph, build_plan, library, open_target
from cudnn_backend_py.known_issues import FAULTS
from tests.known_issues import EXAMPLES, make_example_graph
row = next(row for row in FAULTS if row.code == "vector-product-select-among-many")
examples = EXAMPLES[row.code]
made = make_example_graph({"": examples.reproductions[""], "unaffected": examples.unaffected}[sys.argv[1]])
build_plan(OperationGraph(made, open_target("sm90")).config(*row.engines))
"""


@pytest.mark.parametrize("which", ["", "unaffected"])
def test_a_mask_after_a_matrix_vector_matmul_crashes_an_engine(which: str) -> None:
    row = next(row for row in FAULTS if row.code == "vector-product-select-among-many")
    if HERE not in row.versions:
        pytest.skip(f"cuDNN {HERE} crashes earlier, in the heuristics, or has no such engine")
    done = run_python(["-c", BUILD, which], environment=make_environment_for_version(HERE))
    assert done.ending == ("exit code 0" if which else "SIGSEGV")


# Issues that crash the process on any GPU are refused before cuDNN gets them

REFUSE = """
import json
from cudnn_backend_py import OperationGraph, UsageError, library, open_target
from cudnn_backend_py.native.crashing_graphs import CRASHING_GRAPHS
from tests.known_issues import EXAMPLES, make_example_graph
for kind in CRASHING_GRAPHS:
    examples = EXAMPLES[kind.code]
    for which, made in {**examples.reproductions, "unaffected": examples.unaffected, "fixed": examples.fixed}.items():
        for target in map(open_target, ("sm80", "sm90", "sm100")):
            try:
                OperationGraph(make_example_graph(made, library().version), target)
                said = "made"
            except UsageError as error:
                said = error.code
            print(json.dumps([kind.code, which, said]), flush=True)
"""


@pytest.mark.parametrize("version", [OLD, HERE], ids=["9.19.0", "newest"])
def test_a_graph_that_crashes_cudnn_is_refused_before_it_reaches_cudnn(version: VersionTuple) -> None:
    done = run_python(["-c", REFUSE], environment=make_environment_for_version(version), check=True)
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    kinds = {kind.code: kind.versions for kind in CRASHING_GRAPHS}
    assert len(answers) == 9 * len(kinds)
    for code, which, said in answers:
        refused = which not in ("unaffected", "fixed") and version in kinds[code]
        assert said == ("graph-kills-cudnn" if refused else "made"), (code, which)


def test_the_known_issue_table_has_every_crashing_graph() -> None:
    rows = {row.code: row.versions for row in FAULTS if row.step != "run"}
    assert {kind.code: kind.versions for kind in CRASHING_GRAPHS}.items() <= rows.items()


# Fixed graphs

FIXED_ON = {
    row.code: sm
    for row in FAULTS
    if EXAMPLES[row.code].fixed is not None and (sm := find_affected_architecture(row)) is not None
}


@pytest.mark.parametrize("version", [OLD, HERE], ids=["9.19.0", "newest"])
def test_cudnn_supports_the_graphs_with_known_issue_fixes(version: VersionTuple) -> None:
    rows = [row for row in FAULTS if row.code in FIXED_ON and version in row.versions]
    answers, ending = run_queries_with_cudnn_version(
        version, [(row.code, "fixed", FIXED_ON[row.code], False) for row in rows]
    )
    assert ending == "exit code 0"
    assert len(rows) > 20
    assert [code for code, _, outcome, _ in answers if outcome != "supported"] == []
