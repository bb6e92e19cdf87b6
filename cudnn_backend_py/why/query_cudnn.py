"""cuDNN's verdict on a torch call: judge the graph that torch would build, and list known issues and plan cost."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ..diagnose.judges import Judge, Query
from ..errors import CudnnBackendError, GraphError
from ..generated.enums import DataType
from ..graph.attention import Attention, sdpa_backward, sdpa_forward
from ..graph.attention.problem import TensorLayout, make_dense_problem
from ..graph.ir import Graph, packed_strides
from ..system.version import VersionTuple
from ..target import Profile
from .calls import Machine, TensorFacts, TorchCall

__all__ = ["CallVerdict", "build_graphs", "query_cudnn"]

_DATA_TYPES = {
    "float16": DataType.HALF,
    "bfloat16": DataType.BFLOAT16,
    "float32": DataType.FLOAT,
    "float64": DataType.DOUBLE,
    "float8_e4m3fn": DataType.FP8_E4M3,
    "float8_e5m2": DataType.FP8_E5M2,
}


@dataclass(frozen=True, slots=True)
class CallVerdict:
    """cuDNN's verdict on an attention call: forward and, in training, backward.

    ``outcome`` is that of a verdict, or "no graph" where the call is no problem cuDNN has a graph for; ``why`` and
    ``cure`` are its cause and remedy, ``faults`` the known issues the graph runs into, ``plan_s`` the seconds that
    asking and building the plans took here, None where they were not built.
    """

    outcome: str
    why: str = ""
    cure: str = ""
    faults: tuple[str, ...] = ()
    plan_s: float | None = None
    target: str = ""
    cudnn: str = ""


def _normalize_strides(facts: TensorFacts) -> tuple[int, ...]:
    """Return a dense tensor's strides, with regular values for dims of size 1."""
    strides, run = list(facts.strides), 1
    for place in sorted(range(4), key=lambda one: (facts.strides[one], -one)):
        if facts.dims[place] == 1:
            strides[place] = max(strides[place], run)
        run = max(run, strides[place] * facts.dims[place])
    return tuple(strides)


def _make_strides_like(q: TensorFacts, dims: tuple[int, ...]) -> tuple[int, ...]:
    """Return strides of a dense tensor with dims in the order of q's, as torch makes the output."""
    strides, run = [0] * 4, 1
    given = _normalize_strides(q)
    for place in sorted(range(4), key=lambda one: (given[one], -one)):
        strides[place], run = run, run * dims[place]
    return tuple(strides)


def _make_attention_problem(call: TorchCall) -> Attention:
    """Return the attention problem that a call computes.

    Raises
    ------
    GraphError
        ``no-attention-graph``, or what :class:`~cudnn_backend_py.graph.attention.Attention` refuses.
    """
    if call.q.dtype not in _DATA_TYPES:
        raise GraphError(
            f"cuDNN's attention does not support the type {call.q.dtype}",
            code="no-attention-graph",
            fix="use float16 or bfloat16",
        )
    kind = _DATA_TYPES[call.q.dtype]
    options: dict[str, Any] = {"causal": call.causal, "scale": call.scale, "stats": call.training}
    if call.q.form != "dense":
        return Attention(
            batch=len(call.q.lengths),
            heads=call.q.dims[1],
            kv_heads=call.k.dims[1],
            v_heads=call.v.dims[1],
            seq_q=max(call.q.lengths, default=1),
            seq_kv=max(call.k.lengths or call.q.lengths, default=1),
            head_dim=call.q.dims[-1],
            head_dim_v=call.v.dims[-1],
            data_type=kind,
            ragged=True,
            **options,
        )
    if len(call.q.dims) != 4:
        raise GraphError(f"q has {len(call.q.dims)} dims, 4 are needed", code="no-attention-graph")
    tensors = {name: TensorLayout(x.dims, _normalize_strides(x), kind) for name, x in call.tensors.items()}
    out = (*call.q.dims[:3], call.v.dims[3])
    tensors["o"] = TensorLayout(out, _make_strides_like(call.q, out), kind)
    if call.mask is not None:
        batch, heads, *_ = (1,) * (4 - len(call.mask.dims)) + call.mask.dims
        bias = (batch, heads, call.q.dims[2], call.k.dims[2])
        tensors["bias"] = TensorLayout(bias, packed_strides(bias), kind)
    return make_dense_problem(tensors, dropout=call.dropout, **options)


def build_graphs(call: TorchCall, version: VersionTuple | None = None, sm: int | None = None) -> tuple[Graph, ...]:
    """Return the graph of a call's forward pass and, in training, its backward pass.

    Raises
    ------
    GraphError
        Where cuDNN has no such attention.
    """
    problem = _make_attention_problem(call)
    made = [sdpa_forward(problem, version=version, sm=sm, allow_hazards=True)]
    if call.training:
        made.append(sdpa_backward(problem, version=version, sm=sm, allow_hazards=True))
    return tuple(made)


def query_cudnn(
    call: TorchCall, machine: Machine, target: Profile | str, judge: Judge, *, build: bool = True
) -> CallVerdict:
    """Return cuDNN's verdicts on the graphs of a call.

    Parameters
    ----------
    machine
        Its cuDNN and architecture decide the form of the graph.
    target
        A described GPU, its name, or "gpu".
    judge
        The process that asks.
    build
        Whether plans are built, too: what a first call costs the host, and what fails only then.
    """
    name = target if isinstance(target, str) else target.name
    try:
        graphs = build_graphs(call, machine.cudnn, machine.sm)
    except GraphError as error:
        return CallVerdict("no graph", error.headline, error.sections.get("fix", ""), target=name)
    started = time.perf_counter()
    try:
        verdicts = [judge.run_query(Query(graph, target, build=build or None)) for graph in graphs]
    except CudnnBackendError as error:
        return CallVerdict("could not be judged", error.headline, error.sections.get("fix", ""), target=name)
    took = time.perf_counter() - started
    worst = max(verdicts, key=lambda verdict: verdict.exit_code)
    faults = tuple(dict.fromkeys(fault for verdict in verdicts for fault in verdict.hazards))
    cause = worst.cause
    return CallVerdict(
        str(worst.outcome.value),
        ""
        if cause is None or worst.supported
        else _prepend_graph_name_to_headline(worst.graph, verdicts, cause.headline),
        "" if cause is None or worst.supported else cause.advice,
        faults,
        took if build and worst.supported else None,
        worst.target_title,
        worst.cudnn,
    )


def _prepend_graph_name_to_headline(graph: str, verdicts: Sequence[object], headline: str) -> str:
    return headline if len(verdicts) == 1 else f"{graph}: {headline}"
