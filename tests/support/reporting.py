"""Sample verdicts, a matrix and remedies made without a library, for tests of reports."""

from __future__ import annotations

import dataclasses
from typing import Any

from cudnn_backend_py import DataType, Graph, GraphBuilder, TensorReordering
from cudnn_backend_py.diagnose import Basis, Candidate, Cause, Control, Outcome, Reason, Verdict
from cudnn_backend_py.diagnose.remedy import Remedy
from cudnn_backend_py.diagnose.surveys.matrix import Cell, Matrix
from cudnn_backend_py.diagnose.verdict import STAGE_NAMES, Stage

__all__ = ["HOSTILE_NAME", "make_render_page_arguments", "make_support_matrix", "make_two_matmuls", "make_verdict"]

HOSTILE_NAME = (
    """</script></title></style><script>window.hit=1</script><img src=x onerror="hit=1"> ' " & \x00 \ud800 ]]>"""
)
NOT_SUPPORTED_STATUS = "CUDNN_STATUS_NOT_SUPPORTED"


def make_two_matmuls(name: str = "two_matmuls", *, ordered: bool = True, size: int = 10) -> Graph:
    """Return the graph o = (q @ k) @ v; the intermediate tensor s has the reordering F16x16 or none."""
    g = GraphBuilder(name.replace("\ud800", "\ufffd"), io_type=DataType.HALF)  # a graph's name must be valid UTF-8
    q, k, v = g.tensor("q", (1, size, 64), alignment=2), g.tensor("k", (1, 64, size)), g.tensor("v", (1, size, 64))
    order = TensorReordering.F16x16 if ordered else TensorReordering.NONE
    g.matmul(g.matmul(q, k, name="s", data_type=DataType.HALF, reordering=order), v, name="o", virtual=False)
    return g.graph()


def make_verdict_stages(outcome: Outcome, last: str, detail: str = "") -> tuple[Stage, ...]:
    """Return the stages of a verdict that reached `last`."""
    index = STAGE_NAMES.index(last)
    said = {Outcome.SUPPORTED: "passed", Outcome.NOT_SUPPORTED: "refused", Outcome.NOT_JUDGED: "crashed"}[outcome]
    states = ["passed"] * index + [said] + ["not reached"] * (len(STAGE_NAMES) - index - 1)
    return tuple(
        Stage(name, state, detail if name == last else "") for name, state in zip(STAGE_NAMES, states, strict=True)
    )


def make_verdict(graph: Graph, outcome: Outcome = Outcome.NOT_SUPPORTED, **changes: Any) -> Verdict:
    """Return a verdict on `graph` for an L40S."""
    refused = Candidate(
        "A",
        0,
        {"CUDNN_KNOB_TYPE_TILE_M": -1},
        "refused",
        (
            Reason(f"{NOT_SUPPORTED_STATUS}_GRAPH_PATTERN", "no <b>such</b> pattern at: a && b"),
            Reason(NOT_SUPPORTED_STATUS, "finalize_internal()"),
        ),
    )
    taken = Candidate("FALLBACK", 8, {}, "built", (), 4096, ("RUNTIME_COMPILATION",), ("TENSOR_CORE",))
    cause = Cause(
        "reordered", "tensor 's' is in order F16x16, NONE is needed", Basis.MEASURED, "asked", "store it plain"
    )
    crash = Cause("cudnn-crashed", "cuDNN crashed with SIGSEGV in plan of eng7_k24=3", Basis.MEASURED)
    is_good = outcome is Outcome.SUPPORTED
    last = {Outcome.SUPPORTED: "plan", Outcome.NOT_SUPPORTED: "engine config", Outcome.NOT_JUDGED: "plan"}[outcome]
    made = Verdict(
        outcome=outcome,
        stage=last,
        graph=graph.name,
        graph_text=str(graph),
        target="l40s",
        target_title="NVIDIA L40S",
        sm=89,
        live=False,
        cudnn="9.28.0",
        library="/opt/cudnn/libcudnn.so.9",
        driver="stub",
        modes=("A", "FALLBACK"),
        control=Control("control", True),
        candidates=(refused, taken) if is_good else (refused,),
        reasons=() if is_good else (Reason("", "something else"),),
        cause={Outcome.SUPPORTED: None, Outcome.NOT_SUPPORTED: cause, Outcome.NOT_JUDGED: crash}[outcome],
        environment=("libcuda.so.1 is this package's stub",),
        limits=("judged without a GPU",),
        stages=make_verdict_stages(outcome, last, "SIGSEGV in eng7_k24=3" if outcome is Outcome.NOT_JUDGED else ""),
    )
    return dataclasses.replace(made, **changes)


def make_support_matrix(*names: str) -> Matrix:
    """Return a support matrix of these graphs with every kind of verdict and one missing cell."""
    targets, versions = ("sm80", "sm89", "sm90"), ("9.14.0", "9.19.0", "9.24.0", "9.25.0", "9.28.0")
    kinds = [
        Cell(Outcome.SUPPORTED, engines=(0, 8), stage="engine config"),
        Cell(Outcome.SUPPORTED, engines=(8,), stage="engine config"),
        Cell(
            Outcome.NOT_SUPPORTED, "head-dim", "tensor 'q' has head dim 20, a multiple of 8 is needed", (), "heuristics"
        ),
        Cell(Outcome.NOT_JUDGED, "device-needed", "engine 3 asks the device", (), "environment"),
        Cell(Outcome.NOT_JUDGED, "cudnn-crashed", "cuDNN crashed with SIGSEGV", (), "plan"),
        Cell(Outcome.SUPPORTED, engines=(1,), stage="plan"),
        Cell(Outcome.NOT_SUPPORTED, "", "cuDNN gave no reason", (), "heuristics"),
    ]
    keys = [(graph, target, version) for graph in names for target in targets for version in versions]
    cells = {key: kinds[index % len(kinds)] for index, key in enumerate(keys)}
    del cells[keys[-1]]
    return Matrix(names, targets, versions, cells)


def make_render_page_arguments() -> dict[str, Any]:
    """Return arguments of ``render_page`` for a page with all of its parts."""
    graph, plain = make_two_matmuls(), make_two_matmuls(ordered=False)
    hostile = make_two_matmuls(HOSTILE_NAME)
    good = make_verdict(plain, Outcome.SUPPORTED)
    remedies = [
        Remedy("store 's' plain", "exact", ("drop the reordering",), plain, "l40s", None, True, good),
        Remedy("use cuDNN 9.19.0", "exact", (), graph, "l40s", "9.19.0", False, None),
    ]
    return {
        "verdicts": [
            make_verdict(graph, hazards=("cuDNN 9.28.0: a known issue",)),
            good,
            make_verdict(graph, Outcome.NOT_JUDGED, cudnn="9.14.0"),
            make_verdict(
                hostile, cause=Cause("x", HOSTILE_NAME, Basis.GUESS), target=HOSTILE_NAME, target_title=HOSTILE_NAME
            ),
        ],
        "matrix": make_support_matrix("two_matmuls", "attention", HOSTILE_NAME),
        "remedies": [
            remedies,
            [],
            [],
            [Remedy(HOSTILE_NAME, "idea", (HOSTILE_NAME,), graph, HOSTILE_NAME, None, False, None)],
        ],
        "graphs": [graph, plain, graph, hostile],
    }
