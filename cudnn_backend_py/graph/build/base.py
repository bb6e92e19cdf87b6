"""Code shared by all ``GraphBuilder`` methods: new tensors, options of results, shape errors."""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from itertools import chain, islice
from types import UnionType
from typing import Any, Literal, ParamSpec, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from ...errors import CudnnBackendError, GraphError
from ...generated.enums import DIM_MAX, CudnnEnum, DataType, DescriptorType, TensorReordering
from ...printable import format_repr
from ..data_types import find_member, find_type, suggest_enumerator
from ..ir import Graph, Op, Operation, Tensor, packed_strides
from ..strides import channels_last, copy_stride_order
from ..tensor import LEAST, MOST

__all__ = [
    "BuilderBase",
    "Output",
    "check_data_type",
    "check_dims",
    "check_equal_ranks",
    "check_types",
    "expand_per_spatial_dim",
    "make_shape_error",
    "make_strides_like",
    "read_values_per_dim",
    "require_all_results",
    "wrap_builder_method",
    "wrap_public_methods_of_mixin",
]

_LOOKED_AT = 1000  # of the parts of a wrong argument

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")

Output = bool | Tensor | Mapping[str, Any]
"""A result that is optional, or that comes next to another: wanted or not, a tensor to write, or options of one."""


_MAKE_A_TENSOR = "GraphBuilder.tensor(name, dims) is one, scalar(value) one of a number; data are given at execution"


def check_types(kind: type | tuple[type, ...], **arguments: object) -> None:
    """Refuse arguments that are not instances of `kind`; the error names the argument.

    Raises
    ------
    GraphError
        ``wrong-field-type``.
    """
    needed = kind[0] if isinstance(kind, tuple) else kind
    for name, value in arguments.items():
        if not isinstance(value, kind):
            raise _make_type_error(name, value, needed.__name__, Tensor in (kind, needed))


def _make_type_error(name: str, value: object, needed: str, is_tensor: bool) -> GraphError:
    shape = getattr(value, "shape", None)
    said = f"a {type(value).__name__} {list(shape)}" if isinstance(shape, tuple) else format_repr(value)
    if isinstance(value, int) and not LEAST <= value <= MOST:
        needed += " of 64 bits"
    return GraphError(
        f"{name}= is {said}, {needed} is needed",
        code="wrong-field-type",
        fix=_MAKE_A_TENSOR if is_tensor and value is not None else None,
    )


def wrap_builder_method(method: Callable[P, R]) -> Callable[P, R]:
    """Wrap a builder method: it takes enumerators by name, undoes its changes on failure, and names wrong arguments.

    Other types are looked at only where something else than an error of ours comes out of the method.
    """
    call: Callable[..., R] = method

    @functools.wraps(method)
    def call_and_undo_on_error(*args: P.args, **options: P.kwargs) -> R:
        builder = args[0]
        assert isinstance(builder, BuilderBase)
        before = builder._save_state()
        try:
            if any(isinstance(value, str) for value in chain(args, options.values())):
                positional, named = _read_enumerators(method, args, options)
                return call(*positional, **named)
            return call(*args, **options)
        except BaseException as error:
            builder._restore_state(*before)
            if isinstance(error, Exception) and not isinstance(error, CudnnBackendError):
                wrong = _find_wrong_argument_type(method, args, options)
                if wrong is not None:
                    raise wrong from error
            raise

    return call_and_undo_on_error


def _read_enumerators(
    method: Callable[..., Any], args: Sequence[Any], options: Mapping[str, Any]
) -> tuple[list[Any], dict[str, Any]]:
    """Return the arguments with enumerators in place of their names."""
    positional, named = list(args), dict(options)
    for place, name, enum in _list_enumerator_parameters(method):
        value = positional[place] if place < len(positional) else named.get(name)
        if not isinstance(value, str):
            continue
        if (member := find_member(enum, value)) is None:
            raise GraphError(
                f"{name}= is {format_repr(value)}, {enum.__name__} is needed{suggest_enumerator(enum, value)}",
                code="wrong-field-type",
            )
        if place < len(positional):
            positional[place] = member
        else:
            named[name] = member
    return positional, named


@functools.cache
def _list_enumerator_parameters(method: Callable[..., Any]) -> tuple[tuple[int, str, type[CudnnEnum]], ...]:
    """Return position, name and enum of each parameter that takes an enumerator and no text."""
    code = method.__code__
    found = []
    for place, name in enumerate(code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]):
        # The annotation as text: to evaluate those of one method takes half a millisecond.
        names = method.__annotations__.get(name, "").replace("|", " ").split()
        kinds = [method.__globals__.get(one) for one in names]
        enums = [kind for kind in kinds if isinstance(kind, type) and issubclass(kind, CudnnEnum)]
        if enums and "str" not in names:
            found.append((place if place < code.co_argcount else sys.maxsize, name, enums[0]))
    return tuple(found)


def wrap_public_methods_of_mixin(kind: type[T]) -> type[T]:
    """Return a mixin of the builder with all public methods wrapped by :func:`wrap_builder_method`."""
    for name, method in list(vars(kind).items()):
        if inspect.isfunction(method) and not name.startswith("_"):
            setattr(kind, name, wrap_builder_method(method))
    return kind


def _find_wrong_argument_type(
    method: Callable[..., Any], args: Sequence[Any], options: Mapping[str, Any]
) -> GraphError | None:
    """Return the error for the first argument that does not match its annotation."""
    try:
        given = inspect.signature(method).bind(*args, **options)
    except TypeError:  # Python says what is missing or too much
        return None
    hints = get_type_hints(method)
    for name, value in given.arguments.items():
        several = given.signature.parameters[name].kind is inspect.Parameter.VAR_KEYWORD
        for named, one in value.items() if several else ((name, value),):
            if not _is_valid_for_annotation(one, hints.get(name, Any)):
                return _make_type_error(named, one, _describe_annotation(hints[name]), hints[name] is Tensor)
    return None


def _is_valid_for_annotation(value: object, hint: Any) -> bool:
    """Return whether a value matches an annotation of the builder's methods; a bool is not a number."""
    origin, parts = get_origin(hint), get_args(hint)
    if hint is Any:
        return True
    if origin in (Union, UnionType):
        return any(_is_valid_for_annotation(value, part) for part in parts)
    if origin is Literal:
        return isinstance(value, str) and value in parts
    if origin in (tuple, Sequence):
        return (
            isinstance(value, Sequence)
            and not isinstance(value, (str, bytes, bytearray))
            and all(_is_valid_for_annotation(item, parts[0]) for item in islice(value, _LOOKED_AT))
        )
    if origin in (Mapping, dict):
        return isinstance(value, Mapping) and all(isinstance(key, str) for key in value)
    kind = (float, int) if hint is float else hint
    if isinstance(value, int) and not LEAST <= value <= MOST:
        return False
    return isinstance(value, kind) and (hint is bool or not isinstance(value, bool))


def _describe_annotation(hint: Any) -> str:
    origin, parts = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        return " or ".join(_describe_annotation(part) for part in parts if part is not type(None))
    if origin is Literal:
        return " or ".join(map(repr, parts))
    if origin in (tuple, Sequence):
        return f"a sequence of {_describe_annotation(parts[0])}"
    return str((origin or hint).__name__)


def make_shape_error(headline: str, code: str = "operation-shape", /, **tensors: Tensor | None) -> GraphError:
    """Return the error for mismatched dims, which lists all of them."""
    shapes = (f"{port:<12} {item.name!r} {list(item.dims)}" for port, item in tensors.items() if item is not None)
    return GraphError(headline, code=code, where="\n".join(("checked before any cuDNN call", *shapes)))


def check_dims(tensor: Tensor | None, dims: tuple[int, ...], what: str, **tensors: Tensor | None) -> None:
    """Raise if a tensor does not have the dims `dims`; a `tensor` of None is accepted.

    Raises
    ------
    GraphError
        ``operation-shape``.
    """
    if tensor is not None and tensor.dims != dims:
        headline = f"{what} {tensor.name!r} has dims {list(tensor.dims)}, {list(dims)} is needed"
        raise make_shape_error(headline, **{what.replace(" ", "_"): tensor, **tensors})


def check_data_type(tensor: Tensor, kinds: tuple[DataType, ...], what: str) -> None:
    """Refuse a tensor with a data type other than `kinds`.

    Raises
    ------
    GraphError
        ``wrong-argument``.
    """
    if tensor.data_type not in kinds:
        names = " or ".join(kind.name for kind in kinds)
        raise GraphError(f"{what} {tensor.name!r} is {tensor.data_type.name}, {names} is needed", code="wrong-argument")


def check_equal_ranks(least: int, **tensors: Tensor) -> None:
    """Refuse tensors of different ranks, or of a rank below `least`.

    Raises
    ------
    GraphError
        ``wrong-field-type``, ``operation-shape``.
    """
    check_types(Tensor, **tensors)
    (first, rank), *_ = ((item, item.rank) for item in tensors.values())
    if rank < least:
        raise make_shape_error(f"{first.name!r} has {rank} dims, at least {least} are needed", **tensors)
    for port, item in tensors.items():
        if item.rank != rank:
            raise make_shape_error(
                f"{port} {item.name!r} has {item.rank} dims, {first.name!r} has {rank}: the same number is needed",
                **tensors,
            )


def read_values_per_dim(given: Iterable[T], name: str) -> tuple[T, ...]:
    """Return the values given for each dim as a tuple; refuse more values than a tensor may have dims.

    Raises
    ------
    GraphError
        ``rank-out-of-range``.
    TypeError
        For what is no sequence of numbers, which :func:`wrap_builder_method` names.
    """
    if isinstance(given, (str, bytes, bytearray, Mapping, Set)):
        raise TypeError
    read = tuple(islice(given, DIM_MAX + 1))
    if len(read) > DIM_MAX:
        raise GraphError(f"{name}= has more than {DIM_MAX} parts, 1 to {DIM_MAX} are allowed", code="rank-out-of-range")
    return read


def expand_per_spatial_dim(given: Any, count: int) -> tuple[Any, ...]:
    """Return one value per spatial dim from a single number or a sequence.

    Raises
    ------
    TypeError
        For what is neither, which :func:`wrap_builder_method` names.
    """
    from fractions import Fraction  # it imports decimal

    if isinstance(given, (int, Fraction)):
        return (given,) * count
    return read_values_per_dim(given, "it")


def make_strides_like(dims: tuple[int, ...], like: Tensor) -> tuple[int, ...]:
    """Return packed strides for `dims` in the layout of another tensor of the same rank.

    Channels last where that one is, row-major where that one is, and else with the axes in its order.
    """
    if like.strides == packed_strides(like.dims) or like.rank != len(dims):
        return packed_strides(dims)
    if like.strides == channels_last(like.dims):
        return channels_last(dims)
    return copy_stride_order(dims, like.strides)


def require_all_results(made: Sequence[Tensor | None], what: str) -> list[Tensor]:
    """Return an operation's results; refuse a None among them, as cuDNN always writes all of them.

    Raises
    ------
    GraphError
        ``missing-field``.
    """
    if None in made:
        raise GraphError(
            f"cuDNN writes all results of {what}, so none of them may be set to False", code="missing-field"
        )
    return [item for item in made if item is not None]


_DIGITS = 10  # of a number that :meth:`BuilderBase.make_unused_name` never counts up to


def _read_data_type(kind: DataType | str) -> DataType:
    """Convert a data type's name to the data type; return other values unchanged, as the tensor checks them."""
    found = find_type(kind) if isinstance(kind, str) else None
    return kind if found is None else found  # type: ignore[return-value]


class BuilderBase:
    """The tensors and operations of a graph under construction."""

    def __init__(
        self,
        name: str = "graph",
        *,
        io_type: DataType | str = DataType.HALF,
        intermediate_type: DataType | str = DataType.FLOAT,
        compute_type: DataType | str = DataType.FLOAT,
        first_uid: int = 1,
    ) -> None:
        self.name = name
        self.io_type = _read_data_type(io_type)
        self.intermediate_type = _read_data_type(intermediate_type)
        self.compute_type = _read_data_type(compute_type)
        self._uid = first_uid - 1
        self._names: set[str] = set()
        self._numbers: dict[str, int] = {}  # by stem: names with a smaller number are taken
        self._uids: set[int] = set()
        self._made: list[Tensor] = []
        self.ops: list[Op] = []

    def make_unused_name(self, stem: str) -> str:
        """Return `stem`, with a number added if a tensor already has that name."""
        number = self._numbers.get(stem, 0)
        while (name := f"{stem}{number or ''}") in self._names:
            number += 1
        self._numbers[stem] = number
        return name

    def _make_next_uid(self) -> int:
        self._uid += 1
        while self._uid in self._uids:
            self._uid += 1
        return self._uid

    @wrap_builder_method
    def tensor(
        self,
        name: str,
        dims: tuple[int, ...],
        data_type: DataType | str | None = None,
        *,
        strides: tuple[int, ...] | Literal["packed", "channels_last"] = "packed",
        uid: int | None = None,
        alignment: int = 16,
        virtual: bool = False,
        by_value: bool = False,
        value: float | int | None = None,
        reordering: TensorReordering = TensorReordering.NONE,
        ragged_offset: Tensor | None = None,
        ragged_offset_multiplier: int = 1,
        vector_count: int = 1,
        vector_dim: int = -1,
        scratch: bool = False,
    ) -> Tensor:
        """Return a new tensor.

        Strides are in elements, or ``packed``, which is row-major, or ``channels_last``: dim 1 is the fastest, then
        the last one (NHWC).

        C: ``CUDNN_BACKEND_TENSOR_DESCRIPTOR``.

        Raises
        ------
        GraphError
            ``name-twice``, ``uid-twice`` if the builder gave it to another tensor, and what a tensor can have wrong.
        """
        if name in self._names:
            raise GraphError(f"graph {self.name!r} already has a tensor {name!r}", code="name-twice")
        if uid in self._uids:
            raise GraphError(
                f"uid {uid} for tensor {name!r} belongs to another tensor already",
                code="uid-twice",
                fix="give another uid, or leave uid= out",
            )
        order: object = strides
        if isinstance(order, str) and order not in ("packed", "channels_last"):
            raise GraphError(
                f"tensor {name!r} has strides {format_repr(order)}, numbers, 'packed' or 'channels_last' are needed",
                code="dims-type",
            )
        dims = read_values_per_dim(dims, "dims")
        if order == "packed":
            strides = packed_strides(dims)
        elif order == "channels_last":
            strides = channels_last(dims)
        else:
            strides = read_values_per_dim(cast("tuple[int, ...]", strides), "strides")
        tensor = Tensor(
            name=name,
            uid=self._make_next_uid() if uid is None else uid,
            dims=dims,
            strides=strides,
            data_type=self.io_type if data_type is None else _read_data_type(data_type),
            alignment=alignment,
            virtual=virtual,
            by_value=by_value,
            value=value,
            reordering=reordering,
            ragged_offset=ragged_offset,
            ragged_offset_multiplier=ragged_offset_multiplier,
            vector_count=vector_count,
            vector_dim=vector_dim,
            scratch=scratch,
        )
        self._names.add(name)
        self._uids.add(tensor.uid)
        self._made.append(tensor)
        return tensor

    @wrap_builder_method
    def scalar(
        self,
        value: float | int | None,
        *,
        rank: int = 4,
        name: str | None = None,
        data_type: DataType | str | None = None,
    ) -> Tensor:
        """Return a by-value tensor of one element, all dims and strides 1; a `value` of None is given at execution."""
        fitting = DataType.INT32 if isinstance(value, int) else DataType.FLOAT
        kind = fitting if data_type is None else _read_data_type(data_type)
        ones = (1,) * rank
        return self.tensor(
            self.make_unused_name("c") if name is None else name, ones, kind, strides=ones, by_value=True, value=value
        )

    @wrap_builder_method
    def operation(self, kind: DescriptorType, name: str | None = None, **fields: Any) -> Operation:
        """Add any operation by the fields of its descriptor and return it; only field types are checked."""
        stem = kind.name.removeprefix("OPERATION_").lower()
        op = Operation(kind, name or f"{stem}{len(self.ops)}", fields)
        self.ops.append(op)
        return op

    def graph(self) -> Graph:
        """Return the graph of all operations added so far, after checking it as a whole."""
        return Graph(tuple(self.ops), self.name)

    # parts of operations

    def _save_state(self) -> tuple[int, int, int]:
        """Return the current state of the builder, for :meth:`_restore_state`."""
        return self._uid, len(self._made), len(self.ops)

    def _restore_state(self, uid: int, made: int, ops: int) -> None:
        """Undo everything since a saved state, including names and uids."""
        for tensor in self._made[made:]:
            self._names.discard(tensor.name)
            self._uids.discard(tensor.uid)
            self._release_name(tensor.name)
        del self._made[made:], self.ops[ops:]
        self._uid = uid

    def _release_name(self, name: str) -> None:
        """Release a name that :meth:`make_unused_name` returned."""
        for cut in range(len(name.rstrip("0123456789")), len(name) + 1):
            stem, number = name[:cut], name[cut:]
            if stem in self._numbers and len(number) < _DIGITS:
                self._numbers[stem] = min(self._numbers[stem], int(number or 0))

    def _get_result_tensor(self, stem: str, dims: tuple[int, ...], options: dict[str, Any], **inferred: Any) -> Tensor:
        """Return the tensor that an operation writes: the given ``out``, or a new one, virtual by default.

        `inferred` are options that hold where the caller gave no others.
        """
        out = options.pop("out", None)
        if out is not None:
            if options:
                raise GraphError(f"out= is given, so {', '.join(options)} has no effect", code="options-with-out")
            check_types(Tensor, out=out)
            assert isinstance(out, Tensor)
            return out
        for name, value in inferred.items():
            options.setdefault(name, value)
        options.setdefault("virtual", True)
        options.setdefault("data_type", self.intermediate_type if options["virtual"] else self.io_type)
        return self._make_tensor(stem, dims, options)

    def _get_requested_dims(self, options: Mapping[str, Any], otherwise: tuple[int, ...]) -> tuple[int, ...]:
        """Return the dims that a caller gave for a result, by ``out`` or ``dims``; `otherwise` if by neither."""
        out = options.get("out")
        dims = out.dims if isinstance(out, Tensor) else options.get("dims", otherwise)
        if not _is_valid_for_annotation(dims, Sequence[int]):
            raise _make_type_error("dims", dims, "a sequence of int", is_tensor=False)
        return read_values_per_dim(dims, "dims")

    def _make_tensor(self, stem: str, dims: tuple[int, ...], options: dict[str, Any]) -> Tensor:
        """Return a new tensor with the given options, named `stem`, with a number added if necessary."""
        known = Tensor.field_names
        if unknown := [str(name) for name in options if name not in known]:
            raise TypeError(f"a result has no option {', '.join(unknown)}; its options are {', '.join(sorted(known))}")
        name = options.pop("name", None)
        return self.tensor(self.make_unused_name(stem) if name is None else name, options.pop("dims", dims), **options)

    def _make_optional_output(
        self,
        wanted: Output | None,
        stem: str,
        dims: tuple[int, ...],
        data_type: DataType = DataType.FLOAT,
        strides: tuple[int, ...] | None = None,
    ) -> Tensor | None:
        """Return an optional result, in memory by default; None if it is not requested."""
        if wanted is None or wanted is False:
            return None
        if isinstance(wanted, Tensor):
            made = wanted
        else:
            options: dict[str, Any] = {} if wanted is True else dict(wanted)
            options.setdefault("data_type", data_type)
            if strides is not None:
                options.setdefault("strides", strides)
            made = self._make_tensor(stem, dims, options)
        check_dims(made, dims, stem.rpartition(".")[2])
        return made

    def _make_scalar_tensor(
        self, value: float | int | Tensor | None, stem: str, rank: int, **options: Any
    ) -> Tensor | None:
        """Return a by-value tensor for a number; a tensor or None is returned unchanged."""
        if value is None or isinstance(value, Tensor):
            return value
        return self.scalar(value, rank=rank, name=self.make_unused_name(stem), **options)

    def _choose_compute_type(self, given: DataType | None) -> DataType:
        return self.compute_type if given is None else given  # DataType.FLOAT is 0: "or" will not do

    def _add_operation_with_result(
        self, make: Callable[[Tensor], Op], stem: str, dims: tuple[int, ...], options: dict[str, Any]
    ) -> Tensor:
        """Create the result tensor, add the operation that `make` returns for it, and return the tensor."""
        result = self._get_result_tensor(stem, dims, options)
        self.ops.append(make(result))
        return result

    def _append_operation(self, kind: DescriptorType, name: str, /, **fields: Any) -> None:
        """Add an operation with these descriptor fields, without those that are None."""
        self.ops.append(Operation(kind, name, fields))
