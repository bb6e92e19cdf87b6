"""Input data for a graph: each tensor is filled according to its role and laid out in memory.

``uniform``
    Floats between -1 and 1.
``integers``
    Whole numbers from -3 to 3 in every type: products and sums of them are exact.
``hostile``
    What kernels get wrong: scores of attention far below -88, rows of zeros, denormals, numbers near the largest of
    the type, infinities and NaN, sequences without a token.

In all of them lengths, offsets, page tables, indices and seeds mean something, and variances are positive.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..errors import UsageError
from ..generated.enums import (
    DataType,
    DescriptorType,
    MoeGroupedMatmulMode,
    ResampleMode,
    SignalMode,
    TensorReordering,
)
from ..graph.attention.recognize import read_attention
from ..graph.data_types import BOOLEAN_TYPES, ELEMENT_BITS
from ..graph.formats import (
    decode,
    encode,
    from_f8_128x4_order,
    get_largest_finite,
    get_storage_type,
    is_integer,
    make_strided_view,
    to_f8_128x4_order,
)
from ..graph.ir import Graph, Op, Operation, Tensor
from ..system.memory import explain_insufficient_memory
from ..system.nearest import suggest_most_similar_name
from . import interpret
from .forward_pass import compute_o_and_stats_of_backward_graph
from .npz import ArrayHeader, read_arrays, read_headers

__all__ = [
    "DATA_KINDS",
    "check_given_inputs",
    "check_npz_arrays_fit_graph",
    "convert_numbers_to_memory_image",
    "has_unknown_element_order",
    "list_input_tensors",
    "load_npz_arrays",
    "make_inputs",
    "make_memory_images",
    "make_nonrandom_values",
    "read_numbers_from_memory_image",
]

DATA_KINDS = ("uniform", "integers", "hostile")

Numbers = NDArray[Any]
RandomGenerator = np.random.Generator
ValueMaker = Callable[
    [Op, str, Tensor, RandomGenerator, str], Numbers
]  # operation, its port, the tensor, random numbers, kind


# memory


def convert_numbers_to_memory_image(tensor: Tensor, numbers: ArrayLike) -> NDArray[Any]:
    """Return the memory image of a tensor with these numbers; gaps are zero.

    Parameters
    ----------
    numbers
        With the tensor's dims, whatever its strides; of a tensor with a ragged offset its flat buffer.

    Raises
    ------
    UsageError
        ``trial-data``: another shape, or a vectorized type.
    """
    given = np.asarray(numbers)
    if tensor.vector_count > 1:
        raise UsageError(
            f"{tensor.name!r} is {tensor.type_text} in vectors of {tensor.vector_count}, and data can only "
            "be made for tensors that are not vectorized",
            code="trial-data",
        )
    codes = encode(given, tensor.data_type)
    if tensor.ragged_offset is not None and codes.ndim == 1:
        image = codes
    elif codes.shape != tensor.dims:
        raise UsageError(f"{tensor.name!r} has dims {tensor.dims}, data of {codes.shape} are given", code="trial-data")
    elif tensor.reordering is TensorReordering.F8_128x4:
        image = to_f8_128x4_order(codes.swapaxes(-1, -2) if _is_transposed(tensor) else codes)
    else:
        image = np.zeros(tensor.span_elements, codes.dtype)
        make_strided_view(image, tensor.dims, tensor.strides)[...] = codes
    return _pack_subbyte_elements(np.ascontiguousarray(image), ELEMENT_BITS[tensor.data_type])


def read_numbers_from_memory_image(tensor: Tensor, image: NDArray[Any]) -> Numbers:
    """Return the numbers in a tensor's memory image: the inverse of :func:`convert_numbers_to_memory_image`."""
    flat = _unpack_subbyte_elements(image, tensor)
    if tensor.ragged_offset is not None:
        codes = flat
    elif tensor.reordering is TensorReordering.F8_128x4:
        dims = (*tensor.dims[:-2], tensor.dims[-1], tensor.dims[-2]) if _is_transposed(tensor) else tensor.dims
        codes = from_f8_128x4_order(flat[: math.prod(dims)], dims)
        codes = codes.swapaxes(-1, -2) if _is_transposed(tensor) else codes
    else:
        codes = make_strided_view(flat, tensor.dims, tensor.strides)
    if is_integer(tensor.data_type):
        return codes.astype(np.int64)
    return decode(codes, tensor.data_type)


def _is_transposed(tensor: Tensor) -> bool:
    return tensor.strides[-2] == 1 < tensor.strides[-1]


def has_unknown_element_order(tensor: Tensor) -> bool:
    """Return whether a tensor's memory order is unknown; test data must then have equal elements."""
    return tensor.reordering not in (TensorReordering.NONE, TensorReordering.F8_128x4)


def _pack_subbyte_elements(codes: NDArray[Any], bits: int) -> NDArray[Any]:
    """Pack elements smaller than a byte into bytes, the first one in the lowest bits."""
    if bits >= 8:
        return codes
    if bits == 1:
        return np.packbits(codes.astype(np.uint8), bitorder="little")
    low = codes.astype(np.uint8) & 0xF
    low = np.append(low, np.zeros(low.size % 2, np.uint8))
    return np.asarray(low[0::2] | (low[1::2] << 4), np.uint8)


def _unpack_subbyte_elements(image: NDArray[Any], tensor: Tensor) -> NDArray[Any]:
    bits = ELEMENT_BITS[tensor.data_type]
    if bits >= 8:
        return np.ascontiguousarray(image).reshape(-1)
    if bits == 1:
        return np.unpackbits(image, bitorder="little")[: tensor.span_elements]
    codes = np.stack([image & 0xF, image >> 4], axis=-1).reshape(-1)[: tensor.span_elements]
    if tensor.data_type is DataType.INT4:
        return (codes.astype(np.int8) << 4 >> 4).astype(np.int8)
    return codes


def list_input_tensors(graph: Graph) -> list[Tensor]:
    """Return the tensors that a caller must give: inputs in memory, and by-value tensors without a value."""
    written = {tensor.uid for tensor in graph.outputs}
    return [
        tensor
        for tensor in graph.variant_pack_tensors
        if tensor.uid not in written and not tensor.scratch and not (tensor.by_value and tensor.value is not None)
    ]


def make_memory_images(graph: Graph, inputs: Mapping[str | int, Numbers]) -> dict[int, Any]:
    """Return the inputs of :func:`make_inputs` as memory images, by uid; by-value tensors as numbers."""
    found: dict[int, Any] = {}
    for tensor in list_input_tensors(graph):
        numbers = inputs[tensor.uid]
        if tensor.by_value:
            found[tensor.uid] = numbers.reshape(-1)[0].item()
            continue
        image = convert_numbers_to_memory_image(tensor, numbers)
        if tensor.ragged_offset is not None and image.size < tensor.span_elements:
            image = np.concatenate([image, np.zeros(tensor.span_elements - image.size, image.dtype)])
        found[tensor.uid] = image
    return found


def load_npz_arrays(path: str | Path, graph: Graph) -> dict[str, Numbers]:
    """Return the arrays of an ``.npz`` file by tensor name, with the dims of the graph's tensors.

    Raises
    ------
    UsageError
        ``trial-data``: no such file, one that is not whole, something else than numbers in it, other names or dims than
        the graph has, or more bytes than memory is available.
    """
    return read_arrays(
        _require_existing_path(path),
        code="trial-data",
        check=lambda headers: _check_npz_headers_fit_graph(graph, headers),
    )


def check_npz_arrays_fit_graph(path: str | Path, graph: Graph) -> None:
    """Check an ``.npz`` file for a graph like :func:`load_npz_arrays`, without reading the arrays."""
    _check_npz_headers_fit_graph(graph, read_headers(_require_existing_path(path), code="trial-data"))


def _check_npz_headers_fit_graph(graph: Graph, headers: Mapping[str, ArrayHeader]) -> None:
    if wrong := [f"{name!r} holds {one.dtype}" for name, one in headers.items() if one.dtype.kind not in "biuf"]:
        raise UsageError(
            f"the file has arrays that are not numbers: {', '.join(wrong)}; floats, integers or booleans are needed",
            code="trial-data",
        )
    check_given_inputs(graph, {name: one.shape for name, one in headers.items()})


def _require_existing_path(path: str | Path) -> str | Path:
    if not os.path.exists(path):
        kinds = f"{', '.join(DATA_KINDS)}, or of an .npz file{suggest_most_similar_name(str(path), DATA_KINDS)}"
        raise UsageError(f"{path} is not a file; data must be {kinds}", code="trial-data")
    return path


# what is made up


def make_inputs(
    graph: Graph, kind: str = "uniform", seed: int = 0, given: Mapping[str, ArrayLike] | None = None
) -> dict[str | int, Numbers]:
    """Return input numbers for a graph by uid, rounded to their types, for interpreter and cuDNN.

    Parameters
    ----------
    kind
        One of :data:`DATA_KINDS`.
    seed
        Whatever is drawn is drawn from it; the same seed gives the same numbers.
    given
        Numbers by the names of tensors, which are taken instead.

    Raises
    ------
    UsageError
        ``trial-data``: another kind, or given numbers that fit no tensor; ``trial-memory``: they do not fit in memory.
    """
    if kind not in DATA_KINDS:
        raise UsageError(f"{kind!r} is not a kind of data; use one of {', '.join(DATA_KINDS)}", code="trial-data")
    arrays: dict[str, Numbers] = {name: np.asarray(numbers) for name, numbers in (given or {}).items()}
    check_given_inputs(graph, {name: numbers.shape for name, numbers in arrays.items()})
    tensors = {tensor.name: tensor for tensor in list_input_tensors(graph)}
    needed = sum(max(8 * math.prod(tensor.dims), tensor.span_bytes) for tensor in tensors.values())
    if problem := explain_insufficient_memory(needed, "data for the graph"):
        raise UsageError(problem, code="trial-memory", fix="run it with smaller dims: --dims")
    maker = _InputMaker(graph, kind, seed)
    found: dict[str | int, Numbers] = {}
    for name, tensor in tensors.items():
        numbers = arrays[name] if name in arrays else maker.make_values(tensor)
        if numbers.size == 1 and (tensor.by_value or tensor.ragged_offset is None):
            numbers = np.broadcast_to(numbers, tensor.dims)
        found[tensor.uid] = _round_to_type(tensor, numbers)
    found |= _compute_pool_outputs_for_pool_gradients(graph, found)
    for uid, numbers in compute_o_and_stats_of_backward_graph(graph, found).items():
        tensor = graph.tensor(uid)
        if tensor.name not in arrays:
            found[uid] = _round_to_type(tensor, numbers)
    return found


def check_given_inputs(graph: Graph, shapes: Mapping[str, tuple[int, ...]]) -> None:
    """Check that given data, by tensor name and shape, fit the graph's inputs.

    Raises
    ------
    UsageError
        ``trial-data``.
    """
    tensors = {tensor.name: tensor for tensor in list_input_tensors(graph)}
    if unknown := sorted(shapes.keys() - tensors.keys()):
        raise UsageError(
            f"data are given for {', '.join(unknown)}, the graph reads {', '.join(tensors)}", code="trial-data"
        )
    for name, shape in shapes.items():
        tensor = tensors[name]
        whole = tensor.by_value or tensor.ragged_offset is None
        if whole and math.prod(shape) != 1 and shape != tensor.dims:
            raise UsageError(
                f"tensor {name!r} has dims {tensor.dims}, but data of shape {shape} is given", code="trial-data"
            )


def _compute_pool_outputs_for_pool_gradients(
    graph: Graph, held: Mapping[str | int, Numbers]
) -> dict[str | int, Numbers]:
    """Compute the pooling results that pooling gradients read together with the image."""
    found: dict[str | int, Numbers] = {}
    for op in graph.ops:
        x, y = (op.inputs().get(port) for port in ("x", "y"))
        if (
            op.kind is not DescriptorType.OPERATION_RESAMPLE_BWD
            or x is None
            or y is None
            or not {x.uid, y.uid} <= held.keys()
        ):
            continue
        forward = Operation(
            DescriptorType.OPERATION_RESAMPLE_FWD, "pool", {"x": x, "y": y, "resample": op.parameters()["resample"]}
        )
        found[y.uid] = _round_to_type(y, interpret(Graph((forward,)), {x.uid: held[x.uid]})[y.name])
    return found


def _round_to_type(tensor: Tensor, numbers: ArrayLike) -> Numbers:
    """Return numbers rounded to the type of a tensor."""
    codes = encode(numbers, tensor.data_type)
    return codes.astype(np.int64) if is_integer(tensor.data_type) else decode(codes, tensor.data_type)


def _iterate_operation_tensors(graph: Graph) -> Iterator[tuple[Op, str, Tensor]]:
    """Yield each operation with each of its tensors and the tensor's attribute, also in sub-graphs."""
    for op in graph.ops:
        for port, tensor in op.ports():
            yield op, port.rpartition(".")[2].partition("[")[0], tensor
        for inner in op.subgraphs():
            yield from _iterate_operation_tensors(inner)


def make_nonrandom_values(graph: Graph) -> dict[int, Any]:
    """Return valid values for inputs that must not be random: ragged offsets, attention's lengths and tables."""
    known: dict[int, Any] = {}
    for tensor in graph.variant_pack_tensors:
        offset = tensor.ragged_offset
        if offset is not None and offset.uid not in known:
            starts = np.arange(offset.span_elements) * (tensor.dims[2] * tensor.strides[2])
            known[offset.uid] = starts.astype(get_storage_type(offset.data_type))
    use = read_attention(graph)
    if use is None:
        return known
    problem = use.problem
    by_name: dict[str, float] = {
        "seq_len_q": problem.seq_q,
        "seq_len_kv": problem.seq_kv,
        "dropout_seed": 1234,
        "dropout_offset": 1,
        "block_mask": 255,
        "alibi_slopes": 1 / problem.seq_kv,
        "stats": math.log(problem.seq_kv) + 0.5,
    }
    for tensor in graph.variant_pack_tensors:
        if tensor.name in ("page_table_k", "page_table_v"):
            known[tensor.uid] = np.arange(tensor.span_elements).astype(get_storage_type(tensor.data_type))
        elif tensor.name in by_name:
            known.setdefault(tensor.uid, by_name[tensor.name])
    return known


class _InputMaker:
    """Makes values for a graph's inputs, by the operations that read them; for attention also by their names."""

    def __init__(self, graph: Graph, kind: str, seed: int) -> None:
        self.kind, self.seed = kind, seed
        self._roles: dict[int, tuple[Op, str]] = {}
        for op, port, tensor in _iterate_operation_tensors(graph):
            if port in _VALUE_MAKERS and not op.is_output(port):
                self._roles.setdefault(tensor.uid, (op, port))
        self._known = {
            uid: read_numbers_from_memory_image(graph.tensor(uid), value)
            if isinstance(value, np.ndarray)
            else np.asarray(value)
            for uid, value in make_nonrandom_values(graph).items()
            if uid not in self._roles
        }
        self._by_zero = {
            tensor.uid
            for op, port, tensor in _iterate_operation_tensors(graph)
            if _may_be_multiplied_by_zeros_in_kernel(op, port)
        }
        use = read_attention(graph)
        self._signs = {} if use is None else {"q": 1.0, "k": -1.0}
        self.use = use
        if use is not None:
            self._draw_sequence_lengths_and_offsets(
                graph, use.problem.batch, {"q": use.problem.seq_q, "kv": use.problem.seq_kv}
            )

    def _draw_sequence_lengths_and_offsets(self, graph: Graph, batch: int, longest: Mapping[str, int]) -> None:
        """Draw the sequence lengths of attention and the ragged offsets; the first sequence has full length."""
        tensors = {tensor.name: tensor for tensor in graph.tensors}
        for number, (side, most) in enumerate(longest.items()):
            if f"seq_len_{side}" not in tensors:
                continue
            lengths = _draw_sequence_lengths(np.random.default_rng([self.seed, number]), (batch,), most, self.kind)
            held = tensors[f"seq_len_{side}"]
            self._known[held.uid] = lengths.reshape(held.dims)
            for name in _TENSORS_BY_LENGTH[side]:
                tensor = tensors.get(name)
                if tensor is not None and tensor.ragged_offset is not None:
                    starts = np.concatenate([[0], np.cumsum(lengths)]) * tensor.strides[_find_token_axis(tensor)]
                    self._known[tensor.ragged_offset.uid] = starts.reshape(tensor.ragged_offset.dims)

    def make_values(self, tensor: Tensor) -> Numbers:
        """Return numbers for a tensor."""
        random = np.random.default_rng([self.seed, tensor.uid % (1 << 32), *tensor.name.encode()])
        if tensor.uid in self._known:
            known = self._known[tensor.uid]
            if tensor.ragged_offset is not None and known.size == 1:
                known = np.full(int(self._known[tensor.ragged_offset.uid].max()), known.item())
            return known
        if has_unknown_element_order(tensor):
            return np.full(tensor.dims, 1.0 / tensor.dims[-1])
        if tensor.uid in self._roles:
            op, port = self._roles[tensor.uid]
            return np.asarray(_VALUE_MAKERS[port](op, port, tensor, random, self.kind))
        dims: tuple[int, ...] = tensor.dims
        if tensor.ragged_offset is not None:
            dims = (int(self._known[tensor.ragged_offset.uid].max()),)
        if self.use is not None and tensor.name.startswith(("scale", "descale")) and math.prod(tensor.dims) == 1:
            return 2.0 ** random.integers(-1, 2, tensor.dims)  # attention with a factor below 0 is NaN in cuDNN
        kind, sign = self.kind, self._signs.get(tensor.name, 0.0)
        if self.use is not None and kind == "hostile" and not sign and (self.seed % 2 or self.use.backward):
            kind = "uniform"  # in gradients, and with every other seed, the scores of attention alone are hostile
        values = _make_random_values(tensor, dims, kind, random, sign)
        return np.nan_to_num(values, nan=1.0, posinf=1.0, neginf=-1.0) if tensor.uid in self._by_zero else values


def _may_be_multiplied_by_zeros_in_kernel(op: Op, port: str) -> bool:
    """Return whether a tensor is multiplied by zeros inside a kernel, where NaN and infinity may or may not remain.

    The filter, and in its gradient dY, meet the padding of the image, neighbours the weights of interpolation, and what
    was normalized gradients that a ReLU clipped.
    """
    if op.kind in (DescriptorType.OPERATION_CONVOLUTION_FORWARD, DescriptorType.OPERATION_CONVOLUTION_BACKWARD_DATA):
        return port == "w"
    if op.kind is DescriptorType.OPERATION_CONVOLUTION_BACKWARD_FILTER:
        return port == "dy"
    if op.kind is DescriptorType.OPERATION_BN_BWD_WEIGHTS:
        return port == "x"
    return (
        op.kind is DescriptorType.OPERATION_RESAMPLE_FWD
        and op.parameters()["resample"].fields["mode"] is ResampleMode.BILINEAR
    )


_TENSORS_BY_LENGTH = {"q": ("q", "o", "do", "dq", "stats", "max", "sum_exp"), "kv": ("k", "v", "dk", "dv")}


def _find_token_axis(tensor: Tensor) -> int:
    """Return the axis of tokens: the second to last, or the last if s and d are swapped in memory."""
    return -1 if tensor.dims[-1] > 1 and tensor.strides[-1] > tensor.strides[-2] else -2


def _draw_sequence_lengths(random: RandomGenerator, dims: tuple[int, ...], most: int, kind: str) -> Numbers:
    """Draw lengths from 1 to `most`; the first is `most`, the last is 0 if `kind` is ``hostile``."""
    found = random.integers(1, most + 1, dims)
    found.flat[0] = most
    if kind == "hostile" and found.size > 1:
        found.flat[-1] = 0
    return found


# data


def _make_random_values(
    tensor: Tensor, dims: tuple[int, ...], kind: str, random: RandomGenerator, sign: float
) -> Numbers:
    data_type = tensor.data_type
    if data_type in BOOLEAN_TYPES:
        return random.integers(0, 2, dims)
    if data_type is DataType.FP8_E8M0:
        return 2.0 ** random.integers(-1, 2, dims)
    if is_integer(data_type):
        low, high = (0, 4) if data_type in (DataType.UINT8, DataType.UINT32, DataType.UINT4) else (-3, 4)
        values: Numbers = random.integers(low, high, dims)
        if kind == "hostile" and ELEMENT_BITS[data_type] <= 8:
            values = np.where(random.random(dims) < 0.1, int(get_largest_finite(data_type)) * np.sign(values), values)
        return values
    if kind == "integers":
        return random.integers(-3, 4, dims).astype(np.float64)
    values = random.uniform(-1, 1, dims)
    return (
        _add_extreme_and_nonfinite_rows(values, tensor, random, sign)
        if kind == "hostile" and values.size > 1
        else values
    )


def _add_extreme_and_nonfinite_rows(values: Numbers, tensor: Tensor, random: RandomGenerator, sign: float) -> Numbers:
    """Return the numbers with some rows replaced by difficult ones: large, zero, denormal, infinite or NaN.

    In three of four heads of each, so that in 9 of 16 every score is far below -88.

    Rows are along the last axis. Of nine rows four stay as they are; the others are large, zero, denormal, near the
    largest number, and two of them hold an infinity or a NaN.
    """
    if sign:
        far = sign * (4 + 12 * np.abs(values))  # d products of at least 16, all negative
        if values.ndim < 2:
            return far
        slices = random.random((*values.shape[:2], *[1] * (values.ndim - 2))) < 0.75
        return np.where(slices, far, values)
    whole = values.reshape(-1, values.shape[-1])
    rows = whole.shape[0]
    pick = random.integers(0, 9, rows) if rows > 1 else np.array([random.integers(0, 9)])
    data_type = tensor.data_type
    top = min(get_largest_finite(data_type), 1e30)
    tiny = 1e-7 if data_type is DataType.HALF else 1e-39 if top > 1e20 else 0.0
    factors = {4: 100.0, 5: 0.0, 6: tiny, 7: top * 0.9}
    for number, factor in factors.items():
        whole[pick == number] *= factor
    special = np.flatnonzero(pick == 8)
    for row in special[:2]:  # more of them would leave nothing of what is summed over the batch
        whole[row, random.integers(0, whole.shape[1])] = random.choice([np.inf, -np.inf, np.nan])
    return whole.reshape(values.shape)


# roles by port


def _make_random_positive_numbers(op: Op, port: str, tensor: Tensor, random: RandomGenerator, kind: str) -> Numbers:
    return random.uniform(0.5, 1.5, tensor.dims)


def _make_random_numbers_near_zero(op: Op, port: str, tensor: Tensor, random: RandomGenerator, kind: str) -> Numbers:
    return random.uniform(-0.1, 0.1, tensor.dims)


def _make_constant_value_maker(value: float) -> ValueMaker:
    return lambda op, port, tensor, random, kind: np.full(tensor.dims, value)


def _make_random_length_tensor(op: Op, port: str, tensor: Tensor, random: RandomGenerator, kind: str) -> Numbers:
    return _draw_sequence_lengths(random, tensor.dims, _get_size_limited_by_length(op, port), kind)


def _get_size_limited_by_length(op: Op, port: str) -> int:
    """Return the size of the axis that a length tensor limits."""
    fields = dict(op.ports())
    if port in _OVERRIDDEN_AXES:
        name, axis = _OVERRIDDEN_AXES[port]
        return fields[name].dims[axis]
    if port == "sequence":
        y, d = fields["y"].dims, fields["container"].dims[3]
        return y[3] if y[2] == d != y[3] else y[2]
    side = "k" if port.endswith("kv") else "q"
    if side not in fields:  # a mask or a softmax of scores
        return fields["x"].dims[-1 if side == "k" else -2]
    pages = fields.get("page_table_k") if side == "k" else None
    return fields[side].dims[2] * (1 if pages is None else pages.dims[2])


_OVERRIDDEN_AXES = {"m_override": ("c", -2), "n_override": ("c", -1), "k_override": ("a", -1)}


def _make_random_page_numbers(op: Op, port: str, tensor: Tensor, random: RandomGenerator, kind: str) -> Numbers:
    """Draw page numbers in random order; some repeat if the table has more entries than there are pages."""
    fields = dict(op.ports())
    container = fields.get("container") or fields[port[-1]]
    return np.resize(random.permutation(container.dims[0]), tensor.dims)


def _make_random_expert_token_offsets(op: Op, port: str, tensor: Tensor, random: RandomGenerator, kind: str) -> Numbers:
    fields = dict(op.ports())
    rows = fields["token_index"].dims[1] if "token_index" in fields else fields["token"].dims[1]
    found = np.sort(random.integers(0, rows + 1, math.prod(tensor.dims)))
    found[0] = 0
    return found.reshape(tensor.dims)


def _make_random_token_index(op: Op, port: str, tensor: Tensor, random: RandomGenerator, kind: str) -> Numbers:
    assert isinstance(op, Operation)
    count = math.prod(tensor.dims)
    if op.fields["mode"] is MoeGroupedMatmulMode.SCATTER:
        return np.asarray(_make_scatter_target_rows(op, count) // op.fields.get("top_k", 1)).reshape(tensor.dims)
    return random.integers(0, op.fields["token"].dims[1], tensor.dims)


def _make_random_token_ks(op: Op, port: str, tensor: Tensor, random: RandomGenerator, kind: str) -> Numbers:
    assert isinstance(op, Operation)
    return np.asarray(_make_scatter_target_rows(op, math.prod(tensor.dims)) % op.fields.get("top_k", 1)).reshape(
        tensor.dims
    )


def _make_scatter_target_rows(op: Operation, count: int) -> NDArray[np.int64]:
    """Return the target rows of a scatter, each of them once."""
    return np.random.default_rng(count).permutation(count)


def _make_random_pool_indices(op: Op, port: str, tensor: Tensor, random: RandomGenerator, kind: str) -> Numbers:
    """Draw for each window of a max pool the number of a tap inside the image."""
    assert isinstance(op, Operation)
    facts, image = op.fields["resample"].fields, op.fields["dx"].dims[2:]
    index: Numbers = np.zeros(tensor.dims, np.int64)
    sides = zip(image, *(facts[name] for name in ("window_dims", "strides", "pre_paddings")), strict=True)
    for axis, (size, *rest) in enumerate(sides):
        window, stride, before = (int(_fraction_to_float(item)) for item in rest)
        starts = np.arange(tensor.dims[2 + axis]) * stride - before
        low, high = np.maximum(0, -starts), np.minimum(window, size - starts)
        shape = [1] * len(tensor.dims)
        shape[2 + axis] = len(starts)
        low, high = low.reshape(shape), high.reshape(shape)
        index = index * window + low + np.floor(random.random(tensor.dims) * (high - low)).astype(np.int64)
    return index


def _fraction_to_float(value: Any) -> float:
    return value[0] / value[1] if isinstance(value, tuple) else float(value)


def _make_signal_flag(op: Op, port: str, tensor: Tensor, random: RandomGenerator, kind: str) -> Numbers:
    assert isinstance(op, Operation)
    waits = op.fields["mode"] is SignalMode.WAIT
    return np.full(tensor.dims, op.fields["value"] if waits else 0)


def _make_random_sums_of_squares(op: Op, port: str, tensor: Tensor, random: RandomGenerator, kind: str) -> Numbers:
    assert isinstance(op, Operation)
    count = op.fields.get("accum_count")
    return random.uniform(0.5, 1.5, tensor.dims) * float(getattr(count, "value", None) or 1.0) + 4.0


def _make_diagonal_bound(op: Op, port: str, tensor: Tensor, random: RandomGenerator, kind: str) -> Numbers:
    return np.full(tensor.dims, max(1, dict(op.ports())["x"].dims[-1] // 4) if "left" in tensor.name else 0)


def _make_random_rope_angles(op: Op, port: str, tensor: Tensor, random: RandomGenerator, kind: str) -> Numbers:
    return random.uniform(-math.pi, math.pi, tensor.dims)


def _make_random_scales(op: Op, port: str, tensor: Tensor, random: RandomGenerator, kind: str) -> Numbers:
    """Draw scale factors that are powers of two, so that scaling is exact."""
    return 2.0 ** random.integers(-1, 2, tensor.dims)


_VALUE_MAKERS: dict[str, ValueMaker] = {
    "inv_variance": _make_random_positive_numbers,
    "invstd": _make_random_positive_numbers,
    "input_running_var": _make_random_positive_numbers,
    "prev_running_var": _make_random_positive_numbers,
    "mean": _make_random_numbers_near_zero,
    "epsilon": _make_constant_value_maker(1e-5),
    "exp_avg_factor": _make_constant_value_maker(0.1),
    "exp_average_factor": _make_constant_value_maker(0.1),
    "accum_count": _make_constant_value_maker(1024),
    "y_sq_sum": _make_random_sums_of_squares,
    "seq_len_q": _make_random_length_tensor,
    "seq_len_kv": _make_random_length_tensor,
    "sequence": _make_random_length_tensor,
    "m_override": _make_random_length_tensor,
    "n_override": _make_random_length_tensor,
    "k_override": _make_random_length_tensor,
    "page_table": _make_random_page_numbers,
    "page_table_k": _make_random_page_numbers,
    "page_table_v": _make_random_page_numbers,
    "first_token_offset": _make_random_expert_token_offsets,
    "token_index": _make_random_token_index,
    "token_ks": _make_random_token_ks,
    "idx": _make_random_pool_indices,
    "flag": _make_signal_flag,
    "seed": _make_constant_value_maker(1234),
    "offset": _make_constant_value_maker(1),
    "dropout_seed": _make_constant_value_maker(1234),
    "dropout_offset": _make_constant_value_maker(1),
    "shift_right_bound": _make_diagonal_bound,
    "left_bound": _make_diagonal_bound,
    "freqs": _make_random_rope_angles,
    "descale_q": _make_random_scales,
    "descale_k": _make_random_scales,
    "descale_v": _make_random_scales,
    "descale_s": _make_random_scales,
    "scale_s": _make_random_scales,
    "scale_o": _make_random_scales,
}
