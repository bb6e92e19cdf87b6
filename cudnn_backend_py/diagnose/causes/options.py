"""Options of a refused attention problem, and graphs without some of them.

The problem is read from the graph by its data flow, and built again as a graph of the same form. Only where cuDNN
refuses that graph for the very reasons it gave for the given one are its answers taken for answers about it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

from ...errors import CudnnBackendError
from ...frozen import FrozenValue
from ...generated.enums import DataType
from ...graph import Graph
from ...graph.attention import AttentionUse, sdpa_backward, sdpa_forward
from ...graph.attention.problem import Attention
from ...graph.attention.recognize import read_attention
from ...graph.data_types import HALF_TYPES, get_data_type_word
from ...graph.strides import make_strides_in_order
from ...system.version import VersionTuple

__all__ = ["AttentionOption", "AttentionOptions", "read_attention_options"]

_LAYOUT_NAMES = ("bshd", "bhsd", "sbhd")
_PLAIN_HEAD_DIM, _SEQUENCE_MULTIPLE = 64, 128  # a head dim every kernel has, and what a plain sequence is a multiple of


class AttentionOption(FrozenValue):
    """An option of attention: one difference between a problem and plain attention.

    Parameters
    ----------
    name
        What users call it, with its value: "dropout", "a head dim of 256".
    plain
        The fields of the problem without it.
    needs
        The options it cannot be without.
    pattern
        Regular expression of what cuDNN's reasons call it.
    instead
        What to do without it; where it is empty, something else is computed.
    sizes, size
        Fields whose common value is its size, where it has one.
    """

    name: str
    plain: Mapping[str, Any]
    needs: tuple[str, ...] = ()
    pattern: str = ""
    instead: str = ""
    sizes: tuple[str, ...] = ()
    size: int = 0


class AttentionOptions:
    """The options of an attention problem; builds graphs with subsets of them.

    Parameters
    ----------
    use
        The problem, its direction and the form of its graph.
    version
        The cuDNN version the graphs are for.
    """

    def __init__(self, use: AttentionUse, version: VersionTuple) -> None:
        self._use = use
        self._version = None if use.form == "expanded" else version
        self._problem = _replace_strides_with_layout_names(use.problem)
        self.found = dict(_list_options(self._problem, backward=use.backward))

    @property
    def needs(self) -> dict[str, tuple[str, ...]]:
        """For each option, the other options that it requires."""
        return {key: option.needs for key, option in self.found.items()}

    def add_needed_options(self, kept: Iterable[str]) -> set[str]:
        """Return these options and all others that they require."""
        return {need for one in kept for need in (one, *self.add_needed_options(self.found[one].needs))}

    def graph(self, kept: Collection[str], **fields: Any) -> Graph | None:
        """Return the graph with only these options and with these field values; None if it cannot be built."""
        plain: dict[str, Any] = {}
        for key, option in self.found.items():
            plain |= {} if key in kept else option.plain
        try:
            problem = _adapt_bias_and_strides_to_new_sizes(
                dataclasses.replace(self._problem, **{**plain, **fields}), self._problem
            )
            make = sdpa_backward if self._use.backward else sdpa_forward
            form = "unified" if self._use.form == "unified" else "composite"
            return make(problem, implementation=form, version=self._version, allow_hazards=True)  # type: ignore[arg-type]
        except (CudnnBackendError, AssertionError):
            return None


def read_attention_options(graph: Graph, version: VersionTuple) -> AttentionOptions | None:
    """Return the options of the attention problem that a graph solves; None if it is not attention."""
    use = read_attention(graph)
    return None if use is None else AttentionOptions(use, version)


def _replace_strides_with_layout_names(problem: Attention) -> Attention:
    """Replace strides by layout names where possible, as names remain valid when sizes change."""
    given = problem.layout
    if isinstance(given, str):
        return problem
    found: dict[str, Any] = {}
    for name, strides in given.items():
        named: Iterator[Any] = (one for one in _LAYOUT_NAMES if _make_strides(problem, one, name) == strides)
        found[name] = strides if name == "stats" else next(named, strides)
    return dataclasses.replace(problem, layout=found)


def _make_strides(problem: Attention, layout: Any, name: str) -> tuple[int, ...]:
    return dataclasses.replace(problem, layout=layout).strides(name)


def _adapt_bias_and_strides_to_new_sizes(problem: Attention, old: Attention) -> Attention:
    """Adapt the bias dims and strides of a problem to its sizes, where they differ from the sizes of `old`."""
    if problem.bias is not None and old.bias is not None:
        whole = (problem.batch, problem.heads, problem.seq_q, problem.seq_kv)
        before = (old.batch, old.heads, old.seq_q, old.seq_kv)
        sizes = zip(problem.bias, whole, before, strict=True)
        bias: Any = tuple(new if dim == was != 1 else dim for dim, new, was in sizes)
        problem = dataclasses.replace(problem, bias=bias)
    if isinstance(problem.layout, str):
        return problem
    layout: dict[str, Any] = {}
    for name, strides in problem.layout.items():
        dims = problem.dims(name)
        changed = not isinstance(strides, str) and dims != old.dims(name)
        layout[name] = make_strides_in_order(dims, _order_dims_by_stride(strides)) if changed else strides
    return dataclasses.replace(problem, layout=layout)


def _order_dims_by_stride(strides: Any) -> list[int]:
    return sorted(range(len(strides)), key=lambda axis: (strides[axis], -axis))


# what there is

#: By key: a regular expression of what cuDNN's reasons call it, and what to do instead where that computes the same.
_KNOWN_OPTIONS: dict[str, tuple[str, str]] = {
    "data type": (r"(?i)fp8|FP16/BF16|data ?type|block.?scale", "float16 or bfloat16 instead"),
    "head dim": (r"(?i)embedding|head.?dim|hidden dim|d_qk|d_v\b|\bD=", "a smaller head dim"),
    "sequence": (r"(?i)sequence|s_q|s_kv|decode|seqlen", "sequences padded to a multiple of 128"),
    "heads": (r"(?i)heads|gqa|mqa|grouped", "heads of K and V repeated in memory"),
    "layout": (r"(?i)layout|stride|contiguous|packed|interleaved", "copies in the order b, s, h, d"),
    "right bound": (r"(?i)causal|right bound|mask", ""),
    "left bound": (r"(?i)sliding|window|left bound|mask", ""),
    "alignment": (r"(?i)bottom.?right|mask", ""),
    "block mask": (r"(?i)block mask", ""),
    "padding": (r"(?i)padding|seq_?len|actual length", ""),
    "ragged": (r"(?i)ragged|\bthd\b", ""),
    "ragged stats": (r"(?i)ragged.*stats|stats.*ragged", ""),
    "totals": (r"(?i)max_total|total", "without these bounds"),
    "paged": (r"(?i)page", ""),
    "modifier": (r"(?i)activation|soft.?cap|tanh|modifier|flex", ""),
    "alibi": (r"(?i)alibi", ""),
    "bias": (r"(?i)bias", ""),
    "bias dims": (r"(?i)bias|broadcast|reduction pattern", "a bias repeated to s_q and s_kv"),
    "dropout": (r"(?i)dropout|\brng\b|philox", ""),
    "seed type": (r"(?i)seed", "seed and offset as int64"),
    "sink": (r"(?i)sink", ""),
    "stats": (r"(?i)\bstats\b|statistic|softmax output", "without the output stats"),
    "max": (r"(?i)\bmax\b|statistic|softmax output", "without the output max"),
    "sum_exp": (r"(?i)\bsum_?exp\b|statistic|softmax output", "without the output sum_exp"),
    "rng dump": (r"(?i)dump", "without the mask written"),
    "dbias": (r"(?i)dbias|bias gradient|gradient of bias|non-atomic|reduction pattern", ""),
    "dsink": (r"(?i)dsink|sink grad", ""),
    "deterministic": (r"(?i)determin|non-atomic", "dQ through dq_accum"),
}

_KeyedOptions = Iterator[tuple[str, AttentionOption]]


def _make_keyed_option(key: str, name: str, plain: Mapping[str, Any], needs: tuple[str, ...] = (), **more: Any) -> Any:
    pattern, instead = _KNOWN_OPTIONS[key]
    return key, AttentionOption(name, plain, needs, pattern, instead, **more)


def _list_options(p: Attention, *, backward: bool) -> _KeyedOptions:
    """Yield the options of a problem by key, in an order where needed options come first."""
    yield from _list_data_type_options(p)
    yield from _list_size_options(p)
    yield from _list_mask_options(p)
    yield from _list_length_options(p)
    yield from _list_input_tensor_options(p)
    yield from _list_gradient_options(p) if backward else _list_output_options(p)


def _list_data_type_options(p: Attention) -> _KeyedOptions:
    if p.data_type not in HALF_TYPES:
        wide = "" if p.output_type in (None, p.data_type) else f" with a {_format_data_type(p.output_type)} output"
        plain = {"data_type": DataType.HALF, "output_type": DataType.HALF, "mx": False}
        yield _make_keyed_option(
            "data type", f"{'block-scaled ' if p.mx else ''}{_format_data_type(p.data_type)}{wide}", plain
        )


def _format_data_type(kind: DataType | None) -> str:
    return "" if kind is None else get_data_type_word(kind)


def _list_size_options(p: Attention) -> _KeyedOptions:
    if (p.head_dim, p.head_dim_v) != (_PLAIN_HEAD_DIM, _PLAIN_HEAD_DIM):
        same = p.head_dim == p.head_dim_v
        name = f"a head dim of {p.head_dim}" + ("" if same else f" and one of V of {p.head_dim_v}")
        plain = {"head_dim": _PLAIN_HEAD_DIM, "head_dim_v": _PLAIN_HEAD_DIM}
        yield _make_keyed_option("head dim", name, plain, sizes=tuple(plain) if same else (), size=p.head_dim)
    if p.seq_q % _SEQUENCE_MULTIPLE or p.seq_kv % _SEQUENCE_MULTIPLE:
        rounded = {
            name: -(-getattr(p, name) // _SEQUENCE_MULTIPLE) * _SEQUENCE_MULTIPLE for name in ("seq_q", "seq_kv")
        }
        yield _make_keyed_option("sequence", f"sequences of {p.seq_q} (queries) and {p.seq_kv} (keys)", rounded)
    if (p.kv_heads, p.v_heads) != (p.heads, p.heads):
        heads = f"{p.kv_heads}" if p.kv_heads == p.v_heads else f"{p.kv_heads} (K) and {p.v_heads} (V)"
        plain = {"kv_heads": p.heads, "v_heads": p.heads}
        yield _make_keyed_option("heads", f"{heads} heads of K and V for {p.heads} of Q", plain)
    by_name: Mapping[str, Any] = {"": p.layout} if isinstance(p.layout, str) else p.layout
    given: set[Any] = {one for name, one in by_name.items() if name != "stats"}
    if given != {"bshd"}:
        named = len(given) == 1 and given <= {*_LAYOUT_NAMES, "packed"}
        name = f"the layout {next(iter(given))}" if named else "the strides of Q, K, V and O"
        yield _make_keyed_option("layout", name, {"layout": "bshd"})


def _list_mask_options(p: Attention) -> _KeyedOptions:
    bounds = []
    if p.right_bound is not None:
        bounds.append("right bound")
        name = f"a right bound of {p.right_bound}" if p.right_bound else "the causal mask"
        yield _make_keyed_option("right bound", name, {"right_bound": None, "causal": False})
    if p.left_bound is not None:
        bounds.append("left bound")
        yield _make_keyed_option("left bound", "the left bound (sliding window)", {"left_bound": None})
    if p.alignment == "bottom_right":
        plain = {"alignment": "top_left"}
        yield _make_keyed_option("alignment", "the mask aligned at the bottom right", plain, tuple(bounds[:1]))
    if p.block_mask:
        yield _make_keyed_option("block mask", "the block mask", {"block_mask": False})


def _list_length_options(p: Attention) -> _KeyedOptions:
    padded = ("padding",) if p.padding else ()
    if p.padding:
        yield _make_keyed_option("padding", "sequence lengths (padding)", {"padding": False})
    totals = {"max_total_seq_q": None, "max_total_seq_kv": None}
    if p.ragged:
        yield _make_keyed_option("ragged", "ragged offsets", {"ragged": False, "ragged_stats": False, **totals}, padded)
    if p.ragged_stats:
        yield _make_keyed_option("ragged stats", "ragged statistics", {"ragged_stats": False, **totals}, ("ragged",))
    if p.max_total_seq_q is not None or p.max_total_seq_kv is not None:
        needs = ("ragged stats",) if p.ragged_stats else ("ragged",)
        yield _make_keyed_option("totals", "bounds of the total lengths", totals, needs)
    if p.page_size is not None:
        plain = {"page_size": None, "pages_k": None, "pages_v": None}
        yield _make_keyed_option("paged", f"paged K and V (pages of {p.page_size})", plain, padded)


def _list_input_tensor_options(p: Attention) -> _KeyedOptions:
    if p.score_modifier is not None:
        yield _make_keyed_option("modifier", "the score modifier (soft cap)", {"score_modifier": None})
    if p.alibi:
        yield _make_keyed_option("alibi", "ALiBi", {"alibi": False})
    if p.bias is not None:
        yield _make_keyed_option("bias", "the bias", {"bias": None, "dbias": False})
        whole = (*p.bias[:2], p.seq_q, p.seq_kv)
        if p.bias != whole:
            yield _make_keyed_option("bias dims", f"a bias of dims {list(p.bias)}", {"bias": whole}, ("bias",))
    if p.dropout or p.dropout_mask:
        plain = {"dropout": 0.0, "dropout_mask": False, "rng_dump": False}
        yield _make_keyed_option("dropout", "a given dropout mask" if p.dropout_mask else "dropout", plain)
    if p.dropout and p.seed_type is not DataType.INT64:
        yield _make_keyed_option(
            "seed type", f"a seed of type {_format_data_type(p.seed_type)}", {"seed_type": DataType.INT64}, ("dropout",)
        )
    if p.sink:
        yield _make_keyed_option("sink", "the sink", {"sink": False, "dsink": False})


def _list_output_options(p: Attention) -> _KeyedOptions:
    outputs = {"stats": "the statistics (stats)", "max": "the row maximum", "sum_exp": "the sum of exponentials"}
    for field, name in outputs.items():
        if getattr(p, field):
            yield _make_keyed_option(field, name, {field: False})
    if p.rng_dump:
        yield _make_keyed_option("rng dump", "the dropout mask written", {"rng_dump": False}, ("dropout",))


def _list_gradient_options(p: Attention) -> _KeyedOptions:
    if p.dbias:
        yield _make_keyed_option("dbias", "the gradient of the bias (dbias)", {"dbias": False}, ("bias",))
    if p.dsink:
        yield _make_keyed_option("dsink", "the gradient of the sink (dsink)", {"dsink": False}, ("sink",))
    if p.deterministic:
        name = "a deterministic dQ (without the float32 sum dq_accum)"
        yield _make_keyed_option("deterministic", name, {"deterministic": False})
