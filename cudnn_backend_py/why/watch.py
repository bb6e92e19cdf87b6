"""Watch a program's attention calls: wrap torch's functions during the watch, and restore them afterwards.

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

from ..system.interruption import reraise_interruption, suppress_errors
from .calls import CallKind, CallSite, TorchBackendChoice, TorchCall, TorchSwitches
from .conditions import PACKED_SEQUENCES_NOTE
from .query_torch import (
    describe_tensor,
    find_autocast_dtype,
    query_torch,
    read_autocast_dtype,
    read_backend_order,
    read_switches,
)
from .wrapping import FunctionWrapper, WrapperRegistry, is_compiling

__all__ = ["AttentionCallWatch", "CallGroup"]

MAX_GROUPS = 10_000
MAX_RECENT_CALLS = 4  # shapes of a place that are looked for before all others
_TORCH_FOLDER = str(Path(torch.__file__).parent) + "/"
_TORCH_OPS_FILE = torch._ops.__file__
_PACKAGE_FOLDER = f"{Path(__file__).parents[1]}/"
_OWN_FOLDERS = tuple(f"{Path(__file__).parents[1] / room}/" for room in ("why", "system"))
_LIBRARY_FOLDERS = tuple({sysconfig.get_path(name) + "/" for name in ("stdlib", "purelib", "platlib")})
_TRACEBACK_LINE = re.compile(r'^\s*File "(.+?)", line (\d+), in (.+)$', re.MULTILINE)
_ARGUMENT_NAMES = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal", "scale", "enable_gqa")
_ARGUMENT_DEFAULTS = (None, None, None, None, 0.0, False, None, False)

#: A call that is looked for before all others: options and torch's state, what says whether tensors are as its own, the
#: types of device and data where autocast is on, the count of its group, and its code, which is found by where it is.
_RecentCall = tuple[list[Any], Callable[..., bool], "tuple[str, Any] | None", list[int], CodeType]


class _RecentCallsOfThread(threading.local):
    """A thread's name and recent calls by code position; the calls are None inside an already recorded call."""

    def __init__(self) -> None:
        self.name = threading.current_thread().name
        self.known: dict[int, list[_RecentCall]] | None = {}


@dataclass(slots=True)
class CallGroup:
    """Equal attention calls at one line in one thread: their count, and torch's report on the first call."""

    call: TorchCall
    place: CallSite
    answer: TorchBackendChoice
    thread: str
    compiled: bool = False
    counter: list[int] = field(default_factory=lambda: [0])

    @property
    def count(self) -> int:
        """The number of calls; for compiled code, the number of runs of the graph that contains the call."""
        return self.counter[0]


def _find_frame_of_calling_program() -> FrameType | None:
    """Return the frame that called a wrapped operator; None for torch, this package or a torch dispatch mode."""
    frame = sys._getframe(4)
    if frame.f_code.co_filename == _TORCH_OPS_FILE and frame.f_back is not None:
        frame = frame.f_back
    passed_on = frame.f_code.co_filename.startswith(
        (_TORCH_FOLDER, _PACKAGE_FOLDER)
    ) or frame.f_code.co_name.startswith("__torch_")
    return None if passed_on else frame


_compiled_groups: list[
    CallGroup
] = []  # attention in graphs that dynamo compiled in any watch: their runs are counted on


class AttentionCallWatch:
    """Records the attention calls of this process between :meth:`start` and :meth:`stop`.

    Parameters
    ----------
    as_cuda
        Whether tensors on the CPU and meta tensors are taken for tensors on a GPU: where a described GPU is judged for.
    """

    def __init__(self, as_cuda: bool = False) -> None:
        self.groups: dict[Any, CallGroup] = {}
        self.lost_calls = 0
        self.loss_reason = ""
        self.unobserved: list[str] = []
        self.direct_calls: Counter[str] = Counter()  # calls of an operator that is one backend's, by operator and place
        self._as_cuda = as_cuda
        self._lock = threading.Lock()
        self._earlier_counts: dict[int, int] = {}  # how often graphs had run before, by the id of their groups
        self._inner_files: dict[str, bool] = {}  # whether a file is torch's or of this package
        self._registry = WrapperRegistry(__package__ or "")
        self._thread = _RecentCallsOfThread()
        self._state_readers = [
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
        """Wrap torch's attention functions, including names under which modules imported them."""
        self._earlier_counts = {id(group): group.count for group in _compiled_groups}
        registry = self._registry
        registry.wrap(torch.nn.functional, "scaled_dot_product_attention", self._make_recorder(self._record_sdpa))
        for name in ("_native_multi_head_attention", "_transformer_encoder_layer_fwd"):
            if hasattr(torch, name):
                registry.wrap(torch, name, self._make_recorder(self._record_encoder_fast_path))
        self._wrap_operators()
        registry.wrap_after_import(
            "torch.nn.attention.flex_attention",
            "flex_attention",
            self._make_recorder_of_outermost_calls(self._record_flex_attention),
        )
        registry.wrap_after_import(
            "torch.nn.attention.varlen",
            "varlen_attn",
            self._make_recorder_of_outermost_calls(self._record_varlen_attention),
        )
        registry.run_after_import("torch.nn.attention.varlen", self._wrap_varlen_attention_with_out)
        registry.run_after_import("torch._dynamo.output_graph", self._watch_graphs_compiled_by_torch)

    def _wrap_operators(self) -> None:
        """Wrap attention operators in ``torch.ops.aten``: the general one, and those of each backend."""
        backends = [name for name in dir(torch) if name.startswith("_scaled_dot_product_")]
        for name in ("scaled_dot_product_attention", *backends):
            record_call = self._make_recorder(
                self._make_backend_counter(name) if name in backends else self._record_operator_call
            )
            packet = getattr(torch.ops.aten, name, None)
            for operator in [packet, *(getattr(packet, one) for one in packet.overloads())] if packet else ():
                self._registry.wrap(operator, "_op", record_call, everywhere=False)
            if name in backends:
                self._registry.wrap(torch, name, record_call, everywhere=False)

    def stop(self) -> None:
        """Restore the wrapped functions, including names under which the program imported them."""
        self._registry.restore()
        for group in _compiled_groups:
            if (count := group.count - self._earlier_counts.get(id(group), 0)) or id(group) not in self._earlier_counts:
                self._store_group(("compiled", id(group)), self._make_group_of_compiled_call(group, count))
        self._earlier_counts = {id(group): group.count for group in _compiled_groups}

    # Noting calls

    def _make_recorder(self, note: Callable[..., None]) -> FunctionWrapper:
        """Return a wrapper that records each call of a function."""

        def record_call(original: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            try:
                note(*args, **kwargs)
            except Exception as error:  # whatever it is, the program goes on
                reraise_interruption(error)
                self._record_watching_error(error)
            return original(*args, **kwargs)

        return FunctionWrapper(record_call)

    def _make_recorder_of_outermost_calls(self, note: Callable[..., None]) -> FunctionWrapper:
        """Return a wrapper that records a call of a public function, but no calls inside it."""

        def record_call(original: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            thread = self._thread
            known = thread.known
            if known is None or is_compiling():
                return original(*args, **kwargs)
            try:
                note(*args, **kwargs)
            except Exception as error:
                reraise_interruption(error)
                self._record_watching_error(error)
            thread.known = None
            try:
                return original(*args, **kwargs)
            finally:
                thread.known = known

        return FunctionWrapper(record_call)

    def _record_watching_error(self, error: Exception) -> None:
        self.lost_calls += 1
        self.loss_reason = self.loss_reason or f"{type(error).__name__}: {error}"

    def _find_caller_frame(self) -> FrameType:
        """Return the nearest frame outside torch and this package."""
        frame = sys._getframe(4)
        known = self._inner_files
        while known.get(name := frame.f_code.co_filename, True):
            if name not in known:
                known[name] = name.startswith((_TORCH_FOLDER, *_OWN_FOLDERS, "<frozen"))
            elif frame.f_back is None:
                break
            else:
                frame = frame.f_back
        return frame

    def _record_sdpa(
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
        frame = self._find_caller_frame()
        code, at = frame.f_code, frame.f_lasti
        grad, cudnn, flash, efficient, math, deterministic, warn_only, order = self._state_readers
        state = [  # numbers, and what torch keeps one of: quick to compare. The line of a frame is found by a search
            at, attn_mask is None, dropout_p, is_causal, scale, enable_gqa,
            grad(), cudnn(), flash(), efficient(), math(), deterministic(), warn_only(), order(),
        ]  # fmt: skip
        given = (query, key, value) if attn_mask is None else (query, key, value, attn_mask)
        latest = known.get(id(code) + at, ())
        for before, are_given, autocast, counter, _ in latest:
            if before != state or not are_given(*given):
                continue
            if autocast is None or torch.get_autocast_dtype(autocast[0]) == autocast[1]:
                counter[0] += 1
                return
        if is_compiling() or not isinstance(query, torch.Tensor):
            return  # a proxy of a tracer: what it makes of it is called later
        group = self._find_or_add_call_group(
            (thread.name, *state[1:-1], *state[-1]), frame, given, dropout_p, is_causal, scale, enable_gqa
        )
        group.counter[0] += 1
        if (are_as := _make_tensor_guard(given)) is not None:
            if len(known) > MAX_GROUPS:
                known.clear()
            device = query.device.type
            dtype = read_autocast_dtype(device)
            cast = None if dtype is None else (device, dtype)
            known[id(code) + at] = [(state, are_as, cast, group.counter, code), *latest[: MAX_RECENT_CALLS - 1]]

    def _record_operator_call(self, *args: Any, **kwargs: Any) -> None:
        """Record a call of torch's attention operator made directly by the program."""
        if _find_frame_of_calling_program() is not None:
            self._record_sdpa(*args, **kwargs)

    def _make_backend_counter(self, name: str) -> Callable[..., None]:
        """Return a function that counts the program's direct calls of one backend's operator."""

        def count_call(*_args: Any, **_kwargs: Any) -> None:
            frame = _find_frame_of_calling_program()
            if frame is None or self._thread.known is None or is_compiling():
                return
            file = frame.f_code.co_filename
            if not file.startswith("<") and "torchinductor" not in file:  # of a compiled program
                self.direct_calls[f"{name} at {file}:{frame.f_lineno}"] += 1

        return count_call

    def _find_or_add_call_group(
        self, key: tuple[Any, ...], frame: FrameType, given: tuple[Any, ...], *options: Any
    ) -> CallGroup:
        """Return the group of a call, by its line, options and tensor properties; add it if it is new."""
        code = frame.f_code
        key = (
            *(code.co_filename, code.co_name, frame.f_lineno),
            *key,
            find_autocast_dtype(given[0]),
            len(given),
            *map(_make_tensor_key, given),
        )
        group = self.groups.get(key)
        if group is None:
            q, k, v, mask = given if len(given) == 4 else (*given, None)
            group = self._add_group(key, frame, q, k, v, mask, *options)
        return group

    def _add_group(self, key: Any, frame: FrameType, q: Any, k: Any, v: Any, mask: Any, *options: Any) -> CallGroup:
        dropout, causal, scale, gqa = options
        cast = find_autocast_dtype(q)
        call = TorchCall(
            q=self._describe_tensor(q, cast and find_autocast_dtype(q)),
            k=self._describe_tensor(k, cast and find_autocast_dtype(k)),
            v=self._describe_tensor(v, cast and find_autocast_dtype(v)),
            mask=None if mask is None else self._describe_tensor(mask, cast and find_autocast_dtype(mask)),
            dropout=float(dropout),
            causal=bool(causal),
            scale=None if scale is None else float(scale),
            gqa=bool(gqa),
            grad_enabled=torch.is_grad_enabled(),
            switches=read_switches(),
            autocast=str(cast).removeprefix("torch.") if cast else "",
        )
        answer = TorchBackendChoice() if self._as_cuda else query_torch(q, k, v, mask, call)
        if answer.choice is not None:  # torch sets its order when it is first asked
            call = replace(call, switches=replace(call.switches, order=read_backend_order()))
        return self._store_group(key, CallGroup(call, _make_call_site(frame), answer, threading.current_thread().name))

    def _describe_tensor(self, tensor: Any, dtype: Any = None) -> Any:
        facts = describe_tensor(tensor, dtype)
        return replace(facts, device="cuda") if self._as_cuda else facts

    def _make_group_of_compiled_call(self, group: CallGroup, count: int) -> CallGroup:
        """Return the group of an attention call in a compiled graph, with the number of runs during this watch."""
        call = group.call
        if self._as_cuda:
            tensors = {name: replace(getattr(call, name), device="cuda") for name in "qkv"}
            mask = None if call.mask is None else replace(call.mask, device="cuda")
            call = replace(call, **tensors, mask=mask)
        return replace(group, call=call, counter=[count])

    def _store_group(self, key: Any, group: CallGroup) -> CallGroup:
        with self._lock:
            if len(self.groups) >= MAX_GROUPS:
                self.lost_calls += 1
                self.loss_reason = self.loss_reason or f"more than {MAX_GROUPS} kinds of calls"
                return group
            return self.groups.setdefault(key, group)

    def _record_flex_varlen_or_encoder_call(self, kind: CallKind, q: Any, k: Any, v: Any, **facts: Any) -> None:
        thread = self._thread
        if thread.known is None or is_compiling():
            return
        frame = self._find_caller_frame()
        key = (
            kind,
            thread.name,
            frame.f_code.co_filename,
            frame.f_lineno,
            *(_make_tensor_key(one)[0] for one in (q, k, v)),
            q.dtype,
        )
        group = self.groups.get(key)
        if group is None:
            seen = [self._describe_tensor(one) for one in (q, k, v)]
            call = TorchCall(
                kind=kind,
                q=seen[0],
                k=seen[1],
                v=seen[2],
                grad_enabled=torch.is_grad_enabled(),
                switches=read_switches(),
                **facts,
            )
            place = _make_call_site(frame)
            group = self._store_group(
                key, CallGroup(call, place, TorchBackendChoice(), threading.current_thread().name)
            )
        group.counter[0] += 1

    def _record_flex_attention(
        self, query: Any, key: Any, value: Any, *_: Any, enable_gqa: Any = False, **_more: Any
    ) -> None:
        if isinstance(query, torch.Tensor):
            self._record_flex_varlen_or_encoder_call("flex", query, key, value, gqa=bool(enable_gqa))

    def _record_varlen_attention(self, query: Any, key: Any, value: Any, *_: Any, **_more: Any) -> None:
        if isinstance(query, torch.Tensor):
            self._record_flex_varlen_or_encoder_call("varlen", query, key, value, note=_read_varlen_backend(query))

    def _wrap_varlen_attention_with_out(self) -> None:
        varlen = sys.modules["torch.nn.attention.varlen"]
        if hasattr(varlen, "varlen_attn_out"):  # older ones have none
            record_call = self._make_recorder_of_outermost_calls(
                lambda _, *args, **named: self._record_varlen_attention(*args, **named)
            )
            self._registry.wrap(varlen, "varlen_attn_out", record_call)

    def _record_encoder_fast_path(self, *args: Any, **_more: Any) -> None:
        if args and isinstance(args[0], torch.Tensor):
            others = args[1:3] if len(args) > 2 and isinstance(args[2], torch.Tensor) else (args[0], args[0])
            self._record_flex_varlen_or_encoder_call("encoder", args[0], *others)

    # Compiled programs

    def _watch_graphs_compiled_by_torch(self) -> None:
        graphs = getattr(sys.modules["torch._dynamo.output_graph"], "OutputGraph", None)
        original = getattr(graphs, "call_user_compiler", None)
        if graphs is None or original is None:
            self.unobserved.append(
                "attention in compiled programs: this torch has no compiler function that can be watched"
            )
            return
        watch = self

        @functools.wraps(original)
        def call_user_compiler(graph: Any, module: Any, *args: Any, **kwargs: Any) -> Any:
            groups = watch._record_calls_in_compiled_graph(module)
            made = original(graph, module, *args, **kwargs)
            return _wrap_to_count_calls(made, [group.counter for group in groups]) if groups else made

        self._registry.replace(graphs, "call_user_compiler", call_user_compiler)

    def _record_calls_in_compiled_graph(self, module: Any) -> list[CallGroup]:
        if self._thread.known is None:
            return []
        found: list[CallGroup] = []
        try:
            for node, state in _find_attention_nodes(module):
                found.append(_make_group_of_node(node, state))
            with self._lock:
                _compiled_groups.extend(found[: max(0, MAX_GROUPS - len(_compiled_groups))])
        except Exception as error:
            reraise_interruption(error)
            self._record_watching_error(error)
        return found


def _make_tensor_key(tensor: Any) -> tuple[Any, ...]:
    """Return a key of the tensor properties that torch's conditions check."""
    if not tensor.is_nested:
        return tensor.shape, tensor.stride(), tensor.dtype, tensor.requires_grad, tensor.device
    return (str(tensor.shape if tensor.layout == torch.jagged else tensor._nested_tensor_size().tolist()),)


def _make_tensor_guard(given: tuple[Any, ...]) -> Callable[..., bool] | None:
    """Return a function that checks whether other tensors have the same properties as these; None if impossible.

    It is dynamo's guard: of all it compares type, device, data type, sizes, strides, gradient and autocast in 0.2
    microseconds, where the attributes of three tensors take ten times as long to read, hash and compare.
    """
    if len({id(one) for one in given}) < len(given) or any(one.is_nested for one in given):
        return None
    with suppress_errors(Exception):
        from torch._C._dynamo.guards import TensorGuards

        sizes, strides = [list(one.shape) for one in given], [list(one.stride()) for one in given]
        check: Callable[..., bool] = TensorGuards(*given, dynamic_dims_sizes=sizes, dynamic_dims_strides=strides).check
        return check
    return None


@dataclass
class _TorchSettingsInGraph:
    """The settings of torch at an attention call in a graph: gradients, backends, autocast."""

    grad: bool
    switches: TorchSwitches
    autocast: dict[str, Any]


def _make_group_of_node(node: Any, state: _TorchSettingsInGraph) -> CallGroup:
    def read_value(one: Any) -> Any:
        return one.meta.get("example_value") if isinstance(one, torch.fx.Node) else one

    given = [read_value(one) for one in node.args]
    named = {name: read_value(one) for name, one in node.kwargs.items()}
    kind = _find_call_kind(node)
    if _find_function_name(node) == "_varlen_attn_out":
        given = given[1:]
    q, k, v = (given[at] if at < len(given) else named[_ARGUMENT_NAMES[at]] for at in range(3))
    if kind == "sdpa":
        rest = [
            given[at] if at < len(given) else named.get(_ARGUMENT_NAMES[at], _ARGUMENT_DEFAULTS[at])
            for at in range(3, 8)
        ]
        mask, dropout, causal, scale, gqa = rest
    else:
        mask, dropout, causal, scale, gqa = None, 0.0, False, None, False
    dtype = state.autocast.get(q.device.type)
    casts = [dtype if dtype is not None and one.is_floating_point() else None for one in (q, k, v)]
    call = TorchCall(
        kind=kind,
        q=describe_tensor(q, casts[0]),
        k=describe_tensor(k, casts[1]),
        v=describe_tensor(v, casts[2]),
        mask=None if mask is None else describe_tensor(mask),
        dropout=float(dropout or 0.0),
        causal=bool(causal),
        scale=scale if isinstance(scale, float) else None,
        gqa=bool(gqa),
        grad_enabled=state.grad,
        switches=state.switches,
        autocast=str(dtype).removeprefix("torch.") if casts[0] is not None and dtype != q.dtype else "",
        note=_read_varlen_backend(q) if kind == "varlen" else "",
    )
    place = _read_call_site(node.meta.get("stack_trace") or "")
    return CallGroup(call, place, TorchBackendChoice(), threading.current_thread().name, compiled=True)


def _find_function_name(node: Any) -> str:
    return str(getattr(node.target, "__name__", node.target)).removesuffix(".default")


def _find_call_kind(node: Any) -> CallKind:
    name = _find_function_name(node)
    return "flex" if "flex_attention" in name else "varlen" if "varlen" in name else "sdpa"


def _find_attention_nodes(module: Any) -> Iterator[tuple[Any, _TorchSettingsInGraph]]:
    """Yield the attention calls of a dynamo graph, each with the settings at that point."""
    autocast = {}
    for device in ("cuda", "cpu"):
        with suppress_errors(Exception):
            if torch.is_autocast_enabled(device):
                autocast[device] = torch.get_autocast_dtype(device)
    grad, switches = torch.is_grad_enabled(), read_switches()
    entered: dict[Any, tuple[str, Any]] = {}
    for node in module.graph.nodes:
        if node.op != "call_function":
            continue
        name = _find_function_name(node)
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
            switches = _apply_sdpa_kernel_context_manager(switches, *node.args, **node.kwargs)
        elif name in ("scaled_dot_product_attention", "flex_attention", "_varlen_attn", "_varlen_attn_out"):
            yield node, _TorchSettingsInGraph(grad, switches, dict(autocast))


def _apply_sdpa_kernel_context_manager(
    switches: TorchSwitches, backends: Any, set_priority: bool = False
) -> TorchSwitches:
    names = [one.name.partition("_")[0].lower() for one in backends]
    allowed = {name: name in names for name in ("cudnn", "flash", "efficient", "math")}
    order = switches.order
    if set_priority and order is not None:
        order = (*names, *(name for name in order if name not in names))
    return replace(switches, **allowed, order=order)


def _wrap_to_count_calls(made: Any, counters: list[list[int]]) -> Any:
    """Return a wrapper that counts the calls of a compiled function and has its attributes."""
    owner = getattr(made, "__self__", None)
    if owner is not None and hasattr(type(owner), "force_recompile"):  # torch would have done it, had it seen the owner
        type(owner).force_recompile(owner)
        made = owner.forward

    def count_and_call(*args: Any) -> Any:
        for counter in counters:
            counter[0] += 1
        return made(*args)

    return functools.update_wrapper(count_and_call, made)


def _read_varlen_backend(q: Any) -> str:
    """Return the backend that torch's rule selects for packed sequences, as text; empty if unknown or not on a GPU."""
    with suppress_errors(Exception):
        from torch.nn.attention.varlen import _should_use_cudnn

        if q.is_cuda and _should_use_cudnn(q.device.index or 0):
            return PACKED_SEQUENCES_NOTE
        if q.is_cuda:
            return "varlen_attn calls _should_use_cudnn(device), which returns False: flash attention runs"
    return ""


def _make_call_site(frame: FrameType) -> CallSite:
    code, program = frame.f_code, ""
    outer: FrameType | None = frame
    while outer is not None:
        name = outer.f_code.co_filename
        if not name.startswith((*_LIBRARY_FOLDERS, _TORCH_FOLDER, *_OWN_FOLDERS, "<")):
            program = f"{name}:{outer.f_lineno} in {outer.f_code.co_name}"
            break
        outer = outer.f_back
    place = CallSite(code.co_filename, frame.f_lineno, code.co_name)
    return place if program in ("", str(place)) else replace(place, program=program)


def _read_call_site(trace: str) -> CallSite:
    frames = [
        found
        for found in _TRACEBACK_LINE.findall(trace)
        if not found[0].startswith((_TORCH_FOLDER, *_OWN_FOLDERS, "<"))
    ]
    if not frames:
        return CallSite("?", 0, "a compiled graph")
    file, line, function = frames[-1]
    own = [one for one in frames if not one[0].startswith(_LIBRARY_FOLDERS)]
    program = f"{own[-1][0]}:{own[-1][1]} in {own[-1][2]}" if own and own[-1] != frames[-1] else ""
    return CallSite(file, int(line), function, program)
