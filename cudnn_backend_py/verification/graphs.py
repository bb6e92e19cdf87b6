"""The graphs of a verification: three hundred random graphs of all families, identical on every machine.

Each is drawn from a fixed seed. Python promises that a seed gives the same numbers of ``random()`` in every version, so
every choice is made with that alone.
"""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from ..errors import GraphError
from ..generated.enums import DataType, NormMode, PointwiseMode, ReduceTensorOp
from ..graph import Graph, GraphBuilder, Tensor, graph_to_json
from ..graph.attention import Attention, sdpa_backward, sdpa_forward
from ..graph.ir import compute_convolved_size
from ..graph.strides import channels_last

__all__ = ["FAMILIES", "VerificationGraph", "hash_verification_graphs", "make_verification_graphs"]

_T, _P, _N, _R = DataType, PointwiseMode, NormMode, ReduceTensorOp
_Choice = TypeVar("_Choice")

_HALVES = (_T.HALF, _T.BFLOAT16)
_FLOATS = (*_HALVES, *_HALVES, _T.FLOAT)
_ACTIVATIONS = (_P.RELU_FWD, _P.GELU_APPROX_TANH_FWD, _P.SIGMOID_FWD, _P.TANH_FWD, _P.SWISH_FWD, _P.IDENTITY)
_FORWARD, _DATA, _FILTER = "forward", "data", "filter"
_TRIES = 50
_FIRST_UNIFIED = (9, 14, 0)  # the form of the one operation that this version has, and later ones


@dataclass(frozen=True, slots=True)
class VerificationGraph:
    """A graph of the verification, with its name and family.

    Attributes
    ----------
    name
        Family and number, such as ``matmul 7``.
    """

    name: str
    family: str
    graph: Graph


class _RandomChoices(random.Random):
    """A random generator for the choices of one graph."""

    def choose(self, *choices: _Choice) -> _Choice:
        return choices[int(self.random() * len(choices))]

    def happens_with_probability(self, probability: float) -> bool:
        return self.random() < probability


def make_verification_graphs() -> tuple[VerificationGraph, ...]:
    """Return every graph, alternating between families, so that any first part contains all families."""
    drawn = {
        family: [_make_random_verification_graph(family, number) for number in range(count)]
        for family, (count, _) in FAMILIES.items()
    }
    longest = max(map(len, drawn.values()))
    return tuple(cases[number] for number in range(longest) for cases in drawn.values() if number < len(cases))


def hash_verification_graphs(cases: Sequence[VerificationGraph]) -> str:
    """Return the SHA-256 of the graphs; only verifications of identical graphs can be compared."""
    text = json.dumps([(case.name, graph_to_json(case.graph)) for case in cases], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def _make_random_verification_graph(family: str, number: int) -> VerificationGraph:
    name = f"{family} {number}"
    error: GraphError | None = None
    for again in range(_TRIES):
        try:
            graph = FAMILIES[family][1](_RandomChoices(f"{name} {again}"), name)
        except GraphError as refused:  # options that exclude each other; another draw does not
            error = refused
        else:
            return VerificationGraph(name, family, graph)
    assert error is not None
    raise error


def _make_random_matmul(d: _RandomChoices, name: str) -> Graph:
    kind = d.choose(*_FLOATS, *_FLOATS, _T.INT8, _T.FP8_E4M3)
    small = kind in (_T.INT8, _T.FP8_E4M3)
    g = GraphBuilder(name, io_type=kind)
    batch, m, n, k = d.choose(1, 2, 4), *(d.choose(16, 64, 128, 192, 256, 512, 1024) for _ in range(3))
    if d.happens_with_probability(0.1) and not small:
        m, n = m + 1, n - 8
    a = g.tensor(
        "a", (batch, m, k), strides=(m * k, 1, m) if d.happens_with_probability(0.25) and not small else (m * k, k, 1)
    )
    b = g.tensor(
        "b", (batch, k, n), strides=(n * k, 1, k) if d.happens_with_probability(0.5) or small else (n * k, n, 1)
    )
    compute = _T.INT32 if kind is _T.INT8 else _T.FLOAT
    written = d.choose(compute, _T.FLOAT) if small else kind
    if small or d.happens_with_probability(0.3):
        g.matmul(a, b, compute_type=compute, name="c", virtual=False, data_type=written)
    else:
        _add_epilogue(d, g, g.matmul(a, b), (1, 1, n))
    return g.graph()


def _add_epilogue(d: _RandomChoices, g: GraphBuilder, z: Tensor, bias: tuple[int, ...]) -> None:
    """Add pointwise operations after an operation: bias, maybe a residual, an activation, maybe a reduction."""
    like: dict[str, Any] = {"strides": z.strides}
    images = z.rank > 3
    if d.happens_with_probability(0.7):
        z = g.pointwise(_P.ADD, z, g.tensor("bias", bias, **_make_layout_options(bias, last=images)), **like)
    if d.happens_with_probability(0.25):
        z = g.pointwise(d.choose(_P.ADD, _P.MUL), z, g.tensor("residual", z.dims, **like), **like)
    if d.happens_with_probability(0.1):
        z = g.pointwise(d.choose(*_ACTIVATIONS), z, **like)
        to = bias if images else (*z.dims[:-1], 1)
        g.reduction(_R.ADD, z, to, name="y", virtual=False, data_type=_T.FLOAT, **_make_layout_options(to, last=images))
    else:
        g.pointwise(d.choose(*_ACTIVATIONS), z, name="y", virtual=False, **like)


def _make_layout_options(dims: tuple[int, ...], *, last: bool) -> dict[str, Any]:
    """Return the `strides` option that makes a tensor channels last, or no option for a row-major one."""
    return {"strides": channels_last(dims)} if last else {}


def _make_random_convolution(d: _RandomChoices, name: str) -> Graph:
    form = d.choose(_FORWARD, _FORWARD, _DATA, _FILTER)
    kind = d.choose(*_FLOATS, *_FLOATS, _T.INT8) if form == _FORWARD else d.choose(*_FLOATS)
    g = GraphBuilder(name, io_type=kind)
    spatial = d.choose(2, 2, 2, 3)
    groups = d.choose(1, 1, 1, 1, 4) if kind is not _T.INT8 else 1
    n, c, k = d.choose(1, 4, 8), d.choose(16, 32, 64, 128, 256), d.choose(32, 64, 128, 256)
    size = (d.choose(7, 14, 28, 56),) * spatial if spatial == 2 else (d.choose(8, 16),) * 3
    tap, stride, dilation = d.choose(1, 3, 3, 5), d.choose(1, 1, 2), d.choose(1, 1, 1, 2)
    padding = dilation * (tap // 2)
    window: dict[str, Any] = {"padding": padding, "stride": stride, "dilation": dilation}
    out = tuple(compute_convolved_size(one, tap, padding, padding, stride, dilation) for one in size)
    image, weights, response = (n, c, *size), (k, c // groups, *(tap,) * spatial), (n, k, *out)
    last = kind is _T.INT8 or d.happens_with_probability(0.85)

    def make_tensor(stem: str, dims: tuple[int, ...]) -> Tensor:
        return g.tensor(stem, dims, **_make_layout_options(dims, last=last))

    def make_result_options(dims: tuple[int, ...], **more: Any) -> dict[str, Any]:
        return _make_layout_options(dims, last=last) | more

    memory: dict[str, Any] = {"name": "y", "virtual": False}
    if form == _DATA:
        options = make_result_options(image, **memory)
        g.convolution_backward_data(
            make_tensor("dy", response), make_tensor("w", weights), groups=groups, dims=image, **window, **options
        )
    elif form == _FILTER:
        options = make_result_options(weights, **memory)
        taps = (tap,) * spatial
        g.convolution_backward_filter(
            make_tensor("x", image), make_tensor("dy", response), taps, groups=groups, **window, **options
        )
    elif kind is _T.INT8:
        options = make_result_options(response, **memory, data_type=d.choose(_T.INT32, _T.FLOAT))
        g.convolution(make_tensor("x", image), make_tensor("w", weights), compute_type=_T.INT32, **window, **options)
    elif not last or d.happens_with_probability(0.3):
        g.convolution(
            make_tensor("x", image), make_tensor("w", weights), **window, **make_result_options(response, **memory)
        )
    else:
        y = g.convolution(make_tensor("x", image), make_tensor("w", weights), **window, **make_result_options(response))
        _add_epilogue(d, g, y, (1, k, *(1,) * spatial))
    return g.graph()


def _make_random_norm(d: _RandomChoices, name: str) -> Graph:
    mode = d.choose(_N.LAYER_NORM, _N.LAYER_NORM, _N.RMS_NORM, _N.RMS_NORM, _N.BATCH_NORM, _N.INSTANCE_NORM)
    g = GraphBuilder(name, io_type=d.choose(*_FLOATS))
    rows = mode in (_N.LAYER_NORM, _N.RMS_NORM)
    n, c = (
        (d.choose(64, 512, 2048, 4096), d.choose(128, 768, 1024, 4096))
        if rows
        else (d.choose(4, 8), d.choose(32, 64, 256))
    )
    dims = (n, c, 1, 1) if rows else (n, c, *(d.choose(7, 14, 28),) * 2)
    per = (1, c, 1, 1)
    sets = (n, 1, 1, 1) if rows else per if mode is _N.BATCH_NORM else (n, c, 1, 1)

    def make_tensor(stem: str, shape: tuple[int, ...], kind: DataType | None = None) -> Tensor:
        return g.tensor(stem, shape, kind, strides=channels_last(shape))

    x, scale = make_tensor("x", dims), make_tensor("scale", per, _T.FLOAT)
    bias = None if mode is _N.RMS_NORM else make_tensor("bias", per, _T.FLOAT)
    if d.happens_with_probability(0.35):
        mean = None if mode is _N.RMS_NORM else make_tensor("mean", sets, _T.FLOAT)
        inverse = make_tensor("inv_variance", sets, _T.FLOAT)
        g.norm_backward(
            mode, make_tensor("dy", dims), x, scale, mean=mean, inv_variance=inverse, name="dx", virtual=False
        )
        return g.graph()
    training = mode is _N.BATCH_NORM or d.happens_with_probability(0.6)
    fused = d.happens_with_probability(0.15)
    options: dict[str, Any] = {} if fused else {"name": "y", "virtual": False}
    y = g.norm_forward(mode, x, scale, bias, training=training, **options).y
    if fused:
        g.pointwise(_P.RELU_FWD, y, name="y", virtual=False, strides=y.strides)
    return g.graph()


def _make_random_fusion(d: _RandomChoices, name: str) -> Graph:
    """Return a random graph of consecutive pointwise operations, maybe with a reduction at the end."""
    g = GraphBuilder(name, io_type=d.choose(*_FLOATS))
    images = d.happens_with_probability(0.5)
    dims = (
        (d.choose(4, 8), d.choose(32, 64), *(d.choose(14, 28),) * 2)
        if images
        else (d.choose(2, 4), d.choose(64, 256), 256)
    )
    strides = _make_layout_options(dims, last=images)
    z = g.tensor("x", dims, **strides)
    reduces = d.happens_with_probability(0.4)
    length = d.choose(0, 1, 2) if reduces else d.choose(1, 2, 3, 4)
    for step in range(length):
        memory: dict[str, Any] = {"name": "y", "virtual": False} if step == length - 1 and not reduces else {}
        if d.happens_with_probability(0.5):
            z = g.pointwise(d.choose(*_ACTIVATIONS, _P.ABS, _P.EXP), z, **memory, **strides)
        else:
            mode = d.choose(_P.ADD, _P.SUB, _P.MUL, _P.MAX, _P.MIN)
            z = g.pointwise(mode, z, g.tensor(f"b{step}", dims, **strides), **memory, **strides)
    if reduces:
        to = (1, dims[1], 1, 1) if images else d.choose((*dims[:2], 1), (dims[0], 1, dims[2]), (1, 1, 1))
        operator = d.choose(_R.ADD, _R.ADD, _R.MAX, _R.AMAX, _R.MIN)
        g.reduction(
            operator, z, to, name="y", virtual=False, data_type=_T.FLOAT, **_make_layout_options(to, last=images)
        )
    return g.graph()


def _make_random_attention(d: _RandomChoices, *, backward: bool) -> Attention:
    heads = d.choose(2, 4, 8)
    o: dict[str, Any] = {"batch": d.choose(1, 2, 4), "heads": heads, "data_type": d.choose(*_HALVES)}
    o |= {"kv_heads": heads if d.happens_with_probability(0.6) else d.choose(1, heads // 2)}
    o["seq_q"] = d.choose(128, 256, 512, 1000, 2048)
    o["seq_kv"] = o["seq_q"] if d.happens_with_probability(0.7) else d.choose(64, 128, 1024)
    o["head_dim"] = d.choose(64, 64, 128, 96, 32, 192)
    o["layout"] = d.choose("bshd", "bshd", "bhsd", "sbhd")
    o["stats"] = backward or d.happens_with_probability(0.4)
    if d.happens_with_probability(0.5):
        o |= {"causal": True, "alignment": d.choose("top_left", "top_left", "bottom_right")}
        if d.happens_with_probability(0.3):
            o["left_bound"] = d.choose(32, 128)
    option = d.choose("", "", "", "bias", "padding", "ragged", "alibi", "dropout")
    if option == "bias":
        o["bias"] = (1, heads, o["seq_q"], o["seq_kv"])
    elif option == "dropout":
        o["dropout"] = 0.1
    elif option:
        o[option] = True
    if not backward and not option and d.happens_with_probability(0.15):
        o |= {"seq_q": 1, "causal": False, "left_bound": None, "alignment": "top_left"}  # decoding
    if backward and not option:
        o["deterministic"] = d.happens_with_probability(0.2)
    return Attention(**o)


def _make_random_attention_forward(d: _RandomChoices, name: str) -> Graph:
    made = sdpa_forward(_make_random_attention(d, backward=False), implementation="composite", allow_hazards=True)
    return Graph(made.ops, name)


def _make_random_attention_backward(d: _RandomChoices, name: str) -> Graph:
    made = sdpa_backward(_make_random_attention(d, backward=True), implementation="composite", allow_hazards=True)
    return Graph(made.ops, name)


def _make_random_unified_attention(d: _RandomChoices, name: str) -> Graph:
    """Return a random attention graph of a single SDPA operation, with the options of its first version."""
    o: dict[str, Any] = {"batch": d.choose(1, 2), "heads": d.choose(2, 8), "data_type": d.choose(*_HALVES)}
    o |= {
        "seq_q": d.choose(128, 512, 1000),
        "head_dim": d.choose(64, 128),
        "padding": d.happens_with_probability(0.3),
        "stats": True,
    }
    made = sdpa_forward(Attention(**o), implementation="unified", version=_FIRST_UNIFIED, allow_hazards=True)
    return Graph(made.ops, name)


FAMILIES: Mapping[str, tuple[int, Callable[[_RandomChoices, str], Graph]]] = {
    "matmul": (70, _make_random_matmul),
    "convolution": (70, _make_random_convolution),
    "norm": (40, _make_random_norm),
    "fusion": (40, _make_random_fusion),
    "attention forward": (40, _make_random_attention_forward),
    "attention backward": (28, _make_random_attention_backward),
    "attention in one operation": (12, _make_random_unified_attention),
}
"""How many graphs a family has, and what draws one."""
