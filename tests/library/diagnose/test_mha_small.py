"""Mha-fprop and Mha-bprop, cuDNN's patterns for small attention: results, support, and the inputs of their kernels."""

from __future__ import annotations

import dataclasses
import functools
import json
import math
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from cudnn_backend_py import DataType, Graph, GraphError, OperationGraph, TensorReordering, explain, open_target
from cudnn_backend_py.graph import graph_from_json, graph_to_json
from cudnn_backend_py.graph.attention import SmallAttention, mha_bprop, mha_fprop
from cudnn_backend_py.interpreter import interpret
from cudnn_backend_py.plans.refusals import read_refusals
from examples import mha_bprop as bprop_example
from tests.support.child import make_older_cudnn_environment, run_code

BASE_OPTIONS: dict[str, Any] = {"batch": 2, "heads": 4, "seq_q": 128}
BIAS_OPTIONS = {"bias": (1, 4, 128, 128)}
MASK_OPTIONS = {"padding": True, "causal": True}

FORWARD_CASES: dict[str, dict[str, Any]] = {
    "inference": {},
    "no scale": {"scale": "none"},
    "no softmax": {"softmax": False},
    "two matmuls": {"softmax": False, "scale": "none"},
    "bfloat16": {"data_type": DataType.BFLOAT16},
    "training": {"store_s": True},
    "padding": {"padding": True},
    "causal": {"causal": True},
    "padding, causal": MASK_OPTIONS,
    "mask": {"mask": True},
    "mask, padding, causal": {"mask": True, **MASK_OPTIONS},
    "bias": BIAS_OPTIONS,
    "bias, padding": {"bias": (2, 1, 1, 128), "padding": True},
    "bias, no softmax": {"softmax": False, **BIAS_OPTIONS},
    "dropout": {"dropout": 0.1},
    "dropout, training": {"dropout": 0.1, "store_s": True},
    "given dropout mask": {"dropout_mask": True},
    "given dropout mask, training": {"dropout_mask": True, "store_s": True},
    "everything": {**BIAS_OPTIONS, **MASK_OPTIONS, "dropout": 0.1, "store_s": True},
    "everything with masks": {"mask": True, **MASK_OPTIONS, "dropout_mask": True, "store_s": True},
    "b, h, s, d": {"layout": "bhsd", "store_s": True},
    "lengths 10 and 20": {"seq_q": 10, "seq_kv": 20},
    "lengths 512": {"seq_q": 512, "store_s": True},
}
BACKWARD_CASES: dict[str, dict[str, Any]] = {
    "no mask": {},
    "no scale": {"scale": "none"},
    "bfloat16": {"data_type": DataType.BFLOAT16},
    "padding": {"padding": True},
    "causal": {"causal": True},
    "padding, causal": MASK_OPTIONS,
    "mask": {"mask": True},
    "dropout": {"dropout": 0.1},
    "given dropout mask": {"dropout_mask": True},
    "dbias": {**BIAS_OPTIONS, "dbias": True},
    "everything": {**BIAS_OPTIONS, **MASK_OPTIONS, "dropout": 0.1, "dbias": True},
    "everything with masks": {"mask": True, **MASK_OPTIONS, "dropout_mask": True},
    "b, h, s, d": {"layout": "bhsd"},
    "lengths 64 and 256": {"seq_q": 64, "seq_kv": 256},
    "lengths 512": {"seq_q": 512},
}
# Refusals of cuDNN 9.19: pattern, options, its innermost reason.
REFUSED_CASES: dict[str, tuple[str, dict[str, Any], str]] = {
    "forward, 576": ("forward", {"seq_q": 576}, "Seq length > 512 not supported"),
    "forward, training, 100": (
        "forward",
        {"seq_q": 100, "store_s": True},
        "s_q and s_kv must be multiples of 64 for training",
    ),
    "forward, head dim 128": ("forward", {"head_dim": 128}, "MHA needs hidden dims to be 64"),
    "backward, 100": ("backward", {"seq_q": 100}, "s_q and s_kv must be multiples of 64"),
}
SHARED_MEMORY_STATUS = "CUDNN_STATUS_NOT_SUPPORTED_SHARED_MEMORY_INSUFFICIENT"
NO_FPROP_STATEMENT = "non-flash composite MHA fprop is no longer supported (removed with the xmma512 engine)"
NO_BPROP_STATEMENT = "mha patterns only support 2 (flash fprop) or 5 (flash bprop) gemms"
CASES_WITH_BUILT_PLANS = {
    "forward": ("everything", "everything with masks", "causal", "bfloat16", "training"),
    "backward": ("no mask", "everything", "everything with masks", "bfloat16"),
}


def get_mha_options_by_case(pattern: str) -> dict[str, dict[str, Any]]:
    refused = {name: options for name, (kind, options, _) in REFUSED_CASES.items() if kind == pattern}
    return (FORWARD_CASES if pattern == "forward" else BACKWARD_CASES) | refused


def make_graph(pattern: str, options: dict[str, Any]) -> Graph:
    return (mha_fprop if pattern == "forward" else mha_bprop)(**(BASE_OPTIONS | options))


def judge_every_mha_case(targets: tuple[str, ...]) -> list[list[Any]]:
    """Return [pattern, case, target, supported, statuses and messages of innermost reasons] for every case."""
    found = []
    for target in map(open_target, targets):
        for pattern in ("forward", "backward"):
            for name, options in get_mha_options_by_case(pattern).items():
                question = OperationGraph(make_graph(pattern, options), target)
                answers = [question.heuristics(mode) for mode in ("A", "FALLBACK")]
                refusals = [item for answer in answers for item in read_refusals(answer.answer.text)]
                innermost = [item.innermost for item in refusals if item.innermost is not None]
                said = [words for reason in innermost for words in (reason.status, reason.statement)]
                found.append([pattern, name, f"sm{target.sm}", any(answer.configs for answer in answers), said])
    return found


def list_kernel_inputs(graph: Graph, target: str) -> list[str] | None:
    """Return the names of the tensors that the kernels of the first plan read, or None if there is no plan."""
    plans: list[Any] = []
    explain(graph, target, mode="A", build=True, plans=plans)
    if not plans:
        return None
    kernels = json.loads(plans[0].json())["engine"]["payload"]["kernels"]
    uids = {item["uid"] for kernel in kernels for item in kernel["kernelParams"]["offsets"] if "uid" in item}
    return sorted(tensor.name for tensor in graph.variant_pack_tensors if tensor.uid in uids)


@functools.cache
def evaluate_expression_in_9_19_process(expression: str) -> Any:
    """Evaluate an expression over this module in a process with cuDNN 9.19.0, and return its value."""
    code = f"import json\nfrom tests.library.diagnose import test_mha_small as t\nprint(json.dumps({expression}))"
    return json.loads(run_code(code, environment=make_older_cudnn_environment()).stdout)


# Verdicts

TARGETS = ("sm80", "sm86", "sm89", "sm90", "sm100")
TARGETS_WITH_ENOUGH_MEMORY = (
    "sm80",
    "sm90",
    "sm100",
)  # 150 KiB of shared memory per block are needed; sm_86 and sm_89 have 99


def test_9_19_supports_each_mha_option_that_fits_shared_memory() -> None:
    verdicts = evaluate_expression_in_9_19_process(f"t.judge_every_mha_case({TARGETS!r})")
    assert len(verdicts) == len(TARGETS) * (
        len(get_mha_options_by_case("forward")) + len(get_mha_options_by_case("backward"))
    )
    for pattern, name, target, supported, said in verdicts:
        case = (pattern, name, target)
        assert supported is (name not in REFUSED_CASES and target in TARGETS_WITH_ENOUGH_MEMORY), case
        if name in REFUSED_CASES:
            assert REFUSED_CASES[name][2] in said, case
        elif not supported:
            assert SHARED_MEMORY_STATUS in said, case


@pytest.mark.parametrize("pattern", ["forward", "backward"])
def test_insufficient_shared_memory_is_the_cause(pattern: str) -> None:
    causes = evaluate_expression_in_9_19_process(
        f"[t.find_cause_of_refusal({pattern!r}, target) for target in ('sm86', 'sm89')]"
    )
    for target, (code, headline) in zip((86, 89), causes, strict=True):
        assert code == "shared-memory-per-block-insufficient"
        assert f"needs 153600 bytes (150 KiB) of shared memory per block, sm_{target} has 101376" in headline


def find_cause_of_refusal(pattern: str, target: str) -> tuple[str, str]:
    found = explain(make_graph(pattern, {}), target, mode="A").cause
    assert found is not None
    return found.code, found.headline


def test_the_newest_cudnn_supports_no_small_mha_case() -> None:
    for pattern, name, target, supported, said in judge_every_mha_case(TARGETS):
        assert not supported, (pattern, name, target)
        assert (NO_FPROP_STATEMENT if pattern == "forward" else NO_BPROP_STATEMENT) in said, (pattern, name, target)


@pytest.mark.parametrize("pattern", ["forward", "backward"])
def test_the_newest_cudnn_reports_the_removed_pattern(pattern: str) -> None:
    found = explain(make_graph(pattern, {}), "sm90").cause
    assert found is not None
    assert found.code == "pattern-removed"
    assert (NO_FPROP_STATEMENT if pattern == "forward" else NO_BPROP_STATEMENT) in found.headline


def test_four_matmuls_without_f16x16_order_are_no_mha_pattern() -> None:
    """cuDNN's reason is the same for any four matmuls; only with F16x16 reordering is the removed pattern the cause."""
    text = json.dumps(graph_to_json(make_graph("backward", {})))
    assert "F16x16" in text
    verdict = explain(graph_from_json(json.loads(text.replace("F16x16", "NONE"))), "sm90")
    assert any(NO_BPROP_STATEMENT in reason.text for candidate in verdict.candidates for reason in candidate.reasons)
    assert verdict.cause is not None
    assert verdict.cause.code == "refused"


# Plans

# By-value numbers that the kernels do not read: they have their own, and a causal mask needs no lengths.
UNREAD_NUMBERS = {"lowest", "zero", "whole_seq_q", "whole_seq_kv"}


@pytest.mark.parametrize("pattern", ["forward", "backward"])
def test_plans_are_built_and_their_kernels_read_every_tensor(pattern: str) -> None:
    options = f"t.get_mha_options_by_case({pattern!r})[name]"
    graphs = f"t.make_graph({pattern!r}, {options}) for name in t.CASES_WITH_BUILT_PLANS[{pattern!r}]"
    program = f"[t.list_kernel_inputs(graph, 'sm80') for graph in ({graphs})]"
    for name, read in zip(CASES_WITH_BUILT_PLANS[pattern], evaluate_expression_in_9_19_process(program), strict=True):
        assert read is not None, name
        given = {
            tensor.name for tensor in make_graph(pattern, get_mha_options_by_case(pattern)[name]).variant_pack_tensors
        }
        assert given - set(read) <= UNREAD_NUMBERS, name


def make_graph_with_selected_mask() -> Graph:
    """Return the forward graph with a mask applied by BINARY_SELECT, which the builder does not offer."""
    from cudnn_backend_py import GraphBuilder, PointwiseMode
    from cudnn_backend_py.generated.enums import ReduceTensorOp

    g = GraphBuilder("selected", io_type=DataType.HALF)
    q, v, o = (g.tensor(name, (2, 4, 128, 64)) for name in "qvo")
    k = g.tensor("k", (2, 4, 64, 128), strides=(32768, 8192, 1, 64))
    mask = g.tensor("mask", (2, 4, 128, 128), DataType.BOOLEAN)
    p = g.pointwise(PointwiseMode.BINARY_SELECT, g.matmul(q, k), g.scalar(-1e20, name="low"), mask)
    exp = g.pointwise(
        PointwiseMode.EXP, g.pointwise(PointwiseMode.SUB, p, g.reduction(ReduceTensorOp.MAX, p, (2, 4, 128, 1)))
    )
    total = g.reduction(ReduceTensorOp.ADD, exp, (2, 4, 128, 1))
    g.matmul(g.pointwise(PointwiseMode.DIV, exp, total, data_type=DataType.HALF), v, out=o)
    return g.graph()


def make_graph_with_stored_s() -> Graph:
    """Return two matmuls that store the intermediate S in memory, which the builder does not offer."""
    graph = make_graph("forward", FORWARD_CASES["two matmuls"])
    first, second = graph.ops
    s = dataclasses.replace(first.c, virtual=False)  # type: ignore[attr-defined]
    ops = dataclasses.replace(first, c=s), dataclasses.replace(second, a=s)  # type: ignore[type-var]
    return Graph(ops, "stored")


def make_graph_with_sbhd_tensors() -> Graph:
    """Return the forward graph with [s, b, h, d] tensors and a batch of two, which the builder refuses."""
    graph = make_graph("forward", FORWARD_CASES["two matmuls"])
    text = {tensor.name: tensor for tensor in graph.variant_pack_tensors}
    strides = dict.fromkeys("qvo", (256, 64, 512, 1)) | {"k": (256, 64, 1, 512)}
    moved = {tensor.uid: dataclasses.replace(tensor, strides=strides[name]) for name, tensor in text.items()}
    ops = [
        dataclasses.replace(op, **{port: moved.get(tensor.uid, tensor) for port, tensor in op.ports()})  # type: ignore[type-var]
        for op in graph.ops
    ]
    return Graph(tuple(ops), "sequence_first")


def test_9_19_accepts_inputs_that_its_kernels_do_not_read() -> None:
    """As these inputs are ignored, the builder offers no BINARY_SELECT mask, stored S, or [s, b, h, d] batch of two."""
    graphs = "t.make_graph_with_selected_mask(), t.make_graph_with_stored_s(), t.make_graph_with_sbhd_tensors()"
    program = f"[t.list_kernel_inputs(graph, 'sm80') for graph in ({graphs})]"
    selected, stored, first = evaluate_expression_in_9_19_process(program)
    assert selected == ["k", "o", "q", "v"]  # and not: mask, low
    assert stored == ["k", "o", "q", "v"]  # and not: s
    assert first == ["k", "o", "q"]  # v is assumed to be after k


# Results of the graphs, operation by operation


def make_random_normal_numbers(seed: int, *dims: int) -> NDArray[np.float64]:
    return np.random.default_rng(seed).standard_normal(dims)


BHSD_SHAPE = (2, 3, 4, 5)  # b, h, s, d
SCORES_SHAPE = (2, 3, 4, 4)
TINY_PROBLEM = SmallAttention(batch=2, heads=3, seq_q=4, head_dim=5, causal=True, bias=(1, 3, 4, 4), dbias=True)
Q, K, V, DO = (make_random_normal_numbers(seed, *BHSD_SHAPE) for seed in range(4))
SCORE_BIAS = make_random_normal_numbers(4, 1, *SCORES_SHAPE[1:])


def test_mha_training_step_agrees_with_the_formula() -> None:
    want = bprop_example.compute_expected_in_float64(Q, K, V, SCORE_BIAS, DO)
    forward = interpret(
        mha_fprop(TINY_PROBLEM, store_s=True), {"q": Q, "k": K.swapaxes(2, 3), "v": V, "bias": SCORE_BIAS}
    )
    backward = interpret(mha_bprop(TINY_PROBLEM), {"q": Q, "k": K, "v": V.swapaxes(2, 3), "do": DO, "s": forward["s"]})
    for name, value in want.items():
        np.testing.assert_allclose((forward | backward)[name], value, atol=1e-6, err_msg=name)


@pytest.mark.parametrize("causal", [False, True])
def test_mha_with_padding_and_mask_agrees_with_the_formula(causal: bool) -> None:
    p = dataclasses.replace(TINY_PROBLEM, causal=causal, bias=None, dbias=False, padding=True, mask=True, scale=0.5)
    lengths = np.array([4, 2]).reshape(2, 1, 1, 1)
    mask = (make_random_normal_numbers(5, *SCORES_SHAPE) > 0).astype(float)
    inputs: dict[str | int, Any] = {
        "q": Q,
        "k": K.swapaxes(2, 3),
        "v": V,
        "mask": mask,
        "seq_len_q": lengths,
        "seq_len_kv": lengths,
    }
    o = interpret(mha_fprop(p), inputs)["o"]
    row, column = np.ogrid[:4, :4]
    keep = (column < lengths) & ((column <= row) | (not causal))
    exp = np.where(keep, np.exp(0.5 * Q @ K.swapaxes(2, 3) * mask), 0)
    want = exp / exp.sum(-1, keepdims=True) @ V
    for b, n in enumerate((4, 2)):
        np.testing.assert_allclose(o[b, :, :n], want[b, :, :n], atol=1e-6)


def test_mha_dropout_gradient_agrees_with_the_formula() -> None:
    """The test passes S as the kernels store it: the softmax, negated where dropout removed a probability."""
    p = dataclasses.replace(TINY_PROBLEM, causal=False, bias=None, dbias=False, dropout_mask=True)
    keep, factor = (make_random_normal_numbers(6, *SCORES_SHAPE) > -0.5).astype(float), 1.25
    graph = mha_bprop(p)
    exp = np.exp(Q @ K.swapaxes(2, 3) / math.sqrt(5))
    softmax = exp / exp.sum(-1, keepdims=True)
    inputs: dict[str | int, Any] = {"q": Q, "k": K, "v": V.swapaxes(2, 3), "do": DO, "dropout_scale": factor}
    found = interpret(graph, inputs | {"s": softmax * np.where(keep > 0, 1, -1)})
    dp = factor * keep * (DO @ V.swapaxes(2, 3))
    ds = softmax * (dp - (softmax * dp).sum(-1, keepdims=True)) / math.sqrt(5)
    np.testing.assert_allclose(found["dq"], ds @ K, atol=1e-6)
    np.testing.assert_allclose(found["dk"], ds.swapaxes(2, 3) @ Q, atol=1e-6)


# The graphs themselves


def test_graphs_reorder_and_store_the_expected_tensors() -> None:
    tensors = {tensor.name: tensor for tensor in make_graph("backward", BACKWARD_CASES["everything"]).tensors}
    reordered = {name for name, tensor in tensors.items() if tensor.reordering is TensorReordering.F16x16}
    assert reordered == {"s", "ds"}
    assert tensors["ds"].scratch
    names = {
        tensor.name
        for tensor in make_graph("forward", FORWARD_CASES["everything"]).variant_pack_tensors
        if not tensor.by_value
    }
    assert names == {"q", "k", "v", "o", "s", "bias", "seq_len_q", "seq_len_kv", "dropout_seed", "dropout_offset"}


def test_mha_without_masks_has_no_gen_index_operation() -> None:
    verbs = {op.display_name() for op in make_graph("backward", {}).ops}
    assert "gen_index" not in verbs
    assert "binary_select" in verbs


@pytest.mark.parametrize(
    ("options", "code", "words"),
    [
        ({"data_type": DataType.FLOAT}, "attention-option", "data type FLOAT is neither HALF nor BFLOAT16"),
        ({"scale": "tensor"}, "attention-option", "the scale must be a number or 'none'"),
        ({"mask": True, **BIAS_OPTIONS}, "attention-option", "mask and bias exclude each other"),
        ({"dbias": True, "bias": (1, 1, 128, 128)}, "attention-option", "dbias needs a bias of dims (1, 4, 128, 128)"),
        ({"dropout": 0.1, "dropout_mask": True}, "attention-option", "exclude each other"),
        ({"layout": "sbhd"}, "attention-layout", "q has a stride of 512 over s, which is 2 times h * d"),
        ({"layout": "sbhd", "batch": 3}, "attention-layout", "which is 3 times h * d"),
        ({"seq_q": 0}, "attention-size", "seq_q is 0"),
    ],
)
def test_mha_patterns_refuse_impossible_options(options: dict[str, Any], code: str, words: str) -> None:
    with pytest.raises(GraphError) as caught:
        SmallAttention(**(BASE_OPTIONS | options))
    assert caught.value.code == code
    assert words in str(caught.value)


def test_mha_patterns_accept_interleaved_layouts() -> None:
    assert SmallAttention(**BASE_OPTIONS, layout="packed").problem.strides("k")[2] == 3 * 4 * 64
    assert SmallAttention(**(BASE_OPTIONS | {"batch": 4}), layout="sbhd").problem.strides("k")[2] == 4 * 4 * 64


def test_stored_s_and_the_backward_pass_need_a_softmax() -> None:
    with pytest.raises(GraphError, match="store_s needs softmax or dropout"):
        mha_fprop(**BASE_OPTIONS, softmax=False, store_s=True)
    with pytest.raises(GraphError, match="backward pattern needs a softmax"):
        mha_bprop(**BASE_OPTIONS, softmax=False)
    with pytest.raises(GraphError, match="a problem is given, so causal has no effect"):
        mha_fprop(TINY_PROBLEM, causal=False)
