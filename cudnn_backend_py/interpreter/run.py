"""The state of one run of a graph: the value of every tensor, also of ragged ones."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..errors import GraphError
from ..generated.enums import DataType, DescriptorType
from ..graph.data_types import BOOLEAN_TYPES
from ..graph.formats import encode, is_integer, round_to_data_type
from ..graph.ir import Graph, Op, Tensor

__all__ = ["Handler", "Numbers", "RandomMaskFunction", "Run", "find_memory_positions", "require_operation_class"]

Numbers = NDArray[Any]
"""float64, or int64 and bool where the tensor's data type says so."""

RandomMaskFunction = Callable[[int, int, tuple[int, ...], float], ArrayLike]
Handler = Callable[["Run", Any], None]

_OPERATIONS_WITH_DROPOUT = (DescriptorType.OPERATION_SDPA_FWD, DescriptorType.OPERATION_SDPA_BWD)


class Run:
    """The values of all tensors while a graph runs.

    Tensors are kept with their dims, ragged ones too; only what goes in and comes out is a ragged buffer.

    Attributes
    ----------
    row_sums
        By uid, of the probabilities of attention and of products of them: the row sums, by which kernels divide only
        after the product with V. What they round to a short type before it are the exponentials.
    tile
        How many keys kernels take at a time, from the first on: exponentials are over the largest score up to the end
        of their tile. Measured on an H200 with cuDNN 9.19 and 9.28: 128 by engines 2 and 9, 64 or 32 by 1 and 8; of 45
        random graphs 96 to 100 % of O are equal bit by bit.
    """

    tile = 128

    def __init__(
        self,
        graph: Graph,
        inputs: Mapping[str | int, ArrayLike],
        operations: Mapping[DescriptorType, Handler],
        *,
        rounding: bool,
        rng: RandomMaskFunction,
    ) -> None:
        self.graph = graph
        self.rounding = rounding
        self.rng = rng
        self._operations = operations
        self.row_sums: dict[int, NDArray[np.float64]] = {}
        self._values: dict[int, Numbers] = {}
        self._accesses = list(_iterate_tensors(graph))
        self._given = self._check_inputs(inputs)

    @cached_property
    def _intermediate_uids(self) -> set[int]:
        """Uids of tensors that one operation writes and another operation reads."""
        read, written = ({item.uid for _, item, writes in self._accesses if writes is what} for what in (False, True))
        return read & written

    @cached_property
    def _smallest_token_strides(self) -> dict[int, int]:
        """The smallest token stride among tensors that share ragged offsets, by the offsets' uid."""
        found: dict[int, int] = {}
        for item in self.graph.tensors:
            if item.ragged_offset is not None:
                uid, stride = item.ragged_offset.uid, _get_token_stride(item)
                found[uid] = min(found.get(uid, stride), stride)
        return found

    # operations

    def run_operation(self, op: Op) -> None:
        """Run one operation and store its results."""
        handler = self._operations.get(op.kind)
        if handler is None:
            known = ", ".join(kind.name for kind in self._operations)
            raise GraphError(
                f"{op.kind.name} cannot be interpreted",
                code="interpret-operation",
                where=f"operation {op.name!r} of graph {self.graph.name!r}",
                fix=f"operations that can be interpreted: {known}",
            )
        try:
            handler(self, op)
        except GraphError:
            raise
        except (ArithmeticError, LookupError, TypeError, ValueError) as error:
            # an operation may have any tensors and numbers: that is for cuDNN to judge
            said = str(error) if isinstance(error, ValueError) else f"{type(error).__name__} {error}".rstrip()
            raise GraphError(
                f"the tensors and numbers of {op.name!r} do not fit each other: {said}",
                code="interpret-shape",
                where=str(op),
            ) from error

    def run_subgraph(self, graph: Graph, source: int, target: int, values: Numbers) -> Numbers:
        """Run a sub-graph with tensor `source` set to `values`; return the value of tensor `target`."""
        self._values[source] = values
        for op in graph.ops:
            self.run_operation(op)
        return self._values[target]

    # tensors

    def read_value(self, tensor: Tensor) -> Numbers:
        """Return the value of a tensor with its dims: float64, int64 or bool."""
        if tensor.uid not in self._values:
            self._values[tensor.uid] = self._read_input(tensor)
        return self._values[tensor.uid]

    def read_floats(self, tensor: Tensor) -> NDArray[np.float64]:
        """Return the value of a tensor as float64."""
        return self.read_value(tensor).astype(np.float64, copy=False)

    def read_scalar(self, tensor: Tensor) -> Any:
        """Return the number in a tensor of one element."""
        return self.read_value(tensor).flat[0].item()

    def write_value(self, tensor: Tensor, values: ArrayLike) -> None:
        """Store an operation's result with the tensor's dims, rounded to the tensor's type if this run rounds."""
        given = np.asarray(values)
        if given.shape != tensor.dims:
            raise GraphError(
                f"tensor {tensor.name!r} has dims {tensor.dims}, but the operation that writes it computes "
                f"{given.shape}",
                code="interpret-shape",
                where=f"graph {self.graph.name!r}",
            )
        if tensor.uid in self.row_sums and tensor.virtual and tensor.data_type is not DataType.FLOAT:
            stored = self.round_numerators(given, self.row_sums[tensor.uid], tensor.data_type)
        else:
            stored = self._convert_to_type(given, tensor.data_type)
        if tensor.ragged_offset is not None and not tensor.virtual:
            stored = np.where(self._find_elements_within_ragged_lengths(tensor), stored, stored.dtype.type(0))
        self._values[tensor.uid] = stored

    def round_to_type(self, values: NDArray[np.float64], data_type: DataType) -> NDArray[np.float64]:
        """Return values rounded to `data_type` if this run rounds, else unchanged."""
        return round_to_data_type(values, data_type) if self.rounding else values

    def compute_softmax_numerator_factors(
        self, probabilities: NDArray[np.float64], sums: NDArray[np.float64]
    ) -> NDArray[np.float64]:
        """Return the factors that turn probabilities into exp(score - running row maximum), which kernels round."""
        keys = probabilities.shape[-1]
        seen = np.fmax.accumulate(np.fmax.reduceat(probabilities, np.arange(0, keys, self.tile), axis=-1), axis=-1)
        grown = np.repeat(seen / seen[..., -1:], self.tile, axis=-1)[..., :keys]
        return np.asarray(sums / np.where(grown > np.finfo(np.float32).tiny, grown, 1.0))

    def round_numerators(
        self, values: NDArray[np.float64], sums: NDArray[np.float64], data_type: DataType
    ) -> NDArray[np.float64]:
        """Round `values` * `sums` to `data_type` and divide by `sums` (0 as 1) if this run rounds."""
        sums = np.where(sums > 0, sums, 1.0)
        return round_to_data_type(values * sums, data_type) / sums if self.rounding else values

    def adjust_result(self, op: Op, values: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return an operation's result before its rounding to the data type; subclasses may override it."""
        return values

    def read_non_tensor_input(self, name: str) -> NDArray[np.float64] | None:
        """Return an input by name that is no tensor of the graph, such as a dropout mask; None if not given."""
        value = self._given.get(name)
        return None if value is None else np.asarray(value, dtype=np.float64)

    def read_given_output_value(self, tensor: Tensor) -> Numbers | None:
        """Return the caller's value for a tensor that an operation writes, such as a random mask; None if not given."""
        return self._read_input(tensor) if tensor.uid in self._given else None

    def copy_without_rounding(self) -> Run:
        """Return a copy of this run that no longer rounds."""
        other = copy.copy(self)
        other.rounding, other._values = False, dict(self._values)
        return other

    def get_result(self, tensor: Tensor) -> Numbers:
        """Return a tensor's value for the caller: the array, or the buffer of a ragged tensor in memory."""
        values = self.read_value(tensor)
        if tensor.ragged_offset is None or tensor.virtual:
            return values
        places, inside = self._find_ragged_positions(tensor), self._find_elements_within_ragged_lengths(tensor)
        buffer = np.full(int(self._read_offsets(tensor)[-1]), np.nan)
        inside = inside & (places < buffer.size)
        buffer[places[inside]] = values[inside]
        return buffer

    def _convert_to_type(self, values: Numbers, data_type: DataType) -> Numbers:
        if data_type in BOOLEAN_TYPES:
            return np.not_equal(values, 0)
        if is_integer(data_type):
            if values.dtype.kind in "biu":
                return values.astype(np.int64)
            if self.rounding:
                return encode(values, data_type).astype(np.int64)
            return encode(values, DataType.INT64)
        exact = values.astype(np.float64)
        return round_to_data_type(exact, data_type) if self.rounding else exact

    # inputs

    def _check_inputs(self, inputs: Mapping[str | int, ArrayLike]) -> dict[str | int, ArrayLike]:
        """Return the given inputs by uid; inputs that are not tensors keep their name."""
        uids: dict[str | int, int] = {}
        for tensor in self.graph.tensors:
            uids[tensor.name] = uids[tensor.uid] = tensor.uid
        makers = {tensor.uid: op for op, tensor, written in self._accesses if written and tensor.virtual}
        extras = {f"{op.name}.dropout_mask" for op in self.graph.ops if op.kind in _OPERATIONS_WITH_DROPOUT}
        given: dict[str | int, ArrayLike] = {}
        for key, value in inputs.items():
            if key not in uids and key not in extras:
                names = ", ".join(tensor.name for tensor in self.graph.variant_pack_tensors)
                raise GraphError(
                    f"graph {self.graph.name!r} has no tensor {key!r}",
                    code="interpret-input",
                    fix=f"its tensors in memory are {names}",
                )
            maker = makers.get(uids.get(key, -1))
            if maker is not None and maker.kind is not DescriptorType.OPERATION_RNG:
                raise GraphError(
                    f"virtual tensor {key!r} is given, but operation {maker.name!r} writes it",
                    code="interpret-input",
                    where=f"graph {self.graph.name!r}",
                    fix="leave it out; keep= returns its value",
                )
            given[uids.get(key, key)] = value
        return given

    def _read_input(self, tensor: Tensor) -> Numbers:
        if tensor.uid in self._given:
            value = self._given[tensor.uid]
        elif tensor.value is not None:
            value = tensor.value
        else:
            reader = next(op.name for op, touched, _ in self._accesses if touched.uid == tensor.uid)
            raise GraphError(
                f"tensor {tensor.name!r} is needed and not given",
                code="interpret-input",
                where=f"{reader!r} of graph {self.graph.name!r} needs it",
                fix=f"give inputs[{tensor.name!r}], {_describe_needed_array(tensor)}",
            )
        array = np.asarray(value)
        if tensor.ragged_offset is not None:
            return self._unpack_ragged(tensor, array)
        if array.shape != tensor.dims and not (array.size == math.prod(tensor.dims) == 1):
            raise _make_shape_error(tensor, array)
        return self._convert_to_type(array.reshape(tensor.dims), tensor.data_type)

    # ragged memory

    def _unpack_ragged(self, tensor: Tensor, buffer: Numbers) -> Numbers:
        if buffer.ndim != 1:
            raise _make_shape_error(tensor, buffer)
        places = self._find_ragged_positions(tensor)
        inside = self._find_elements_within_ragged_lengths(tensor) & (places < buffer.size)
        values = np.zeros(tensor.dims, buffer.dtype)
        values[inside] = buffer[places[inside]]
        return self._convert_to_type(values, tensor.data_type)

    def _read_offsets(self, tensor: Tensor) -> NDArray[np.int64]:
        """Return the offset of each batch entry, and the end of the last one, in elements of this tensor.

        An intermediate tensor in memory may have a larger token stride than the tensor with which it shares offsets
        (gradients per query head with the offsets of grouped heads): its offsets are larger by that ratio.
        """
        assert tensor.ragged_offset is not None
        uid = tensor.ragged_offset.uid
        offsets = self.read_value(tensor.ragged_offset).reshape(-1).astype(np.int64)
        if len(offsets) != tensor.dims[0] + 1:
            raise GraphError(
                f"{tensor.ragged_offset.name!r} has {len(offsets)} offsets, {tensor.dims[0] + 1} are needed for the "
                f"{tensor.dims[0]} entries of tensor {tensor.name!r}",
                code="interpret-shape",
                where=f"{tensor.ragged_offset.name!r} has dims {tensor.ragged_offset.dims}",
            )
        if tensor.uid in self._intermediate_uids:
            offsets = offsets * (_get_token_stride(tensor) // self._smallest_token_strides[uid])
        return offsets

    def _find_ragged_positions(self, tensor: Tensor) -> NDArray[np.int64]:
        """Return the position of each element of a ragged tensor in its buffer."""
        starts = self._read_offsets(tensor)[:-1].reshape(-1, *(1,) * (tensor.rank - 1))
        return starts + find_memory_positions(tensor.dims[1:], tensor.strides[1:])

    def _find_elements_within_ragged_lengths(self, tensor: Tensor) -> NDArray[np.bool_]:
        """Return which elements of a ragged tensor belong to a token within its entry's length."""
        tokens = np.diff(self._read_offsets(tensor)) // _get_token_stride(tensor)
        axis = _find_token_axis(tensor)
        shape = [1] * tensor.rank
        shape[axis] = tensor.dims[axis]
        index = np.arange(tensor.dims[axis]).reshape(shape)
        return np.broadcast_to(index < tokens.reshape(-1, *(1,) * (tensor.rank - 1)), tensor.dims)


def require_operation_class(op: Op, kind: type[Any]) -> None:
    """Raise if an operation with its own class is given as a generic Operation."""
    if not isinstance(op, kind):
        raise GraphError(
            f"{op.kind.name} as a generic operation cannot be interpreted",
            code="interpret-operation",
            where=f"operation {op.name!r}",
            fix=f"write it as {kind.__name__}",
        )


def find_memory_positions(dims: tuple[int, ...], strides: tuple[int, ...]) -> NDArray[np.int64]:
    """Return the memory position of every element of a tensor with these dims and strides."""
    places = np.zeros(dims, np.int64)
    for axis, (dim, stride) in enumerate(zip(dims, strides, strict=True)):
        shape = [1] * len(dims)
        shape[axis] = dim
        places += (np.arange(dim) * stride).reshape(shape)
    return places


def _find_token_axis(tensor: Tensor) -> int:
    """Return the axis of s: the second to last, or the last one if the tensor is transposed."""
    last = tensor.rank - 1
    transposed = tensor.dims[last] > 1 and tensor.strides[last] > tensor.strides[last - 1]
    return last if transposed or tensor.rank == 1 else last - 1


def _get_token_stride(tensor: Tensor) -> int:
    return max(1, tensor.strides[_find_token_axis(tensor)])


def _iterate_tensors(graph: Graph) -> Iterator[tuple[Op, Tensor, bool]]:
    """Yield (operation, tensor, whether written) of a graph, also for ragged offsets and sub-graphs."""
    for op in graph.ops:
        for port, tensor in op.ports():
            yield op, tensor, op.is_output(port)
            if tensor.ragged_offset is not None:
                yield op, tensor.ragged_offset, False
        for inner in op.subgraphs():
            yield from _iterate_tensors(inner)


def _describe_needed_array(tensor: Tensor) -> str:
    if tensor.ragged_offset is None:
        return f"an array of dims {tensor.dims}"
    return f"a flat buffer of elements, for its ragged offset {tensor.ragged_offset.name!r}"


def _make_shape_error(tensor: Tensor, array: Numbers) -> GraphError:
    swapped = (*array.shape[:-2], *array.shape[:-3:-1])
    return GraphError(
        f"input {tensor.name!r} has shape {array.shape}, {_describe_needed_array(tensor)} is needed",
        code="interpret-shape",
        where=str(tensor),
        fix=f"its last two dims are exchanged: give {tensor.name}.swapaxes(-1, -2)" if swapped == tensor.dims else None,
    )
