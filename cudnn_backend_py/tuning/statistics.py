"""What timing and comparing engine configs comes down to: statistics, choice, agreement, inputs, and a table of it.

All of it is about plain data and graphs; it needs no GPU and no cuDNN.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from ..errors import CudnnBackendError, UsageError
from ..generated.enums import DataType
from ..graph import Graph, Tensor
from ..graph.formats import decode, encode, storage_type
from ..graph.ir import ELEMENT_BITS

if TYPE_CHECKING:
    from rich.table import Table

__all__ = [
    "L2",
    "MIN_ROUNDS",
    "ROW_FACTOR",
    "TOLERANCES",
    "Budget",
    "Difference",
    "Timing",
    "choose",
    "compare",
    "evidence_table",
    "has_storage",
    "hopeless",
    "limit_of",
    "made_up_inputs",
]

L2 = Literal["cold", "warm"]

# Relative Frobenius norm of a difference that still counts as rounding; integers have to be equal. float32 results
# may come from 16-bit products.
TOLERANCES: dict[DataType, float] = {
    DataType.DOUBLE: 1e-6,
    DataType.FLOAT: 5e-3,
    DataType.HALF: 5e-3,
    DataType.BFLOAT16: 2e-2,
    DataType.FP8_E4M3: 0.06,
    DataType.FP8_E5M2: 0.11,
    DataType.FP8_E8M0: 0.5,
    DataType.FP4_E2M1: 0.2,
}
ROW_FACTOR = 4  # a row may differ by that many times the tolerance
NOISE = 0.01  # a gain of less than this share is none
MIN_ROUNDS = 5  # fewer samples decide nothing


# Statistics and choice


@dataclass(frozen=True, slots=True)
class Timing:
    """GPU times in microseconds: median, lower and upper quartile, and of how many."""

    median_us: float
    low_us: float
    high_us: float
    samples: int

    @classmethod
    def of(cls, times_us: list[float]) -> Timing:
        """Return the statistics of one time or more."""
        low, median, high = (float(value) for value in np.percentile(times_us, (25, 50, 75)))
        return cls(median, low, high, len(times_us))

    @property
    def spread_us(self) -> float:
        """Half the distance of the quartiles."""
        return (self.high_us - self.low_us) / 2

    def beats(self, other: Timing) -> bool:
        """Return whether it is faster by more than both spreads together, and by more than :data:`NOISE`."""
        noise = max(self.spread_us + other.spread_us, NOISE * other.median_us)
        return other.median_us - self.median_us > noise


Timings = Mapping[str, Mapping[L2, Timing]]


def choose(timings: Timings, first: str, by: L2 = "cold") -> str:
    """Return the tag of the fastest candidate that beats `first`, or `first`.

    A candidate is taken only if it beats `first` beyond the spread in `by`, is not beaten by it in the other state of
    the L2 cache, and both were timed :data:`MIN_ROUNDS` times or more.
    """
    other: L2 = "warm" if by == "cold" else "cold"
    mark = timings[first]
    for tag in sorted(timings, key=lambda tag: timings[tag][by].median_us):
        mine = timings[tag]
        enough = min(mine[by].samples, mark[by].samples) >= MIN_ROUNDS
        if enough and mine[by].beats(mark[by]) and not mark[other].beats(mine[other]):
            return tag
    return first


def hopeless(timings: Timings, first: str, factor: float = 1.5) -> set[str]:
    """Return the candidates that are not worth more rounds: slower than the best by `factor`, cold and warm."""
    states: tuple[L2, L2] = ("cold", "warm")
    best = {state: min(timing[state].median_us for timing in timings.values()) for state in states}
    return {
        tag
        for tag, timing in timings.items()
        if tag != first and all(timing[state].low_us > factor * best[state] for state in best)
    }


class Budget:
    """Seconds that may be spent."""

    def __init__(self, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self.seconds = seconds
        self._clock = clock
        self._start = clock()

    @property
    def spent(self) -> float:
        """Seconds since the start."""
        return self._clock() - self._start

    def allows(self, seconds: float, share: float = 1.0) -> bool:
        """Return whether something that takes so long ends within this share of the budget."""
        return self.spent + seconds <= self.seconds * share


# Agreement


@dataclass(frozen=True, slots=True)
class Difference:
    """How two results differ.

    Parameters
    ----------
    relative
        Frobenius norm of the difference over that of the first.
    worst_row
        Largest norm of the difference in a row, over that of the row, or the root mean square norm of all rows where
        that is larger: a wrong row in a large tensor shows here.
    patterns
        Elements that are infinite or no number in one and not, or otherwise, in the other.
    """

    relative: float
    worst_row: float
    patterns: int

    def why(self, limit: float) -> str | None:
        """Return what is beyond the limit, None if nothing is."""
        if self.patterns:
            return f"{self.patterns} elements are infinite or NaN in one result only"
        if self.relative > limit:
            return f"the difference is {self.relative:.2e} of the result, {limit:.2e} is allowed"
        if self.worst_row > ROW_FACTOR * limit:
            return f"a row differs by {self.worst_row:.2e} of its size, {ROW_FACTOR * limit:.2e} is allowed"
        return None


_CHUNK = 1 << 22  # elements compared at once


def compare(first: NDArray[Any], other: NDArray[Any], data_type: DataType) -> Difference:
    """Compare two results as they lie in memory.

    Parameters
    ----------
    first, other
        Elements of :func:`~cudnn_backend_py.graph.formats.storage_type`, or bytes of a type that has none; rows are
        along the last dim, or the last two if that is 1.
    data_type
        Type of the elements.
    """
    width = max(1, math.prod(first.shape[-1:] if first.shape[-1:] != (1,) else first.shape[-2:]))
    rows, others = (np.ascontiguousarray(array).reshape(-1, width) for array in (first, other))
    step = max(1, _CHUNK // width)
    patterns = 0
    sizes: list[NDArray[np.float64]] = []
    errors: list[NDArray[np.float64]] = []
    for start in range(0, len(rows), step):
        one, two = (_numbers(array[start : start + step], data_type) for array in (rows, others))
        finite = np.isfinite(one) & np.isfinite(two)
        same = (one == two) | (np.isnan(one) & np.isnan(two))
        patterns += int(np.count_nonzero(~finite & ~same))
        one, two = np.where(finite, one, 0.0), np.where(finite, two, 0.0)
        sizes.append(np.square(one).sum(1))
        errors.append(np.square(one - two).sum(1))
    size, error = np.concatenate(sizes), np.concatenate(errors)
    floor = float(size.mean())
    return Difference(
        _ratio(float(error.sum()), float(size.sum())),
        _worst(error, np.maximum(size, floor)),
        patterns,
    )


def _worst(error: NDArray[np.float64], size: NDArray[np.float64]) -> float:
    if not size.any():
        return math.inf if error.any() else 0.0
    return math.sqrt(float((error / size).max()))


def _ratio(error: float, size: float) -> float:
    return 0.0 if error == 0 else math.inf if size == 0 else math.sqrt(error / size)


def has_storage(data_type: DataType) -> bool:
    """Return whether one element is one NumPy element: packed, vectorized and complex types are compared as bytes."""
    try:
        return storage_type(data_type).itemsize * 8 == ELEMENT_BITS[data_type]
    except CudnnBackendError:
        return False


def _numbers(array: NDArray[Any], data_type: DataType) -> NDArray[np.float64]:
    if data_type is DataType.BFLOAT16:
        return (array.astype(np.uint32) << 16).view(np.float32).astype(np.float64)
    return decode(array, data_type) if has_storage(data_type) else array.astype(np.float64)


def limit_of(tensor: Tensor, tolerance: float | Mapping[str, float] | None) -> float:
    """Return the tolerance of a tensor: the one given, for all or by its name, or that of its data type."""
    if isinstance(tolerance, Mapping):
        tolerance = tolerance.get(tensor.name)
    return TOLERANCES.get(tensor.data_type, 0.0) if tolerance is None else tolerance


# Inputs


def made_up_inputs(graph: Graph, seed: int = 0, *, given: Collection[str | int] = ()) -> dict[int, Any]:
    """Return inputs for a graph by uid, without those given: memory as an array, or a number for a by-value tensor.

    Floats are normally distributed, single ones (scales) are 1. Integers are made up for attention only, where their
    meaning is known by their names: all sequences have full length, pages lie in order.

    Raises
    ------
    UsageError
        ``tuning-input`` for an integer tensor whose meaning is not known: it has to be given.
    """
    rng = np.random.default_rng(seed)
    pool = rng.standard_normal((1 << 20) - 3)  # a prime number of them, so rows do not repeat
    written = {tensor.uid for tensor in graph.outputs}
    known = _known_values(graph)
    found: dict[int, Any] = {}
    for tensor in graph.variant_pack_tensors:
        if (
            tensor.uid in given
            or tensor.uid in written
            or tensor.scratch
            or (tensor.by_value and tensor.value is not None)
        ):
            continue
        value = known[tensor.uid] if tensor.uid in known else _made_up(tensor, pool)
        if tensor.by_value:
            found[tensor.uid] = 1 if isinstance(value, np.ndarray) else value
        elif isinstance(value, np.ndarray):
            found[tensor.uid] = value
        else:
            found[tensor.uid] = np.full(tensor.span_elements, encode(value, tensor.data_type))
    return found


_DATA = (DataType.INT8, DataType.UINT8)


def _made_up(tensor: Tensor, pool: NDArray[np.float64]) -> Any:
    if tensor.span_elements == 1 and tensor.data_type not in (DataType.INT32, DataType.INT64, DataType.UINT32):
        return 1.0
    if not has_storage(tensor.data_type):
        return np.resize(np.frombuffer(pool.tobytes(), np.uint8), tensor.span_bytes) & 0x33
    if tensor.data_type is DataType.FP8_E8M0 or tensor.data_type in (DataType.BOOLEAN, DataType.BYTE_BOOLEAN):
        return 1.0
    if tensor.data_type not in TOLERANCES and tensor.data_type not in _DATA:
        raise UsageError(
            f"{tensor.name!r} is {tensor.type_text}, of which the meaning is not known here",
            code="tuning-input",
            fix=f"give it: autotune(..., buffers={{{tensor.name!r}: ...}})",
        )
    shift, scale = (4.0, 2.0) if tensor.data_type in _DATA else (0.0, 1.0)
    return np.resize(encode(pool * scale + shift, tensor.data_type), tensor.span_elements)


def _known_values(graph: Graph) -> dict[int, Any]:
    """Return the values of inputs whose meaning is known: ragged offsets, and those of attention by their names."""
    from ..graph.attention.recognize import read_attention

    known: dict[int, Any] = {}
    for tensor in graph.variant_pack_tensors:
        offset = tensor.ragged_offset
        if offset is not None and offset.uid not in known:
            starts = np.arange(offset.span_elements) * (tensor.dims[2] * tensor.strides[2])
            known[offset.uid] = starts.astype(storage_type(offset.data_type))
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
            known[tensor.uid] = np.arange(tensor.span_elements).astype(storage_type(tensor.data_type))
        elif tensor.name in by_name:
            known.setdefault(tensor.uid, by_name[tensor.name])
    return known


# For people


def evidence_table(evidence: Mapping[str, Any]) -> Table:
    """Return the candidates of a tuning as a table, fastest first."""
    from rich.table import Table
    from rich.text import Text

    by = evidence["by"]
    table = Table(title=f"{evidence['graph']} on {evidence['device']}, cuDNN {evidence['cudnn']}")
    for name in ("engine config", "mode", "cold us", "warm us", "workspace", "build s", "remark"):
        table.add_column(name, justify="right" if name[-2:] in ("us", " s") or name == "workspace" else "left")
    timed = [item for item in evidence["candidates"] if by in item]
    rest = [item for item in evidence["candidates"] if by not in item]
    for item in sorted(timed, key=lambda item: item[by]["median_us"]) + rest:
        remarks = [word for word in ("winner", "first") if item["tag"] == evidence[word] and by in item]
        if item["state"] != "timed":
            remarks.append(f"{item['state']}: {item['reason'].splitlines()[0]}")
        cells = (
            item["tag"],
            item["mode"],
            *(_time_cell(item.get(state)) for state in ("cold", "warm")),
            str(item.get("workspace_bytes", "")),
            f"{item['build_s']:.2f}" if "build_s" in item else "",
            ", ".join(remarks),
        )
        table.add_row(*map(Text, cells))
    return table


def _time_cell(timing: Mapping[str, float] | None) -> str:
    if timing is None:
        return ""
    return f"{timing['median_us']:.2f} ± {(timing['high_us'] - timing['low_us']) / 2:.2f}"
