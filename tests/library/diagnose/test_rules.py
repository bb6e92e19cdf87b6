"""Causes of real refusals: each headline must have the tensor, the value found and the value needed."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from cudnn_backend_py import DataType, Graph, GraphBuilder, PointwiseMode
from cudnn_backend_py.diagnose import explain
from cudnn_backend_py.diagnose.causes import find
from cudnn_backend_py.diagnose.causes.case import RefusalCase, is_supported
from cudnn_backend_py.diagnose.causes.find import find_cause, find_graph_refusal_cause, list_suspicious_properties
from cudnn_backend_py.diagnose.fork import run_in_fork
from cudnn_backend_py.diagnose.verdict import Basis, Candidate, Cause
from cudnn_backend_py.errors import CudnnStatusError
from cudnn_backend_py.generated.enums import ReduceTensorOp
from cudnn_backend_py.graph.attention import SoftCap, sdpa_backward, sdpa_forward
from cudnn_backend_py.graph.replace import replace_tensors
from cudnn_backend_py.plans.engine import OperationGraph
from cudnn_backend_py.plans.refusals import Reason
from cudnn_backend_py.target import use_target
from tests.cases import find_case
from tests.support.cause_cases import CAUSE_CASES
from tests.support.graphs import make_convolution, make_relu, make_tensor
from tests.support.operations import OPERATION_GRAPHS

F16, F32, FP8 = DataType.HALF, DataType.FLOAT, DataType.FP8_E4M3
Pointwise = PointwiseMode
ATTENTION_SIZES: dict[str, Any] = {"batch": 2, "heads": 4, "seq_q": 256, "head_dim": 64, "allow_hazards": True}


def make_forward(**options: Any) -> Graph:
    return sdpa_forward(**{**ATTENTION_SIZES, **options})


def make_backward(**options: Any) -> Graph:
    return sdpa_backward(**{**ATTENTION_SIZES, **options})


def change_tensor(graph: Graph, name: str, **fields: Any) -> Graph:
    found = graph.tensor(name)
    return replace_tensors(graph, {found.uid: replace(found, **fields)})


def make_convolution_relu() -> Graph:
    x, w = make_tensor("x", 1, 8, 6, 6, data_type=F16), make_tensor("w", 16, 8, 3, 3, data_type=F16)
    y, z = make_tensor("y", 1, 16, 4, 4, virtual=True), make_tensor("z", 1, 16, 4, 4, data_type=F16)
    return Graph((make_convolution(x=x, w=w, y=y), make_relu(y, z)), "image_relu")


def make_matmul_graph(
    data_type: DataType, result: DataType | None = None, dims: tuple[int, ...] = (2, 64, 64)
) -> Graph:
    g = GraphBuilder("product", io_type=data_type)
    a, b = g.tensor("a", dims), g.tensor("b", dims)
    g.matmul(a, b, name="c", virtual=False, data_type=result or data_type)
    return g.graph()


def make_relu_with_product_reduction() -> Graph:
    g = GraphBuilder("reductions", io_type=F32)
    x = g.pointwise(Pointwise.RELU_FWD, g.tensor("x", (4, 64, 128)))
    g.reduction(ReduceTensorOp.MUL, x, (4, 64, 1), name="y", virtual=False)
    return g.graph()


def make_batch_norm(channels: int) -> Graph:
    from cudnn_backend_py import DescriptorType
    from cudnn_backend_py.generated.enums import NormFwdPhase, NormMode

    g = GraphBuilder("batch_norm", io_type=F16)
    dims = (8, channels, 8, 8)
    strides = (channels * 64, 1, channels * 8, channels)
    images = {name: g.tensor(name, dims, strides=strides) for name in ("x", "y")}
    columns = {n: g.tensor(n, (1, channels, 1, 1), F32) for n in ("scale", "bias", "mean", "inv_variance")}
    g.operation(
        DescriptorType.OPERATION_NORM_FORWARD,
        mode=NormMode.BATCH_NORM,
        phase=NormFwdPhase.TRAINING,
        epsilon=g.scalar(1e-5),
        **images,
        **columns,
    )
    return g.graph()


MEASURED_CAUSES: dict[str, tuple[Callable[[], Graph], str, str, tuple[str, ...]]] = {
    "multiple": (
        lambda: make_forward(head_dim=100),
        "sm90",
        "head-dim",
        ("q, k, v, o is 100", "multiple of 8 is needed"),
    ),
    "unified": (
        lambda: make_forward(head_dim=100, implementation="unified", version=(9, 28, 0)),
        "sm100",
        "head-dim",
        ("q, k, v, o is 100", "multiple of 8 is needed"),
    ),
    "limit": (lambda: make_backward(head_dim=256), "sm80", "head-dim", ("is 256", "at most 128 is supported on sm_80")),
    "type": (
        lambda: make_backward(data_type=F32),
        "sm90",
        "data-type",
        ("q, k, do, v", "float32, float16 or bfloat16 is needed", "Data type for Q tensor"),
    ),
    "odd type": (
        lambda: change_tensor(make_forward(), "k", data_type=DataType.BFLOAT16),
        "sm90",
        "data-type",
        ("k has data type bfloat16, float16 is needed",),
    ),
    "type of a virtual tensor": (
        lambda: change_tensor(make_forward(), "p", data_type=F32),
        "sm90",
        "data-type",
        ("p has data type float32, float16 is needed",),
    ),
    "alignment of a virtual tensor": (
        lambda: change_tensor(make_forward(), "shifted", alignment=2),
        "sm90",
        "operation-graph-refused",
        ("shifted has alignment 2 bytes, 4 is needed",),
    ),
    "statistics of ragged sequences": (
        lambda: make_backward(ragged=True, implementation="unified", version=(9, 28, 0), sm=89, allow_hazards=True),
        "sm89",
        "layout",
        ("stats has no ragged offsets, and the sequences are ragged", "ragged (packed) Stats"),
    ),
    "seed": (
        lambda: make_forward(dropout=0.1, seed_type=DataType.INT32, stats=True),
        "sm100",
        "data-type",
        ("dropout_seed, dropout_offset have data type int32, int64 is needed",),
    ),
    "fp8": (
        lambda: make_forward(data_type=FP8),
        "sm89",
        "data-type",
        ("q, k, v, o have data type fp8 (e4m3)", "sm_90, sm_100", "not on sm_89"),
    ),
    "fp8 and a wide output": (
        lambda: make_forward(data_type=FP8, output_type=F16),
        "sm90",
        "data-type",
        ("q, k, v have data type fp8", "output o float16", "supported on sm_100, not on sm_90"),
    ),
    "layout of images": (make_convolution_relu, "sm90", "layout", ("x, y, z", "have layout NCHW, NHWC is needed")),
    "matrices": (
        lambda: make_matmul_graph(F16, dims=(64, 64)),
        "sm90",
        "layout",
        ("tensors have 2 dims, 3 are needed",),
    ),
    "layout of a bias": (
        lambda: change_tensor(make_forward(bias=(1, 4, 256, 256)), "bias", strides=(262144, 65536, 1, 256)),
        "sm90",
        "layout",
        ("bias has strides [262144, 65536, 1, 256], [262144, 65536, 256, 1] (row-major) is supported",),
    ),
    "channels": (lambda: make_batch_norm(35), "sm89", "shape", ("channels of x", "is 35, a multiple of 8 is needed")),
    "option": (
        lambda: make_backward(score_modifier=SoftCap(30.0)),
        "sm80",
        "option",
        ("the score modifier (soft cap): not supported on sm_80", "sm_90, sm_100 support the", "Backward activations"),
    ),
    "too old": (make_forward, "t4", "architecture", ("sm_75 does not support", "sm_90", "Ampere or above")),
    "operation": (
        make_relu_with_product_reduction,
        "sm90",
        "operation",
        ("y (reduce_mul)", "does not fit", "Unsupported reduction op"),
    ),
}


@pytest.mark.parametrize("name", MEASURED_CAUSES)
def test_a_cause_found_by_judging_variations_names_the_wrong_value(name: str) -> None:
    make, target, code, words = MEASURED_CAUSES[name]
    verdict = explain(make(), target)
    assert verdict.cause is not None
    assert (verdict.cause.code, verdict.cause.basis) == (code, Basis.MEASURED), verdict.cause
    missing = [word for word in words if word not in verdict.cause.headline]
    assert not missing, verdict.cause.headline
    assert verdict.cause.detail


def test_a_supported_variation_gives_the_cause_of_a_vague_refusal() -> None:
    g = GraphBuilder("sigmoid", io_type=F32)
    g.pointwise(Pointwise.SIGMOID_FWD, g.tensor("x", (1, 3, 32, 32)), name="y", virtual=False)
    cause = explain(g.graph(), "sm86").cause
    assert cause is not None
    assert cause.headline.startswith("x, y have layout NCHW, NHWC is needed")
    assert cause.basis is Basis.MEASURED
    assert "channels last" in cause.remedy


def test_an_operation_that_needs_a_matmul_is_reported() -> None:
    case = find_case("quantize alone")
    cause = explain(case.graph(), case.target).cause
    assert cause is not None
    assert (cause.code, cause.basis) == ("operation", Basis.RULE)
    assert "there is no matmul" in cause.headline


def test_an_engine_that_needs_a_newer_cuda_names_both_versions() -> None:
    """Other engines report that a matmul is missing; the headline must name the CUDA version instead."""
    verdict = explain(OPERATION_GRAPHS["moe backward"](), "sm90")
    cause = verdict.cause
    assert cause is not None
    assert (cause.code, cause.basis) == ("cuda-toolkit", Basis.RULE)
    assert cause.headline.startswith("this cuDNN is built for CUDA 12.9, 13.1 is needed (cuDNN: MoE")
    install = "cudnn-backend cudnn install 9.28.0 --cuda 13 --full"
    assert cause.remedy == f"use the full wheel for CUDA 13 ({install}) on a machine with the GPU"


def test_a_softmax_by_hand_becomes_a_graph_for_each_reduction() -> None:
    g = GraphBuilder("softmax", io_type=F16)
    s = g.tensor("s", (2, 4, 64, 64))
    exp = g.pointwise(Pointwise.EXP, g.pointwise(Pointwise.SUB, s, g.reduction(ReduceTensorOp.MAX, s, (2, 4, 64, 1))))
    g.pointwise(Pointwise.DIV, exp, g.reduction(ReduceTensorOp.ADD, exp, (2, 4, 64, 1)), name="p", virtual=False)
    verdict = explain(g.graph(), "sm90")
    assert verdict.cause is not None
    assert (verdict.cause.code, verdict.cause.basis) == ("operation", Basis.MEASURED)
    assert "a reduction must be the last operation of its graph" in verdict.cause.headline
    assert verdict.cause.remedy.startswith(
        "3 graphs, reduce_max, exp, reduce_add in memory between them; and in them rows"
    )


# without judging


def test_no_variation_is_judged_if_queries_are_not_allowed() -> None:
    graph = make_forward(head_dim=100)
    reason = Reason("CUDNN_STATUS_NOT_SUPPORTED_SHAPE", "Embedding dim is not a multiple of 8 at: d_qk % 8 != 0")
    refused = [Candidate("A", 3, {}, "refused", (reason,))]
    with use_target("sm90") as target:
        cause = find_cause(refused, graph, target, ("A",), measure=False)
        assert cause is not None
        assert (cause.code, cause.basis) == ("head-dim", Basis.RULE)
        assert "is 100, a multiple of 8 is needed" in cause.headline
        measured = find_cause(refused, graph, target, ("A",))
        assert measured is not None
        assert measured.basis is Basis.MEASURED


def test_search_for_a_cause_stops_at_its_query_limit() -> None:
    with use_target("sm90") as target:
        case = RefusalCase((), make_forward(), target, ("A",), variations_left=2)
        assert [case.supports(make_forward()) for _ in range(3)] == [True, True, False]
        assert not RefusalCase((), make_forward(), target, ("A",), measure=False).supports(make_forward())
        assert is_supported(make_forward(), target, ("A",))
        assert not is_supported(make_forward(head_dim=100), target, ("A",))


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (
            lambda: change_tensor(
                make_forward(ragged=True),
                "q",
                ragged_offset=make_tensor("ragged_q", 4, 1, 1, 1, data_type=DataType.INT32, uid=99),
            ),
            "q has a batch of 2 and its ragged offset ragged_q 4 entries: 3 entries are needed, or a batch of 3",
        ),
        (
            lambda: Graph((make_convolution(y=make_tensor("y", 1, 16, 4, 5)),), "image"),
            "y has dims [1, 16, 4, 5], [1, 16, 4, 4] is needed",
        ),
        (lambda: change_tensor(make_matmul_graph(F16), "a", alignment=1), "a has alignment 1 byte, 2 is needed"),
    ],
    ids=["ragged offset", "convolution", "alignment"],
)
def test_a_refused_operation_graph_has_a_cause(make: Callable[[], Graph], words: str) -> None:
    graph = make()
    with use_target("sm90") as target:
        with pytest.raises(CudnnStatusError) as refused:
            OperationGraph(graph, target)
        reasons = [Reason(refused.value.status.c_name, line) for line in refused.value.last_error.splitlines()]
        cause = find_graph_refusal_cause(reasons, graph, target, ("A", "FALLBACK"))
    assert cause is not None
    assert cause.code == "operation-graph-refused"
    assert words in cause.headline


@pytest.mark.parametrize("message", ["!hasEpsilonDesc() && !(fmode == X)", "!epsilonUsed && !(fmode == X)"])
def test_a_missing_tensor_is_named_in_messages_of_all_versions(message: str) -> None:
    (case,) = (case for case in CAUSE_CASES if case.words == ("epsilon",))
    reason = Reason("CUDNN_STATUS_BAD_PARAM", message)
    with use_target("sm90") as target:
        cause = find_graph_refusal_cause((reason,), case.graph(), target, ("A",), measure=False)
    assert cause is not None
    assert cause.headline == "norm_forward0 (norm_forward with BATCH_NORM) has no epsilon, which it needs"


def test_a_message_about_alignment_gives_the_tensor_and_the_needed_value() -> None:
    graph = change_tensor(make_matmul_graph(F16), "a", alignment=1)
    reason = Reason("CUDNN_STATUS_BAD_PARAM", "(_ptrAlignment <= 0) || _ptrAlignment % sizeofCudnnType(_dataType) != 0")
    with use_target("sm90") as target:
        cause = find_graph_refusal_cause((reason,), graph, target, ("A",), measure=False)
    assert cause is not None
    assert cause.headline == "a has alignment 1 byte, 2 is needed"
    assert cause.remedy == "alignment of a 1 -> 2 bytes, the element size"


def test_the_cause_names_operations_of_refused_compute_types() -> None:
    g = GraphBuilder("positions", io_type=DataType.FLOAT)
    x = g.tensor("x", (2, 8, 8))
    rows, columns = (
        g.pointwise(PointwiseMode.GEN_INDEX, x, name=name, axis=axis) for name, axis in (("i", 1), ("j", 2))
    )
    mask = g.pointwise(PointwiseMode.CMP_GE, rows, columns, name="mask")
    g.pointwise(PointwiseMode.BINARY_SELECT, x, x, t=mask, name="y", virtual=False)
    graph, kinds = g.graph(), dict.fromkeys(("i", "j"), DataType.INT32)
    types = {op.name: kinds.get(op.name, DataType.BOOLEAN if op.name == "mask" else DataType.FLOAT) for op in graph.ops}
    graph = replace(graph, ops=tuple(replace(op, compute_type=types[op.name]) for op in graph.ops))
    reason = Reason("CUDNN_STATUS_NOT_SUPPORTED_DATA_TYPE", "mathPrec != CUDNN_DATA_FLOAT")
    with use_target("sm90") as target:
        cause = find_graph_refusal_cause((reason,), graph, target, ("A",), measure=False)
    assert cause is not None
    assert cause.headline == (
        "i, j compute in int32, mask computes in boolean, which the engine does not support "
        "(cuDNN's condition: mathPrec != CUDNN_DATA_FLOAT)"
    )


def test_an_operation_that_cudnn_refuses_is_named_with_its_message(monkeypatch: pytest.MonkeyPatch) -> None:
    (case,) = (case for case in CAUSE_CASES if case.words == ("epsilon",))
    monkeypatch.setattr(
        "cudnn_backend_py.diagnose.causes.find.find_graph_refusal_cause", lambda *_args, **_options: None
    )
    cause = explain(case.graph(), case.target).cause
    assert cause is not None
    assert cause.headline.startswith("cuDNN refuses norm_forward0 (norm_forward mode BATCH_NORM): !")
    assert cause.detail.startswith("cudnnBackendFinalize answered BAD_PARAM for CUDNN_BACKEND_OPERATION_NORM_FORWARD")


def test_suspicious_strides_and_dims_are_listed() -> None:
    graph = change_tensor(make_backward(), "do", strides=(0, 0, 0, 0))
    assert list_suspicious_properties(graph) == ["do has a stride of 0 over dim 0, 1, 2, 3: [0, 0, 0, 0]"]
    assert list_suspicious_properties(make_backward()) == []
    assert "1" in list_suspicious_properties(make_backward(seq_q=1))[0]


# run_in_fork


def test_a_crash_of_a_fork_does_not_end_the_caller() -> None:
    here = os.getpid()
    assert run_in_fork(os.getpid, lambda: 0) != here
    assert run_in_fork(lambda: os.kill(os.getpid(), signal.SIGSEGV), os.getpid) == here  # type: ignore[arg-type, return-value]


def test_an_exception_of_a_fork_is_raised_in_the_parent() -> None:
    def raise_error() -> int:
        raise KeyError("p")

    with pytest.raises(KeyError, match="p"):
        run_in_fork(raise_error, lambda: 0)


def test_no_process_is_forked_with_threads() -> None:
    stop = threading.Event()
    thread = threading.Thread(target=stop.wait)
    thread.start()
    try:
        assert run_in_fork(os.getpid, lambda: 0) == os.getpid()
    finally:
        stop.set()
        thread.join()


def find_cause_of_refused_softcap() -> Cause | None:
    """Return the cause of a refused soft-cap graph; cuDNN 9.28 crashes on its variation without ``sub``."""
    with use_target("sm80") as target:
        graph = make_backward(score_modifier=SoftCap(30.0))
        reason = Reason("CUDNN_STATUS_NOT_SUPPORTED_GRAPH_PATTERN", "Unsupported node in this graph at: true")
        return find_cause([Candidate("A", 3, {}, "refused", (reason,))], graph, target, ("A", "FALLBACK"))


def test_a_crash_on_one_variation_does_not_stop_the_others() -> None:
    cause = find_cause_of_refused_softcap()
    assert cause is not None
    assert cause.basis is Basis.MEASURED
    assert cause.headline == "sm_80 does not support the graph, sm_90, sm_100 do"


def test_a_crash_on_a_variation_keeps_cudnns_reason_as_cause(monkeypatch: pytest.MonkeyPatch) -> None:
    """After a crash no further variation is judged, so the cause is cuDNN's own reason."""
    monkeypatch.setattr(find, "_MAX_CRASHING_VARIATIONS", 0)
    cause = find_cause_of_refused_softcap()
    assert cause is not None
    assert cause.basis is not Basis.MEASURED
    assert "Unsupported node" in cause.headline


def test_the_cause_lists_tensors_with_different_numbers_of_heads() -> None:
    graph = make_forward(heads=4, implementation="unified", version=(9, 28, 0), sm=90)
    graph = change_tensor(graph, "q", dims=(2, 3, 256, 64))
    reason = Reason("CUDNN_STATUS_BAD_PARAM", "O tensor dimensions must be (b, h_q, s_q, d_v)")
    with use_target("sm90") as target:
        cause = find_graph_refusal_cause((reason,), graph, target, ("A",), measure=False)
    assert cause is not None
    assert "q [2, 3, 256, 64], k, v, o [2, 4, 256, 64]" in cause.headline


def test_an_empty_message_of_cudnn_is_not_quoted() -> None:
    reason = Reason("CUDNN_STATUS_NOT_SUPPORTED_DATA_TYPE", "cudnnBackendFinalize said nothing more")
    with use_target("sm90") as target:
        cause = find_graph_refusal_cause((reason,), make_matmul_graph(F16), target, ("A",), measure=False)
    assert cause is not None
    assert cause.headline == "cuDNN refuses a data type; in memory: a, b, c float16"
