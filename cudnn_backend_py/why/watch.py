"""Watch a program's attention calls: torch's functions are wrapped in the meantime and restored afterwards.

A wrapped function notes its call and passes it on. Under ``torch.compile`` it is as if it were not there, and attention
is read from the graph when dynamo hands it to a compiler.
"""

from __future__ import annotations

import functools
import re
import sys
import sysconfig
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import torch

from ..system.interruption import ignoring, pass_interruption
from .calls import Answer, Kind, Place, Switches, TorchCall
from .gates import CUDNN_TAKES_PACKED
from .query_torch import autocast_default, autocast_type, describe, query_torch, read_order, read_switches
from .wrapping import Around, Wrapped, is_compiling

__all__ = ["Row", "Watch"]

MOST_ROWS = 10_000
MOST_KNOWN = 4  # shapes of a place that are looked for before all others
_TORCH = str(Path(torch.__file__).parent) + "/"
_OPERATORS = torch._ops.__file__
_HERE = f"{Path(__file__).parents[1]}/"
_OURS = tuple(f"{Path(__file__).parents[1] / room}/" for room in ("why", "system"))
_LIBRARIES = tuple({sysconfig.get_path(name) + "/" for name in ("stdlib", "purelib", "platlib")})
_LINE = re.compile(r'^\s*File "(.+?)", line (\d+), in (.+)$', re.MULTILINE)
_NAMES = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal", "scale", "enable_gqa")
_DEFAULTS = (None, None, None, None, 0.0, False, None, False)

#: A call that is looked for before all others: options and torch's state, what says whether tensors are as its own, the
#: types of device and data where autocast is on, the count of its row, and its code, which is found by where it is.
_Known = tuple[list[Any], Callable[..., bool], "tuple[str, Any] | None", list[int], CodeType]


class _Thread(threading.local):
    """A thread's name and its latest calls by place and options; None inside a call that counts as one."""

    def __init__(self) -> None:
        self.name = threading.current_thread().name
        self.known: dict[int, list[_Known]] | None = {}


@dataclass(slots=True)
class Row:
    """Calls of one kind at one place in one thread: their number, and torch's report about the first."""

    call: TorchCall
    place: Place
    answer: Answer
    thread: str
    compiled: bool = False
    counted: list[int] = field(default_factory=lambda: [0])

    @property
    def count(self) -> int:
        """The number of calls, or for a compiled program of runs of its graph."""
        return self.counted[0]


def _calling_program() -> FrameType | None:
    """Return the caller of a wrapped operator; None for torch, this package or a mode."""
    frame = sys._getframe(4)
    if frame.f_code.co_filename == _OPERATORS and frame.f_back is not None:
        frame = frame.f_back
    passed_on = frame.f_code.co_filename.startswith((_TORCH, _HERE)) or frame.f_code.co_name.startswith("__torch_")
    return None if passed_on else frame


_compiled: list[Row] = []  # attention in graphs that dynamo compiled in any watch: their runs are counted on


class Watch:
    """The calls of attention of this process, between :meth:`start` and :meth:`stop`.

    Parameters
    ----------
    as_cuda
        Whether tensors on the CPU and meta tensors are taken for tensors on a GPU: where a described GPU is judged for.
    """

    def __init__(self, as_cuda: bool = False) -> None:
        self.rows: dict[Any, Row] = {}
        self.lost = 0
        self.lost_why = ""
        self.unseen: list[str] = []
        self.direct: Counter[str] = Counter()  # calls of an operator that is one backend's, by operator and place
        self._as_cuda = as_cuda
        self._lock = threading.Lock()
        self._ran: dict[int, int] = {}  # how often graphs had run before, by the id of their rows
        self._is_inner: dict[str, bool] = {}  # whether a file is torch's or of this package
        self._wrapped = Wrapped(__package__ or "")
        self._thread = _Thread()
        self._read = [
            torch.is_grad_enabled,
            *(
                getattr(torch._C, f"_get_{name}", bool)
                for name in (
                    "cudnn_sdp_enabled",
                    "flash_sdp_enabled",
                    "mem_efficient_sdp_enabled",
                    "math_sdp_enabled",
                    "deterministic_algorithms",
                    "deterministic_algorithms_warn_only",
                )
            ),
            getattr(torch._C, "_get_sdp_priority_order", tuple),
        ]

    # Wrapping and giving back

    def start(self) -> None:
        """Wrap torch's attention functions, also under the names that modules imported."""
        self._ran = {id(row): row.count for row in _compiled}
        wrapped = self._wrapped
        wrapped.wrap(torch.nn.functional, "scaled_dot_product_attention", self._make_recorder(self._note_sdpa))
        for name in ("_native_multi_head_attention", "_transformer_encoder_layer_fwd"):
            if hasattr(torch, name):
                wrapped.wrap(torch, name, self._make_recorder(self._note_encoder))
        self._wrap_operators()
        wrapped.wrap_later(
            "torch.nn.attention.flex_attention", "flex_attention", self._make_whole_recorder(self._note_flex)
        )
        wrapped.wrap_later("torch.nn.attention.varlen", "varlen_attn", self._make_whole_recorder(self._note_varlen))
        wrapped.later("torch.nn.attention.varlen", self._wrap_varlen_out)
        wrapped.later("torch._dynamo.output_graph", self._watch_compiler)

    def _wrap_operators(self) -> None:
        """Wrap functions called through ``torch.ops.aten``: the operator, and those of single backends."""
        backends = [name for name in dir(torch) if name.startswith("_scaled_dot_product_")]
        for name in ("scaled_dot_product_attention", *backends):
            around = self._make_recorder(self._note_direct(name) if name in backends else self._note_operator)
            packet = getattr(torch.ops.aten, name, None)
            for operator in [packet, *(getattr(packet, one) for one in packet.overloads())] if packet else ():
                self._wrapped.wrap(operator, "_op", around, everywhere=False)
            if name in backends:
                self._wrapped.wrap(torch, name, around, everywhere=False)

    def stop(self) -> None:
        """Restore the wrapped functions, also under names taken by the program."""
        self._wrapped.restore()
        for row in _compiled:
            if (count := row.count - self._ran.get(id(row), 0)) or id(row) not in self._ran:
                self._keep(("compiled", id(row)), self._counted_row(row, count))
        self._ran = {id(row): row.count for row in _compiled}

    # Noting calls

    def _make_recorder(self, note: Callable[..., None]) -> Around:
        """Return the wrapper of a function that records its calls."""

        def around(original: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            try:
                note(*args, **kwargs)
            except Exception as error:  # whatever it is, the program goes on
                pass_interruption(error)
                self._note_failure(error)
            return original(*args, **kwargs)

        return Around(around)

    def _make_whole_recorder(self, note: Callable[..., None]) -> Around:
        """Return the wrapper of a public function, inside which calls are not recorded."""

        def around(original: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            thread = self._thread
            known = thread.known
            if known is None or is_compiling():
                return original(*args, **kwargs)
            try:
                note(*args, **kwargs)
            except Exception as error:
                pass_interruption(error)
                self._note_failure(error)
            thread.known = None
            try:
                return original(*args, **kwargs)
            finally:
                thread.known = known

        return Around(around)

    def _note_failure(self, error: Exception) -> None:
        self.lost += 1
        self.lost_why = self.lost_why or f"{type(error).__name__}: {error}"

    def _frame(self) -> FrameType:
        """Return the nearest frame outside torch and this package."""
        frame = sys._getframe(4)
        known = self._is_inner
        while known.get(name := frame.f_code.co_filename, True):
            if name not in known:
                known[name] = name.startswith((_TORCH, *_OURS, "<frozen"))
            elif frame.f_back is None:
                break
            else:
                frame = frame.f_back
        return frame

    def _note_sdpa(
        self,
        query: Any,
        key: Any,
        value: Any,
        attn_mask: Any = None,
        dropout_p: Any = 0.0,
        is_causal: Any = False,
        scale: Any = None,
        enable_gqa: Any = False,
        **_newer: Any,
    ) -> None:
        thread = self._thread
        known = thread.known
        if known is None:
            return
        frame = self._frame()
        code, at = frame.f_code, frame.f_lasti
        grad, cudnn, flash, efficient, math, deterministic, warn_only, order = self._read
        state = [  # numbers, and what torch keeps one of: quick to compare. The line of a frame is found by a search
            at, attn_mask is None, dropout_p, is_causal, scale, enable_gqa,
            grad(), cudnn(), flash(), efficient(), math(), deterministic(), warn_only(), order(),
        ]  # fmt: skip
        given = (query, key, value) if attn_mask is None else (query, key, value, attn_mask)
        latest = known.get(id(code) + at, ())
        for before, are_given, autocast, counted, _ in latest:
            if before != state or not are_given(*given):
                continue
            if autocast is None or torch.get_autocast_dtype(autocast[0]) == autocast[1]:
                counted[0] += 1
                return
        if is_compiling() or not isinstance(query, torch.Tensor):
            return  # a proxy of a tracer: what it makes of it is called later
        row = self._row_at(
            (thread.name, *state[1:-1], *state[-1]), frame, given, dropout_p, is_causal, scale, enable_gqa
        )
        row.counted[0] += 1
        if (are_as := _make_quick_check(given)) is not None:
            if len(known) > MOST_ROWS:
                known.clear()
            device = query.device.type
            dtype = autocast_default(device)
            cast = None if dtype is None else (device, dtype)
            known[id(code) + at] = [(state, are_as, cast, row.counted, code), *latest[: MOST_KNOWN - 1]]

    def _note_operator(self, *args: Any, **kwargs: Any) -> None:
        """Record a call of torch's attention operator made directly by the program."""
        if _calling_program() is not None:
            self._note_sdpa(*args, **kwargs)

    def _note_direct(self, name: str) -> Callable[..., None]:
        """Return a counter of the program's calls of one backend's operator, where torch makes no choice."""

        def note(*_args: Any, **_kwargs: Any) -> None:
            frame = _calling_program()
            if frame is None or self._thread.known is None or is_compiling():
                return
            file = frame.f_code.co_filename
            if not file.startswith("<") and "torchinductor" not in file:  # of a compiled program
                self.direct[f"{name} at {file}:{frame.f_lineno}"] += 1

        return note

    def _row_at(self, key: tuple[Any, ...], frame: FrameType, given: tuple[Any, ...], *options: Any) -> Row:
        """Return the row of a call with new tensors."""
        code = frame.f_code
        key = (
            *(code.co_filename, code.co_name, frame.f_lineno),
            *key,
            autocast_type(given[0]),
            len(given),
            *map(_key_of, given),
        )
        row = self.rows.get(key)
        if row is None:
            q, k, v, mask = given if len(given) == 4 else (*given, None)
            row = self._first_row(key, frame, q, k, v, mask, *options)
        return row

    def _first_row(self, key: Any, frame: FrameType, q: Any, k: Any, v: Any, mask: Any, *options: Any) -> Row:
        dropout, causal, scale, gqa = options
        cast = autocast_type(q)
        call = TorchCall(
            q=self._find_row(q, cast and autocast_type(q)),
            k=self._find_row(k, cast and autocast_type(k)),
            v=self._find_row(v, cast and autocast_type(v)),
            mask=None if mask is None else self._find_row(mask, cast and autocast_type(mask)),
            dropout=float(dropout),
            causal=bool(causal),
            scale=None if scale is None else float(scale),
            gqa=bool(gqa),
            grad_enabled=torch.is_grad_enabled(),
            switches=read_switches(),
            autocast=str(cast).removeprefix("torch.") if cast else "",
        )
        answer = Answer() if self._as_cuda else query_torch(q, k, v, mask, call)
        if answer.choice is not None:  # torch sets its order when it is first asked
            call = replace(call, switches=replace(call.switches, order=read_order()))
        return self._keep(key, Row(call, _place_of(frame), answer, threading.current_thread().name))

    def _find_row(self, tensor: Any, dtype: Any = None) -> Any:
        facts = describe(tensor, dtype)
        return replace(facts, device="cuda") if self._as_cuda else facts

    def _counted_row(self, row: Row, count: int) -> Row:
        """Return the row of a compiled call with its runs in this watch."""
        call = row.call
        if self._as_cuda:
            tensors = {name: replace(getattr(call, name), device="cuda") for name in "qkv"}
            mask = None if call.mask is None else replace(call.mask, device="cuda")
            call = replace(call, **tensors, mask=mask)
        return replace(row, call=call, counted=[count])

    def _keep(self, key: Any, row: Row) -> Row:
        with self._lock:
            if len(self.rows) >= MOST_ROWS:
                self.lost += 1
                self.lost_why = self.lost_why or f"more than {MOST_ROWS} kinds of calls"
                return row
            return self.rows.setdefault(key, row)

    def _note_other(self, kind: Kind, q: Any, k: Any, v: Any, **facts: Any) -> None:
        thread = self._thread
        if thread.known is None or is_compiling():
            return
        frame = self._frame()
        key = (
            kind,
            thread.name,
            frame.f_code.co_filename,
            frame.f_lineno,
            *(_key_of(one)[0] for one in (q, k, v)),
            q.dtype,
        )
        row = self.rows.get(key)
        if row is None:
            seen = [self._find_row(one) for one in (q, k, v)]
            call = TorchCall(
                kind=kind,
                q=seen[0],
                k=seen[1],
                v=seen[2],
                grad_enabled=torch.is_grad_enabled(),
                switches=read_switches(),
                **facts,
            )
            place = _place_of(frame)
            row = self._keep(key, Row(call, place, Answer(), threading.current_thread().name))
        row.counted[0] += 1

    def _note_flex(self, query: Any, key: Any, value: Any, *_: Any, enable_gqa: Any = False, **_more: Any) -> None:
        if isinstance(query, torch.Tensor):
            self._note_other("flex", query, key, value, gqa=bool(enable_gqa))

    def _note_varlen(self, query: Any, key: Any, value: Any, *_: Any, **_more: Any) -> None:
        if isinstance(query, torch.Tensor):
            self._note_other("varlen", query, key, value, note=_varlen_note(query))

    def _wrap_varlen_out(self) -> None:
        varlen = sys.modules["torch.nn.attention.varlen"]
        if hasattr(varlen, "varlen_attn_out"):  # older ones have none
            around = self._make_whole_recorder(lambda _, *args, **named: self._note_varlen(*args, **named))
            self._wrapped.wrap(varlen, "varlen_attn_out", around)

    def _note_encoder(self, *args: Any, **_more: Any) -> None:
        if args and isinstance(args[0], torch.Tensor):
            others = args[1:3] if len(args) > 2 and isinstance(args[2], torch.Tensor) else (args[0], args[0])
            self._note_other("encoder", args[0], *others)

    # Compiled programs

    def _watch_compiler(self) -> None:
        graphs = getattr(sys.modules["torch._dynamo.output_graph"], "OutputGraph", None)
        original = getattr(graphs, "call_user_compiler", None)
        if graphs is None or original is None:
            self.unseen.append("attention in compiled programs: this torch has no place to watch its compiler at")
            return
        watch = self

        @functools.wraps(original)
        def call_user_compiler(graph: Any, module: Any, *args: Any, **kwargs: Any) -> Any:
            rows = watch._note_graph(module)
            made = original(graph, module, *args, **kwargs)
            return _count_calls(made, [row.counted for row in rows]) if rows else made

        self._wrapped.replace(graphs, "call_user_compiler", call_user_compiler)

    def _note_graph(self, module: Any) -> list[Row]:
        if self._thread.known is None:
            return []
        found: list[Row] = []
        try:
            for node, state in _attention_in(module):
                found.append(_row_of_node(node, state))
            with self._lock:
                _compiled.extend(found[: max(0, MOST_ROWS - len(_compiled))])
        except Exception as error:
            pass_interruption(error)
            self._note_failure(error)
        return found


def _key_of(tensor: Any) -> tuple[Any, ...]:
    """Return the tensor properties that torch's conditions read."""
    if not tensor.is_nested:
        return tensor.shape, tensor.stride(), tensor.dtype, tensor.requires_grad, tensor.device
    return (str(tensor.shape if tensor.layout == torch.jagged else tensor._nested_tensor_size().tolist()),)


def _make_quick_check(given: tuple[Any, ...]) -> Callable[..., bool] | None:
    """Return a quick check whether other tensors have the same properties; None if there is none.

    It is dynamo's guard: of all it compares type, device, data type, sizes, strides, gradient and autocast in 0.2
    microseconds, where the attributes of three tensors take ten times as long to read, hash and compare.
    """
    if len({id(one) for one in given}) < len(given) or any(one.is_nested for one in given):
        return None
    with ignoring(Exception):
        from torch._C._dynamo.guards import TensorGuards

        sizes, strides = [list(one.shape) for one in given], [list(one.stride()) for one in given]
        check: Callable[..., bool] = TensorGuards(*given, dynamic_dims_sizes=sizes, dynamic_dims_strides=strides).check
        return check
    return None


@dataclass
class _State:
    """Settings made by graph nodes before the attention."""

    grad: bool
    switches: Switches
    autocast: dict[str, Any]


def _row_of_node(node: Any, state: _State) -> Row:
    def value(one: Any) -> Any:
        return one.meta.get("example_value") if isinstance(one, torch.fx.Node) else one

    given = [value(one) for one in node.args]
    named = {name: value(one) for name, one in node.kwargs.items()}
    kind = _kind_of(node)
    if _name_of(node) == "_varlen_attn_out":
        given = given[1:]
    q, k, v = (given[at] if at < len(given) else named[_NAMES[at]] for at in range(3))
    if kind == "sdpa":
        rest = [given[at] if at < len(given) else named.get(_NAMES[at], _DEFAULTS[at]) for at in range(3, 8)]
        mask, dropout, causal, scale, gqa = rest
    else:
        mask, dropout, causal, scale, gqa = None, 0.0, False, None, False
    dtype = state.autocast.get(q.device.type)
    casts = [dtype if dtype is not None and one.is_floating_point() else None for one in (q, k, v)]
    call = TorchCall(
        kind=kind,
        q=describe(q, casts[0]),
        k=describe(k, casts[1]),
        v=describe(v, casts[2]),
        mask=None if mask is None else describe(mask),
        dropout=float(dropout or 0.0),
        causal=bool(causal),
        scale=scale if isinstance(scale, float) else None,
        gqa=bool(gqa),
        grad_enabled=state.grad,
        switches=state.switches,
        autocast=str(dtype).removeprefix("torch.") if casts[0] is not None and dtype != q.dtype else "",
        note=_varlen_note(q) if kind == "varlen" else "",
    )
    place = _place_in(node.meta.get("stack_trace") or "")
    return Row(call, place, Answer(), threading.current_thread().name, compiled=True)


def _name_of(node: Any) -> str:
    return str(getattr(node.target, "__name__", node.target)).removesuffix(".default")


def _kind_of(node: Any) -> Kind:
    name = _name_of(node)
    return "flex" if "flex_attention" in name else "varlen" if "varlen" in name else "sdpa"


def _attention_in(module: Any) -> Iterator[tuple[Any, _State]]:
    """Yield the attention calls in a dynamo graph, with the settings at that point."""
    autocast = {}
    for device in ("cuda", "cpu"):
        with ignoring(Exception):
            if torch.is_autocast_enabled(device):
                autocast[device] = torch.get_autocast_dtype(device)
    grad, switches = torch.is_grad_enabled(), read_switches()
    entered: dict[Any, tuple[str, Any]] = {}
    for node in module.graph.nodes:
        if node.op != "call_function":
            continue
        name = _name_of(node)
        if name == "_enter_autocast":
            device, dtype, enabled = (*node.args, None, True)[:3]
            entered[node] = (device, autocast.get(device))
            if enabled:
                autocast[device] = dtype or torch.get_autocast_dtype(device)
            else:
                autocast.pop(device, None)
        elif name == "_exit_autocast" and node.args[0] in entered:
            device, before = entered[node.args[0]]
            autocast.pop(device, None)
            autocast |= {} if before is None else {device: before}
        elif name == "_set_grad_enabled":
            grad = bool(node.args[0])
        elif name == "_sdpa_kernel":
            switches = _is_switched(switches, *node.args, **node.kwargs)
        elif name in ("scaled_dot_product_attention", "flex_attention", "_varlen_attn", "_varlen_attn_out"):
            yield node, _State(grad, switches, dict(autocast))


def _is_switched(switches: Switches, backends: Any, set_priority: bool = False) -> Switches:
    names = [one.name.partition("_")[0].lower() for one in backends]
    allowed = {name: name in names for name in ("cudnn", "flash", "efficient", "math")}
    order = switches.order
    if set_priority and order is not None:
        order = (*names, *(name for name in order if name not in names))
    return replace(switches, **allowed, order=order)


def _count_calls(made: Any, counters: list[list[int]]) -> Any:
    """Return a compiled function that counts its calls, with torch's attributes on it."""
    owner = getattr(made, "__self__", None)
    if owner is not None and hasattr(type(owner), "force_recompile"):  # torch would have done it, had it seen the owner
        type(owner).force_recompile(owner)
        made = owner.forward

    def counted(*args: Any) -> Any:
        for counter in counters:
            counter[0] += 1
        return made(*args)

    return functools.update_wrapper(counted, made)


def _varlen_note(q: Any) -> str:
    """Return the result of torch's rule for packed sequences; empty without one, or if q is not on a GPU."""
    with ignoring(Exception):
        from torch.nn.attention.varlen import _should_use_cudnn

        if q.is_cuda and _should_use_cudnn(q.device.index or 0):
            return CUDNN_TAKES_PACKED
        if q.is_cuda:
            return "varlen_attn asks _should_use_cudnn(device), which answers False: flash attention runs"
    return ""


def _place_of(frame: FrameType) -> Place:
    code, program = frame.f_code, ""
    outer: FrameType | None = frame
    while outer is not None:
        name = outer.f_code.co_filename
        if not name.startswith((*_LIBRARIES, _TORCH, *_OURS, "<")):
            program = f"{name}:{outer.f_lineno} in {outer.f_code.co_name}"
            break
        outer = outer.f_back
    place = Place(code.co_filename, frame.f_lineno, code.co_name)
    return place if program in ("", str(place)) else replace(place, program=program)


def _place_in(trace: str) -> Place:
    frames = [found for found in _LINE.findall(trace) if not found[0].startswith((_TORCH, *_OURS, "<"))]
    if not frames:
        return Place("?", 0, "a compiled graph")
    file, line, function = frames[-1]
    own = [one for one in frames if not one[0].startswith(_LIBRARIES)]
    program = f"{own[-1][0]}:{own[-1][1]} in {own[-1][2]}" if own and own[-1] != frames[-1] else ""
    return Place(file, int(line), function, program)
