"""``ShapeClassPlan``: one attention plan with ragged tensors that runs every batch and length within its bounds.

Before each launch a small kernel (:mod:`cudnn_backend_py.native.prepare_kernel`) writes what the plan reads of the
call's shape into the call's workspace: lengths, ragged offsets, page tables. It also clears what the plan leaves as
it was: rows of padding, and those of queries that have no keys, whose statistics become minus infinity. So nothing is
kept per shape. Both launches can be captured in a CUDA graph: the addresses are kept there, and what is at them is
read again at each replay.

Where numbers alone say the shape, the tables of one thread and stream stay where they are, and the kernel is left out
while the numbers stay the same: no one else writes there, and the stream comes to what reads them in order. Captured
calls have tables of their own in the workspace, which a replay writes again.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, NamedTuple

from ..errors import UsageError
from ..generated.enums import DataType
from ..graph.attention import Attention
from ..graph.attention.selections import find_engine_selection
from ..graph.attention.shape_class import PREPARED, ShapeClassBounds, make_shape_class_graph
from ..graph.data_types import ELEMENT_BITS
from ..graph.ir import Graph, Tensor
from ..native.cuda import Memory, get_current_context, in_context, is_capturing, relax_stream_capture_mode
from ..native.fast_call import Launch
from ..native.launch import Launcher
from ..native.prepare_kernel import (
    MAX_CLEARED_TENSORS,
    MAX_RAGGED_TENSORS,
    Q_ROWS_READ,
    THREADS_PER_BLOCK,
    TOKENS_OF_KV,
    TOKENS_OF_Q,
    LengthsAndOffsetsKernel,
)
from ..plans.build import build
from ..plans.choice import Knobs
from ..plans.engine import OperationGraph
from ..plans.plan import Plan
from ..printable import format_in_angle_brackets
from ..target import Target
from .arguments import Arguments
from .buffers import get_buffer_address, read_dims_and_strides
from .checks import SCRATCH_ALIGNMENT, make_scalar_array
from .executable import allocate_torch_memory, find_stream_getter
from .stream_state import get_live_handle, get_thread_handle

__all__ = ["Sequences", "ShapeClassPlan"]

_KV_TENSORS = ("k", "v", "dk", "dv")  # counted in the tokens of K and V
_MINUS_INFINITY = 0xFF800000  # as float32
_VALUES_OF_UNWRITTEN_ROWS = {
    "o": 0,
    "stats": _MINUS_INFINITY,
    "max": _MINUS_INFINITY,
    "sum_exp": 0,
    "dq": 0,
    "dk": 0,
    "dv": 0,
}
_MAX_BLOCKS = 256
_MAX_CACHED_PACKS = 64
_MAX_SMALL_KEYS, _MAX_SMALL_PRODUCTS = 256, 3 << 28  # keys, products of queries and keys of all heads


@dataclass(frozen=True, slots=True)
class Sequences:
    """The number of sequences of a call and their lengths.

    The lengths of Q are `len_q`, else the differences of `cu_q`, else `max_q`; those of K and V likewise. A captured
    CUDA graph keeps the addresses of these tensors, and reads their contents at each replay.

    Parameters
    ----------
    batch, max_q, max_kv
        The number of sequences and the longest lengths.
    cu_q, cu_kv
        int32 [batch + 1] on the GPU, where tokens are packed: the token each sequence begins with, and their sum.
    len_q, len_kv
        int32 [batch] on the GPU: the real lengths.
    block_table
        int32 [batch, n] on the GPU, rows dense: the pages of each sequence, for paged K and V. Entries beyond a
        sequence's length are not read.
    total_q, total_kv
        Tokens in memory, from the first sequence to the end of the last one: how much scratch memory a backward pass
        takes. Batch times the longest length if not given; needed where tokens are packed or sequences have gaps.
    """

    batch: int
    max_q: int
    max_kv: int
    cu_q: Any = None
    cu_kv: Any = None
    len_q: Any = None
    len_kv: Any = None
    block_table: Any = None
    total_q: int | None = None
    total_kv: int | None = None

    @property
    def is_uniform(self) -> bool:
        """Whether all sequences have the same length, given by numbers instead of tensors."""
        tensors = (self.cu_q, self.cu_kv, self.len_q, self.len_kv, self.block_table)
        return all(tensor is None for tensor in tensors)


class ShapeClassPlan:
    """One attention plan that runs every batch and length within its bounds. Threads may share it.

    Calls return before the device has finished.

    Parameters
    ----------
    problem
        A class at its bounds, of :func:`~cudnn_backend_py.graph.attention.shape_class.make_shape_class_problem`.
    target
        The GPU of this process.
    workspace
        "torch": torch's caching allocator at each call; a function of the size in bytes, whose result is held until
        the launch; None: memory of its own, which grows with the largest call.
    engine, knobs
        As for :func:`~cudnn_backend_py.plans.build.build`.

    Attributes
    ----------
    bounds
        The largest batch, length of Q, and length of K and V.
    names
        The tensors that a call gives, in their order by position.
    plan
        The plan of cuDNN.
    device, streams
        The GPU's ordinal, and addresses of the streams it ran on.
    captured
        Whether a call was captured in a CUDA graph, which needs it from then on.

    Raises
    ------
    EnvironmentNotReady
        ``plan-without-device`` for a described target.
    CudnnBackendError
        As :func:`~cudnn_backend_py.plans.build.build`.
    """

    def __init__(
        self,
        problem: Attention,
        target: Target,
        *,
        backward: bool,
        workspace: Callable[[int], Any] | Literal["torch"] | None = "torch",
        engine: int | None = None,
        knobs: Knobs | None = None,
    ) -> None:
        self.problem, self.bounds = problem, ShapeClassBounds(problem.batch, problem.seq_q, problem.seq_kv)
        self.plan = _build_plan(problem, target, backward, (engine, knobs))
        self.device = get_live_handle(self.plan).device or 0
        self._read_graph(self.plan.graph, backward)
        allocate = partial(allocate_torch_memory, self.device) if isinstance(workspace, str) else workspace
        self._allocate: Callable[[int], Any] | None = allocate
        self._memory = Memory(self.device)
        finalizer: Any = weakref.finalize(self, _free_unless_forked, self._memory, os.getpid())
        finalizer.atexit = False
        self._free_tables: dict[int, list[int]] = {}
        self._local = threading.local()
        self._current_stream: Callable[[], int] | None = None
        self.streams: set[int] = set()
        self.offer_counts: dict[tuple[Any, ...], int] = {}  # counted by the strategies of torch_ops
        self.captured = False

    def _read_graph(self, graph: Graph, backward: bool) -> None:
        """Sort the graph's tensors: given by the caller, written before each launch, by value, scratch."""
        problem, arguments = self.problem, Arguments(graph)
        given = [x for x in arguments.given if not x.name.startswith(PREPARED)]
        prepared = [x for x in arguments.given if x.name.startswith(PREPARED)]
        numbers = [x for x in arguments.held if not x.scratch]
        held = [x for x in arguments.held if x.scratch]
        self.scratch = [ScratchSize.of(x) for x in held]
        self.names = tuple(x.name for x in given)
        self.uids = tuple(x.uid for x in (*given, *prepared, *numbers, *held))
        self._scalar_arrays = [make_scalar_array(x, x.value) for x in numbers]
        self.number_places = [int(array.ctypes.data) for array in self._scalar_arrays]
        self.tables, self.table_bytes = _lay_out_tables(prepared)
        self.table_places = [self.tables[_get_table_name(x)] for x in prepared]
        self._ragged_names = [name.removeprefix("ragged_") for name in self.tables if name.startswith("ragged_")]
        pages = problem.pages_per_sequence if problem.page_size else 0
        self._page_size_and_count = problem.page_size or 1, pages
        self._min_blocks = min(-(-max(problem.batch + 1, problem.batch * pages) // THREADS_PER_BLOCK), _MAX_BLOCKS)
        written = {x.uid for x in graph.outputs}
        self._tensors_to_clear = [
            (i, x) for i, x in enumerate(given) if x.uid in written and x.name in _VALUES_OF_UNWRITTEN_ROWS
        ]
        self._backward = backward

    def __repr__(self) -> str:
        b, s_q, s_kv = self.bounds
        return format_in_angle_brackets(
            f"ShapeClassPlan {self.plan.tag} of {self.plan.graph.name!r} up to b{b} s{s_q}x{s_kv}"
        )

    def __call__(
        self, buffers: Mapping[str, Any] | Sequence[Any], sequences: Sequences, multipliers: Mapping[str, int]
    ) -> None:
        """Run on the current stream of the buffers' framework.

        Parameters
        ----------
        buffers
            By name, or in the order of ``names``. A bias has the dims of the bounds.
        multipliers
            For each of Q, K, V, O, their gradients and the statistics, in elements: from one token to the next where
            tokens are packed, otherwise from one sequence to the next. The statistics' memory is b, s, h.

        Raises
        ------
        UsageError
            ``class-bounds`` for a call beyond them, ``missing-buffer``.
        CudnnStatusError
            What cuDNN refuses at launch.
        """
        s, bounds = sequences, self.bounds
        if s.batch > bounds.batch or s.max_q > bounds.q or s.max_kv > bounds.kv:
            raise UsageError(
                f"the call has batch {s.batch}, query length {s.max_q} and key length {s.max_kv}; the plan allows at "
                f"most {bounds.batch}, {bounds.q} and {bounds.kv}",
                code="class-bounds",
                fix="build a plan with larger bounds for this call",
            )
        given = self._collect_addresses(buffers)
        state = self.get_state()
        captures = is_capturing(state.stream)
        self.captured = self.captured or captures
        scratch, size = self._lay_out_scratch(s)
        base, _held = self._get_workspace(state, size + self.plan.workspace_bytes)
        keeps = s.is_uniform and not captures
        tables = state.tables(self.allocate_tables) if keeps else base
        addresses = (
            *given,
            *[tables + offset for offset in self.table_places],
            *self.number_places,
            *[base + offset for offset in scratch],
        )
        row = self.make_arguments_of_table_kernel(
            s,
            (s.batch, s.max_q, s.max_kv),
            (
                _get_address_or_zero(s.cu_q),
                _get_address_or_zero(s.len_q),
                _get_address_or_zero(s.cu_kv),
                _get_address_or_zero(s.len_kv),
            ),
            multipliers,
            _get_block_table_arguments(s.block_table),
            {name: tables + offset for name, offset in self.tables.items()},
            given,
        )
        workspace = base + size if self.plan.workspace_bytes else 0
        blocks = self.count_table_kernel_blocks(s, s.batch)
        # A fresh thread, such as one of torch's autograd, may have no context yet.
        if get_current_context() == state.context:
            state.run(blocks, row, addresses, workspace, keeps=keeps)
        else:
            with in_context(state.context):
                state.run(blocks, row, addresses, workspace, keeps=keeps)

    def make_arguments_of_table_kernel(
        self,
        s: Sequences,
        numbers: tuple[Any, Any, Any],
        lengths: Sequence[Any],
        multipliers: Mapping[str, int],
        table: tuple[Any, Any, Any],
        places: Mapping[str, Any],
        given: Sequence[Any],
        *,
        to_words: Callable[[Any, float], Any] = lambda multiplier, words: int(multiplier * words),
    ) -> tuple[Any, ...]:
        """Return the arguments of the kernel that runs before the plan, in the order of ``ARGUMENT_ROW``.

        Parameters
        ----------
        numbers
            Batch, and the longest lengths.
        lengths
            Addresses of ``cu_q``, ``len_q``, ``cu_kv`` and ``len_kv``, 0 for none.
        table
            Address of the block table, or 0; elements from one row to the next; columns.
        places
            Addresses of the :attr:`tables`.
        given
            Addresses of the buffers.
        to_words
            Converts a multiplier from elements to words of 4 bytes, given the words per element.
        """
        (batch, max_q, max_kv), (cu_q, len_q, cu_kv, len_kv) = numbers, lengths
        ragged: list[Any] = []
        for name in self._ragged_names:
            ragged += (places["ragged_" + name], multipliers[name], self._get_ragged_offset_unit(name))
        return (
            *(batch, self.bounds.batch),
            *(cu_q, len_q, max_q, places["seq_len_q"]),
            *(cu_kv, len_kv, max_kv, places["seq_len_kv"]),
            *(int(self.problem.offset_type is DataType.INT64), len(self._ragged_names)),
            *ragged,
            *[0] * (3 * (MAX_RAGGED_TENSORS - len(self._ragged_names))),
            *table,
            *self._page_size_and_count,
            places.get("page_table", 0),
            *self._list_rows_to_clear(s, given, multipliers, to_words),
        )

    def _get_ragged_offset_unit(self, name: str) -> int:
        """Return the unit of a tensor's ragged offsets: tokens of Q, tokens of K and V, or rows of Q that kernels read.

        Kernels for decoding read a row of Q for each sequence of the class, whether the call has it or not: where the
        offset says, which for sequences without rows is the end of Q. So seen with 9.19.0 on an H200.
        """
        if name in _KV_TENSORS:
            return TOKENS_OF_KV
        return Q_ROWS_READ if name == "q" and self.bounds.q == 1 and not self._backward else TOKENS_OF_Q

    def count_table_kernel_blocks(self, s: Sequences, batch: int) -> int:
        """Return the number of thread blocks of the kernel that precedes the plan, for at most `batch` sequences."""
        return max(self._min_blocks, batch, _MAX_BLOCKS // batch * batch if _has_padding(s) else 0)

    def _collect_addresses(self, buffers: Mapping[str, Any] | Sequence[Any]) -> list[int]:
        """Return the device addresses of a call's buffers, in the order of ``names``."""
        if self._current_stream is None:
            each = buffers.values() if isinstance(buffers, Mapping) else buffers
            found = (find_stream_getter(buffer) for buffer in each if buffer is not None)
            self._current_stream = next((getter for getter in found if getter is not None), int)
        if not isinstance(buffers, Mapping):
            return [get_buffer_address(buffer, name) for buffer, name in zip(buffers, self.names, strict=True)]
        missing = [name for name in self.names if buffers.get(name) is None]
        if missing:
            raise UsageError(f"no buffer was given for {', '.join(missing)}", code="missing-buffer")
        return [get_buffer_address(buffers[name], name) for name in self.names]

    def get_state(self) -> _StreamState:
        """Return the state that this thread keeps for the current stream, created at its first call."""
        assert self._current_stream is not None  # set with the first buffers
        stream = self._current_stream()
        states: dict[int, _StreamState] = self._local.__dict__.setdefault("states", {})
        found = states.get(stream)
        if found is None:
            with relax_stream_capture_mode():
                found = states[stream] = _StreamState(self, stream)
            self.streams.add(stream)
        return found

    def _list_rows_to_clear(
        self,
        s: Sequences,
        given: Sequence[Any],
        multipliers: Mapping[str, Any],
        to_words: Callable[[Any, float], Any],
    ) -> Iterator[Any]:
        """Yield the kernel arguments for the rows that the kernel clears, because the plan does not write them.

        A backward pass does not write rows of padding; a forward pass also not those of queries without keys.
        """
        some = _has_padding(s) or (not self._backward and s.cu_kv is not None)
        yield len(self._tensors_to_clear) if some else 0
        count = 0
        for at, tensor in self._tensors_to_clear if some else ():
            words = ELEMENT_BITS[tensor.data_type] / 32
            _, heads, _, dim = tensor.dims
            _, head, token, _ = tensor.strides
            multiplier = to_words(multipliers["stats" if dim == 1 else tensor.name], words)
            token, head = int(token * words), int(head * words)
            yield from (given[at], multiplier, int(tensor.name in _KV_TENSORS), token, head, heads, int(dim * words))
            yield _VALUES_OF_UNWRITTEN_ROWS[tensor.name]
            count += 1
        yield from [0] * (8 * (MAX_CLEARED_TENSORS - count))

    def _lay_out_scratch(self, s: Sequences) -> tuple[list[int], int]:
        """Return the workspace offsets of the scratch tensors, which follow the tables, and the offset of their end."""
        size, places = self.table_bytes, []
        for tensor in self.scratch:
            places.append(size)
            size += _round_up_to_scratch_alignment(tensor.bytes * tensor.count(s))
        return places, size

    def allocate_tables(self, stream: int) -> StreamTableMemory:
        """Allocate the tables of offsets and lengths without the framework, which may count its own allocations."""
        free = self._free_tables.setdefault(stream, [])
        return StreamTableMemory(free.pop() if free else self._memory.allocate(self.table_bytes), free)

    def _get_workspace(self, state: _StreamState, size: int) -> tuple[int, Any]:
        """Return the address of a workspace of `size` bytes, and the object that keeps it alive."""
        if self._allocate is None:
            if size > state.own_bytes:  # the one before stays: captured calls may need it
                state.own_bytes = 1 << (size - 1).bit_length()
                state.own = self._memory.allocate(state.own_bytes)
            return state.own, None
        held = self._allocate(size)
        return get_buffer_address(held, "workspace"), held

    def close(self) -> None:
        """Free all memory except the plan, which may be shared; work on the device must have finished."""
        self._local = threading.local()
        self._free_tables = {}
        self._memory.free()


def _free_unless_forked(memory: Memory, process: int) -> None:
    if os.getpid() == process:  # the CUDA context is gone after a fork
        memory.free()


class StreamTableMemory:
    """Memory for the tables of offsets and lengths on one stream; later calls on the stream reuse it once released."""

    def __init__(self, address: int, free: list[int]) -> None:
        self.address, self._free_unless_forked = address, free

    def __del__(self) -> None:
        self._free_unless_forked.append(self.address)


class _StreamState:
    """One thread's state for running a plan on one stream, without a reference to the plan.

    So a pool can destroy the plan while the state exists.
    """

    def __init__(self, owner: ShapeClassPlan, stream: int) -> None:
        plan = owner.plan
        holder = get_thread_handle(plan)
        self.stream, self.context = stream, holder.context
        self.launcher = Launcher(plan.descriptor, owner.uids, kept=_MAX_CACHED_PACKS)
        self.launch = Launch(
            plan.target.library, holder.state, stream, plan.descriptor.pointer, may_need_context_switch=False
        )
        with in_context(self.context):
            self._prepare = LengthsAndOffsetsKernel(stream)
        self.own = self.own_bytes = 0
        self._tables: StreamTableMemory | None = None
        self._row: tuple[int, ...] | None = None  # by which these tables were written

    def tables(self, make: Callable[[int], StreamTableMemory]) -> int:
        """Return the address of the tables of offsets and lengths for this stream, allocated on first use."""
        if self._tables is None:
            self._tables = make(self.stream)
        return self._tables.address

    def run(
        self, blocks: int, row: tuple[int, ...], addresses: tuple[int, ...], workspace: int, *, keeps: bool
    ) -> None:
        """Launch the plan, after the kernel that writes its tables of offsets and lengths if these have changed."""
        launcher, key = self.launcher, (workspace, *addresses)
        pack = launcher.find(key) or launcher.cache_pack(key, launcher.row(*addresses), workspace)
        if not keeps:
            self._prepare.launch(blocks, *row)
        elif row != self._row:
            self._row = None
            self._prepare.launch(blocks, *row)
            self._row = row
        self.launch.run(pack)


def _build_plan(problem: Attention, target: Target, backward: bool, choice: tuple[int | None, Knobs | None]) -> Plan:
    version, sm = target.library.version, target.sm
    graph = make_shape_class_graph(problem, backward, version, sm)
    if problem.deterministic and backward:
        selected = find_engine_selection(graph, version, sm)
        choice = choice if selected is None else (selected.engine, dict(selected.knobs))
    elif choice == (None, None) and _is_small_tile_config_faster(problem, target, backward):
        choice = _choose_small_tile_config(graph, target)
    engine, knobs = choice
    return build(graph, target, engine=engine, knobs=knobs)


def _is_small_tile_config_faster(p: Attention, target: Target, backward: bool) -> bool:
    """Return whether sequences are so short that the small-tile config without a workspace is faster.

    Measured with 9.19.0 on an H200, d 64 and 128, causal or not: with up to 64 keys such a forward pass takes 0.5 times
    the time of the heuristics' choice, which is less than the exact plan's; with 256 keys 0.6 to 1.0 times; with more
    keys or work, more: with 128 keys and 16 heads of 64, 0.8 times up to a batch of 16, and 0.9 to 1.05 up to 48.
    """
    work = p.batch * p.heads * p.seq_q * p.seq_kv * p.head_dim
    plain = p.page_size is None and not p.dropout
    return plain and not backward and target.sm == 90 and p.seq_kv <= _MAX_SMALL_KEYS and work <= _MAX_SMALL_PRODUCTS


def _choose_small_tile_config(graph: Graph, target: Target) -> tuple[int | None, Knobs | None]:
    """Return the last engine config of the heuristics without workspace: the one with the smallest tiles."""
    free = [config for config in OperationGraph(graph, target).heuristics().configs if not config.workspace_bytes]
    return (free[-1].engine, free[-1].knobs) if free else (None, None)


def _get_table_name(tensor: Tensor) -> str:
    """Return the name of the table that holds a tensor; the page tables of K and V are one table."""
    return "page_table" if tensor.name.startswith("page_table") else tensor.name


def _lay_out_tables(tensors: Sequence[Tensor]) -> tuple[dict[str, int], int]:
    """Return the byte offset of each table in the workspace, and the total bytes."""
    places: dict[str, int] = {}
    size = 0
    for tensor in tensors:
        if _get_table_name(tensor) not in places:
            places[_get_table_name(tensor)] = size
            size += _round_up_to_scratch_alignment(tensor.span_bytes)
    return places, size


class ScratchSize(NamedTuple):
    """The size of a scratch tensor: ``bytes`` in total, or for a ragged tensor per token of Q or of K and V."""

    bytes: int
    tokens: Literal["", "q", "kv"]

    @classmethod
    def of(cls, tensor: Tensor) -> ScratchSize:
        if tensor.ragged_offset is None:
            return cls(tensor.span_bytes, "")
        owner = tensor.ragged_offset.name.removeprefix("ragged_")
        return cls(tensor.strides[2] * ELEMENT_BITS[tensor.data_type] // 8, "kv" if owner in _KV_TENSORS else "q")

    def count(self, s: Sequences) -> int:
        """Return the number of tokens by which to multiply ``bytes`` for a call, or 1 if the size is fixed."""
        if not self.tokens:
            return 1
        if self.tokens == "kv":
            return s.batch * s.max_kv if s.total_kv is None else s.total_kv
        return s.batch * s.max_q if s.total_q is None else s.total_q


def _round_up_to_scratch_alignment(size: int) -> int:
    return -(-size // SCRATCH_ALIGNMENT) * SCRATCH_ALIGNMENT


def _has_padding(s: Sequences) -> bool:
    return s.len_q is not None or s.len_kv is not None


def _get_address_or_zero(tensor: Any) -> int:
    return 0 if tensor is None else get_buffer_address(tensor, "lengths")


def _get_block_table_arguments(table: Any) -> tuple[int, int, int]:
    """Return the address of a block table, the elements from one row to the next, and its columns."""
    if table is None:
        return 0, 0, 0
    try:
        return table.data_ptr(), table.stride(0), table.shape[1]
    except AttributeError:  # not torch's
        (_, columns), strides = read_dims_and_strides(table)
        return get_buffer_address(table, "block_table"), strides[0], columns
