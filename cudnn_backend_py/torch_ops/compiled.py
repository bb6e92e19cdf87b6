"""The compiled step: C++ code that runs operator calls without Python, and recipes that describe these calls.

``compiled.cpp`` says what it does. A call it has no plan for, or that is not plain eager execution, it answers with
None: the operator's Python does it then, and teaches it the plan that ran. Nothing but time depends on it.
"""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from ..execution.buffers import register_c_tensor_reader
from ..execution.executable import Executable
from ..execution.plan_pool import get_shared_pool
from ..execution.shape_class_plan import Sequences, ShapeClassPlan
from ..graph.attention.shape_class import ShapeClassBounds, find_smallest_shape_in_class
from ..native.cuda import in_context, load_driver_function
from ..native.fast_call import PlanCallWithTuple, load_compiled_library
from ..native.prepare_kernel import LengthsAndOffsetsKernel
from .arguments import TENSORS, OperatorOptions
from .extension import EXTENSION

__all__ = [
    "DENSE",
    "DENSE_CLASS",
    "PACKED",
    "PAGED",
    "PAGED_PACKED",
    "SELF_PACKED",
    "STEP",
    "CompiledLauncher",
    "Recipe",
    "make_recipe_for_exact_shape",
    "make_shape_class_recipe",
]

INPUT, OUTPUT, PIECE, NUMBER = range(4)
SlotNumber = int | tuple[int, int, int]
Place = tuple[int, int, int, SlotNumber]
NamedTensors = Sequence[tuple[str, Any]]
Notice = Callable[[int, tuple[int, int, int]], int]


@dataclass(frozen=True)
class Recipe:
    """Instructions by which the compiled step (C++) runs a plan, for one thread and one stream.

    A number is an int, or (base, factor, slot) for ``base + factor * slot``: slots hold those numbers of a call in
    which calls of one plan may differ. A place is (where it is written, kind, index, offset or number) with the
    address of an INPUT, an OUTPUT or a PIECE of the workspace, or a NUMBER.

    Parameters
    ----------
    outputs
        A tensor of their type, dims, strides, and what they are filled with first, if anything.
    row
        Of the variant pack.
    limits
        (slot, least, most) of the calls it serves.
    prepared, parameters
        Address of the parameters of the kernel that runs before the plan, and what of them is written.
    pieces, own_piece
        Sizes of the pieces of a workspace that is allocated for each call, and which one the plan itself uses.
    copied, tokens_first
        Inputs that are copied first, as bits; whether copies of [b, h, s, d] are [b, s, h, d] in memory.
    token
        By which it is forgotten.
    cost
        Where several serve a call, that of least cost runs.
    operator
        The one it is for, if not that of the call: :data:`DENSE_CLASS`.
    keeps_tables
        What the kernel before the plan writes is the recipe's own: it does not run again with the same parameters.
    notice
        ``notice(not reported, (batch, max_q, max_kv))`` is reported of the calls of a shape in a row: how many there
        were of the shape before since it was reported of it, and the new one, which is not counted. Its answer is how
        many more calls of that shape it need not be reported of; if it is negative, Python does this one.
    holds
        What must live as long as it.
    """

    call: PlanCallWithTuple
    outputs: tuple[tuple[Any, tuple[SlotNumber, ...], tuple[SlotNumber, ...], float | None], ...]
    row: tuple[Place, ...]
    token: int
    holds: Any
    limits: tuple[tuple[int, int, int], ...] = ()
    prepared: int = 0
    parameters: tuple[Place, ...] = ()
    pieces: tuple[SlotNumber, ...] = ()
    own_piece: int = -1
    copied: int = 0
    tokens_first: bool = False
    cost: int = 0
    operator: int | None = None
    keeps_tables: bool = False
    notice: Notice | None = None

    def to_tuple(self) -> tuple[Any, ...]:
        """Return the recipe as the tuple that ``compiled.cpp`` reads."""
        return (
            *(self.call.address, self.prepared, self.limits, self.outputs, self.row, self.parameters),
            *(self.pieces, self.own_piece, self.copied, self.tokens_first, self.token, self.cost, self.keeps_tables),
            *(self.notice, (self.call, self.holds)),
        )


def map_tensors_to_call_arguments(inputs: NamedTensors, outputs: NamedTensors) -> dict[str, tuple[int, int, int]]:
    """Return, for each tensor of a plan by name: whether it is an input or output, its index, and its byte offset."""
    found = {name: (INPUT, index, 0) for index, (name, _) in enumerate(inputs)}
    found |= {name: (OUTPUT, index, 0) for index, (name, _) in enumerate(outputs)}
    if "rng" in found:
        _, index, _ = found["rng"]
        found |= {"dropout_seed": (INPUT, index, 0), "dropout_offset": (INPUT, index, 16)}
    return found


def describe_output_of_fixed_layout(
    x: Any, filled: float | None
) -> tuple[Any, tuple[SlotNumber, ...], tuple[SlotNumber, ...], float | None]:
    """Describe for C++ code an output that has the dims and strides of `x` in every call."""
    return x.new_empty((0,)), tuple(x.shape), tuple(x.stride()), filled


def make_recipe_for_exact_shape(
    executable: Executable,
    inputs: NamedTensors,
    outputs: NamedTensors,
    copied: Sequence[str],
    filled: Mapping[str, float],
) -> Recipe:
    """Return the recipe by which C++ code runs a plan for exactly these shapes again, on the current stream.

    Inputs that are `copied` are copied first; outputs are made again, those `filled` have that in all elements first.
    """
    state = executable.get_stream_state([x for _, x in inputs if x is not None])
    known, names = map_tensors_to_call_arguments(inputs, outputs), [name for name, _ in inputs]
    offsets, scratch_bytes = executable.scratch
    count = len(executable.names)
    pieces: tuple[SlotNumber, ...] = ()
    row: list[Place] = [(at, *known[name]) for at, name in enumerate(executable.names)]
    if executable.allocates_workspace:
        base = 0
        pieces = (scratch_bytes, executable.plan.workspace_bytes)
        row += [(count + at, PIECE, 0, offset) for at, offset in enumerate(offsets) if offset is not None]
    else:
        base = state.base
    call = PlanCallWithTuple(
        state.launch,
        state.launcher.make_empty_pack(),
        state.launcher.filler,
        None,
        given=count,
        wanted=None,
        tail=executable.get_extra_addresses(base),
        workspace=executable.get_plan_workspace(base),
        device=0,
        query_stream=False,
    )
    return Recipe(
        call,
        tuple(describe_output_of_fixed_layout(x, filled.get(name)) for name, x in outputs),
        tuple(row),
        id(executable),
        (state, executable),
        pieces=pieces,
        own_piece=1 if pieces and pieces[1] else -1,
        copied=sum(1 << names.index(name) for name in copied),
    )


# calls that share a class: which of their numbers may differ

T_Q, T_KV, BATCH, MAX_Q, MAX_KV, COLUMNS, ROW_STRIDE = range(7)  # slots
# Of dense tensors: from one sequence to the next, or with heads before rows from one head to the next.
_SEQUENCE_STRIDE_SLOTS = {"q": 7, "k": 8, "v": 9, "do": 10, "o": 11}
_NO_LIMIT = 1 << 62
_STRIDE_UNIT_BYTES = 16  # bytes, the unit of gaps
# Operators, as far as the compiled step reports them apart; of SELF_PACKED, keys are as queries do. DENSE_CLASS are
# calls of DENSE by what their class has in common: batch, lengths and strides are loose, with no word in the table
# below.
DENSE, PACKED, SELF_PACKED, PAGED, PAGED_PACKED, DENSE_CLASS = range(6)
_ARGUMENT_INDICES = {name: index for index, name in enumerate((*TENSORS, *OperatorOptions._fields))}
_VARIABLE_DIMS_OF_PACKED_Q = (
    ("q", 0, T_Q, 0),
    ("cu_seqlens_q", 0, BATCH, -1),
    ("max_q", 0, MAX_Q, 0),
    ("max_kv", 0, MAX_KV, 0),
)
_VARIABLE_DIMS_OF_PACKED_KV = (("k", 0, T_KV, 0), ("v", 0, T_KV, 0), ("cu_seqlens_k", 0, BATCH, -1))
_VARIABLE_DIMS_OF_PAGED_KV = (
    *(("seq_len_kv", 0, BATCH, 0), ("block_table", 0, BATCH, 0)),
    *(("block_table", 1, COLUMNS, 0), ("block_table", 2, ROW_STRIDE, 0)),
)
# (argument, dim, slot, what is added) by operator; a tensor's strides follow its dims.
_VARIABLE_DIMS = {
    DENSE: (),
    PACKED: (*_VARIABLE_DIMS_OF_PACKED_Q, *_VARIABLE_DIMS_OF_PACKED_KV),
    SELF_PACKED: (*_VARIABLE_DIMS_OF_PACKED_Q, *_VARIABLE_DIMS_OF_PACKED_KV, ("q", 0, T_KV, 0)),
    PAGED: (("q", 0, BATCH, 0), ("max_kv", 0, MAX_KV, 0), *_VARIABLE_DIMS_OF_PAGED_KV),
    PAGED_PACKED: (*_VARIABLE_DIMS_OF_PACKED_Q, *_VARIABLE_DIMS_OF_PAGED_KV),
    DENSE_CLASS: (),
}
# d_o, o, statistics
_VARIABLE_DIMS_OF_GRADIENTS = dict.fromkeys((PACKED, SELF_PACKED), ((0, 0, T_Q, 0), (1, 0, T_Q, 0), (2, 1, T_Q, 0)))
_LENGTH_TENSORS = ("cu_seqlens_q", "seq_len_q", "cu_seqlens_k", "seq_len_kv")
_DIFFERENTIABLE_TENSORS, _OPTIONAL_TENSORS = ("q", "k", "v", "bias", "sink"), ("bias", "sink")


def get_operator_number(named: Mapping[str, Any]) -> int:
    """Return the number of the operator (dense, packed, paged) for a call with these tensors."""
    cu_q, cu_k = named["cu_seqlens_q"], named["cu_seqlens_k"]
    if named["block_table"] is not None:
        return PAGED if cu_q is None else PAGED_PACKED
    return DENSE if cu_q is None else SELF_PACKED if cu_q is cu_k else PACKED


def make_shape_class_recipe(
    plan: ShapeClassPlan,
    sequences: Sequences,
    multipliers: Mapping[str, int],
    inputs: NamedTensors,
    outputs: NamedTensors,
    *,
    options: OperatorOptions,
    bounds: ShapeClassBounds,
    is_exact: bool = False,
    heads_folded: int = 1,
    copied: Sequence[str] = (),
    notice: Notice | None = None,
) -> Recipe:
    """Return the recipe by which C++ code runs a plan for calls of a class of shapes, on the current stream.

    It is for all calls that differ in nothing but loose numbers and have the same bounds.

    Parameters
    ----------
    bounds
        Those of the class whose calls it serves; the plan's may be larger.
    is_exact
        The bounds are those of the call; otherwise they are those of all calls of its class.
    heads_folded
        Heads of each sequence that are sequences of their own.
    copied
        Inputs that are copied first, tokens before heads; their multipliers are those of the copies.
    """
    named = dict(inputs)
    found = get_operator_number(named)
    operator = DENSE_CLASS if found == DENSE else found
    numbers = _SizesVaryingBetweenCalls(sequences, operator, heads_folded)
    packed = named["q"].dim() == 3
    dense = {*copied, *(name for name, _ in outputs)}
    known, state = map_tensors_to_call_arguments(inputs, outputs), plan.get_state()
    table = named["block_table"]
    tables = plan.allocate_tables(state.stream) if sequences.is_uniform else None
    pieces: list[SlotNumber] = [
        plan.table_bytes if tables is None else 0,
        *[
            numbers.make_workspace_size_formula(x.bytes, {"q": T_Q, "kv": T_KV}.get(x.tokens), x.count(sequences))
            for x in plan.scratch
        ],
        plan.plan.workspace_bytes,
    ]
    count = len(plan.names)

    def make_pointer_table_source(offset: int) -> Any:
        return (PIECE, 0, offset) if tables is None else tables.address + offset

    scratches = [(PIECE, 1 + at, 0) for at in range(len(plan.scratch))]
    given = [known[name] for name in plan.names]
    addresses: list[Any] = [*given, *map(make_pointer_table_source, plan.table_places), *plan.number_places, *scratches]
    with in_context(state.context):
        prepare = LengthsAndOffsetsKernel(state.stream)
    row = plan.make_arguments_of_table_kernel(
        sequences,
        (
            numbers.make_kernel_argument_source(BATCH, sequences.batch),
            numbers.make_kernel_argument_source(MAX_Q, sequences.max_q),
            numbers.make_kernel_argument_source(MAX_KV, sequences.max_kv),
        ),
        tuple(0 if named[name] is None else known[name] for name in _LENGTH_TENSORS),
        numbers.make_ragged_offset_multipliers(
            multipliers, {name: x for name, x in (*inputs, *outputs) if x is not None}, dense
        ),
        (0, 0, 0)
        if table is None
        else (
            known["block_table"],
            numbers.make_kernel_argument_source(ROW_STRIDE, table.stride(0)),
            numbers.make_kernel_argument_source(COLUMNS, table.shape[1]),
        ),
        {name: make_pointer_table_source(offset) for name, offset in plan.tables.items()},
        given,
        to_words=_convert_multiplier_to_4_byte_words,
    )
    words = (ctypes.c_int64 * len(row)).from_buffer(prepare.row)
    words[:] = [x if isinstance(x, int) else 0 for x in row]
    call = PlanCallWithTuple(
        state.launch,
        state.launcher.make_empty_pack(),
        state.launcher.filler,
        None,
        given=count,
        wanted=None,
        tail=[x if isinstance(x, int) else 0 for x in addresses[count:]],
        workspace=0,
        device=0,
        query_stream=False,
        prepare=prepare.make_kernel_data(plan.count_table_kernel_blocks(sequences, plan.bounds.batch)),
    )
    b, q, kv = plan.bounds
    return Recipe(
        call,
        tuple(
            (
                x.new_empty((0,)),
                numbers.make_output_dims(name, x, packed=packed),
                numbers.make_output_strides(name, x),
                None,
            )
            for name, x in outputs
        ),
        tuple((at, *x) for at, x in enumerate(addresses) if not isinstance(x, int)),
        id(plan),
        (state, plan, prepare, tables),
        limits=numbers.make_size_and_stride_ranges(plan, options, bounds, is_exact=is_exact),
        prepared=ctypes.addressof(words),
        parameters=tuple((at, *x) for at, x in enumerate(row) if not isinstance(x, int)),
        pieces=tuple(pieces) if any(pieces) else (),
        own_piece=len(pieces) - 1 if plan.plan.workspace_bytes else -1,
        copied=sum(1 << at for at, (name, _) in enumerate(inputs) if name in copied),
        tokens_first=True,
        cost=b * q * kv,
        operator=operator,
        keeps_tables=tables is not None,
        notice=notice,
    )


def _convert_multiplier_to_4_byte_words(multiplier: Any, words: float) -> Any:
    """Convert a multiplier from elements to words of 4 bytes; each element takes `words` words."""
    if isinstance(multiplier, int):
        return int(multiplier * words)
    kind, index, (base, factor, slot) = multiplier
    return kind, index, (int(base * words), int(factor * words), slot)


class _SizesVaryingBetweenCalls:
    """Sizes and strides that may differ between calls that C++ code runs by one recipe, with their ranges."""

    def __init__(self, sequences: Sequences, operator: int, heads_folded: int) -> None:
        self._sequences, self._folded = sequences, heads_folded
        self._dense = operator == DENSE_CLASS
        of_class = (T_Q, T_KV, BATCH, MAX_Q, MAX_KV)
        self.variable_slots = dict.fromkeys(
            of_class if self._dense else [slot for _, _, slot, _ in _VARIABLE_DIMS[operator]]
        )

    def make_kernel_argument_source(self, slot: int, value: int) -> Any:
        """Return where the kernel's argument gets this number from, or the number itself if it never changes."""
        return (NUMBER, 0, (0, self._get_head_folding_factor(slot), slot)) if slot in self.variable_slots else value

    def make_workspace_size_formula(self, each: int, slot: int | None, count: int) -> SlotNumber:
        """Return the bytes of a workspace part, `each` per token: a number, or a formula if the token count varies."""
        return (
            (0, each * self._get_head_folding_factor(slot), slot)
            if slot is not None and slot in self.variable_slots
            else each * count
        )

    def _get_head_folding_factor(self, slot: int | None) -> int:
        """Return the factor by which a size such as the batch grows if heads are treated as separate sequences."""
        return self._folded if slot in (BATCH, T_Q, T_KV) else 1

    def make_ragged_offset_multipliers(
        self, found: Mapping[str, int], named: Mapping[str, Any], dense: Collection[str]
    ) -> Any:
        """Return the ragged offset multipliers of a call's tensors; for `dense` tensors, formulas of the dims."""
        if not self._dense:
            return found
        return {
            name: self._make_ragged_offset_multiplier(name, value, named[name], name in dense)
            for name, value in found.items()
        }

    def _make_ragged_offset_multiplier(self, name: str, value: int, x: Any, is_dense: bool) -> Any:
        rows = x.shape[2]
        if is_dense or name == "stats":
            return NUMBER, 0, (0, value // rows, _get_row_count_slot(name))
        if rows == 1 and self._folded > 1:  # from head to head, which is no loose number then
            return value
        return NUMBER, 0, (0, _STRIDE_UNIT_BYTES // x.element_size(), _SEQUENCE_STRIDE_SLOTS[name])

    def make_output_dims(self, name: str, x: Any, *, packed: bool) -> tuple[SlotNumber, ...]:
        """Return an output's dims, as formulas of the call's variable numbers."""
        if self._dense:
            return (0, 1, BATCH), x.shape[1], (0, 1, _get_row_count_slot(name)), x.shape[3]
        slot = (T_KV if name in ("dk", "dv") else T_Q) if packed else BATCH
        loose = 1 if packed and name == "stats" else 0
        return tuple(
            (0, 1, slot) if axis == loose and slot in self.variable_slots else dim for axis, dim in enumerate(x.shape)
        )

    def make_output_strides(self, name: str, x: Any) -> tuple[SlotNumber, ...]:
        """Return an output's strides; a dense output has no gaps, with heads before rows or rows before heads."""
        if not self._dense:
            return tuple(x.stride())
        (batch, head, row, dim), rows, slot = x.stride(), x.shape[2], _get_row_count_slot(name)
        return (0, batch // rows, slot), (0, head // rows, slot) if head > row else head, row, dim

    def make_size_and_stride_ranges(
        self, plan: ShapeClassPlan, options: OperatorOptions, bounds: ShapeClassBounds, *, is_exact: bool
    ) -> tuple[tuple[int, int, int], ...]:
        """Return the allowed range of each variable size and stride of a recipe, as (slot, minimum, maximum).

        Calls that a smaller class serves are left out."""
        s, most, page, folded = self._sequences, bounds, plan.problem.page_size, self._folded
        least = most if is_exact else find_smallest_shape_in_class(plan.problem, most)
        ranges = dict.fromkeys(self.variable_slots, (1, _NO_LIMIT)) | {ROW_STRIDE: (0, _NO_LIMIT)}
        ranges[BATCH] = -(-least.batch // folded), most.batch // folded
        # Single rows are a problem of their own.
        ranges[MAX_Q] = (1, 1) if s.max_q == 1 else (max(2, least.q), most.q)
        ranges[MAX_KV] = least.kv, most.kv
        if page and options.max_kv is None:  # the block table says how long sequences can be
            ranges[MAX_KV] = 0, 0
            ranges[COLUMNS] = -(-least.kv // page), most.kv // page
        return tuple((slot, *ranges[slot]) for slot in self.variable_slots)


def _get_row_count_slot(name: str) -> int:
    return MAX_KV if name in ("dk", "dv") else MAX_Q


# the step


class LaunchRecipeMaker(Protocol):
    """An object that runs calls of certain shapes and can make recipes by which C++ code runs them."""

    @property
    def offer_counts(self) -> dict[Any, int] | None: ...

    @property
    def is_shared(self) -> bool: ...

    @property
    def best_shape_class_key(self) -> Any: ...

    def make_recipe(self, inputs: NamedTensors, outputs: NamedTensors, options: OperatorOptions) -> Recipe | None: ...


class CompiledLauncher:
    """The compiled step (C++) and the recipes given to it; does nothing until its extension is loaded.

    Attributes
    ----------
    call
        ``call(operator, *tensors, *options, wants_stats)``: the output, with its statistics if wanted; None for a call
        that it does not do. None where there is no extension, or not yet.
    """

    def __init__(self) -> None:
        self.call: Callable[..., Any] | None = None
        self.is_requested = False
        self._last_use: dict[int, int] = {}
        self._module: Any = None
        self._torch: Any = None

    def request_build(self, torch: Any, differentiate: Callable[..., Any]) -> None:
        """Request that the extension is built in the background, at most once."""
        self.is_requested, self._torch = True, torch
        EXTENSION.request_build(torch, lambda module: self.connect(module, torch, differentiate))

    def connect(self, module: Any, torch: Any, differentiate: Callable[..., Any]) -> None:
        """Connect the loaded extension to the driver, to torch and to the pool of plans."""
        library = load_compiled_library()
        if library is None:
            raise OSError(
                "the compiled library of this package is missing: reinstall it on a machine with a C compiler"
            )
        cuda = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libtorch_cuda.so"))
        go, stream = library.cudnn_backend_py_go, cuda.aoti_torch_get_current_cuda_stream
        capturing = load_driver_function("cuStreamIsCapturing")
        module.connect(*map(_get_function_address, (go, stream, capturing)), differentiate, "cuda")
        for operator, loose in _VARIABLE_DIMS.items():
            forward = tuple((_ARGUMENT_INDICES[name], *rest) for name, *rest in loose)
            backward = (*_VARIABLE_DIMS_OF_GRADIENTS.get(operator, ()), *((3 + at, *rest) for at, *rest in forward))
            bits = (
                sum(1 << _ARGUMENT_INDICES[name] for name in names)
                for names in (_DIFFERENTIABLE_TENSORS, _OPTIONAL_TENSORS)
            )
            of = DENSE if operator == DENSE_CLASS else -1
            if module.define(len(TENSORS), *bits, forward, backward, of) != operator:
                raise OSError("the extension was connected before in this process, and only one connection is possible")
        get_shared_pool().register_lookup_free_runner(self)
        register_c_tensor_reader(torch.Tensor, *module.reader())
        self._torch, self._module, self.call = torch, module, module.call

    def add_recipe_if_recurring(
        self,
        strategy: LaunchRecipeMaker,
        backward: bool,
        inputs: NamedTensors,
        outputs: NamedTensors,
        options: tuple[Any, ...],
        wanted: int = 0,
    ) -> None:
        """Give C++ code the recipe of the last call, if its shape recurs or calls of other shapes can use the recipe.

        What it was taught and does not know any more is taught again, more and more seldom.
        """
        offer_counts = strategy.offer_counts
        if offer_counts is None:
            return
        q = inputs[3 if backward else 0][1]
        stream = self._torch._C._cuda_getCurrentRawStream(q.get_device())
        where = (threading.get_ident(), stream, wanted, backward, strategy.best_shape_class_key)
        runs = offer_counts[where] = offer_counts.get(where, 0) + 1
        if runs & (runs - 1) or (runs == 1 and not strategy.is_shared):
            return
        if self._torch.cuda.is_current_stream_capturing():
            return
        named = [(name, x) for name, x in outputs if x is not None]
        recipe = strategy.make_recipe(inputs, named, OperatorOptions(*options))
        if recipe is None:
            return
        operator = get_operator_number(dict(inputs)) if recipe.operator is None else recipe.operator
        arguments = (operator, *[x for _, x in inputs], *options)
        if not backward:
            arguments = (*arguments, len(named) > 1)
        self._module.learn(recipe.to_tuple(), backward, wanted, *arguments)
        if strategy.offer_counts is None:  # its plan had to go meanwhile
            self._module.forget(recipe.token)

    def forget(self, plan: object) -> None:
        """Make C++ code forget its recipes for a plan; when this returns, none of them is being launched."""
        if self._module is not None:
            self._module.forget(id(plan))
            self._last_use.pop(id(plan), None)

    def has_run(self, plan: object) -> bool:
        """Return whether the compiled step has launched a plan since the previous call of this method."""
        if self._module is None:
            return False
        now, before = self._module.used(id(plan)), self._last_use.get(id(plan), 0)
        self._last_use[id(plan)] = now
        return bool(now > before)

    def disable(self) -> None:
        """Disable the compiled step, as it cannot be used after a fork."""
        self.call = None


STEP = CompiledLauncher()
os.register_at_fork(after_in_child=STEP.disable)


def _get_function_address(function: Any) -> int | None:
    return ctypes.cast(function, ctypes.c_void_p).value
