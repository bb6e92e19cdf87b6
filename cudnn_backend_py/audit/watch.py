"""Watch a program's calls and check samples: torch's attention, this package's operators and its frontend.

An unsampled call is counted down. A sampled one is checked by more work for the GPU, on the call's stream: what that
finds comes to the host by a copy that no one waits for, and is looked at when it is there. No stream is synchronised.
"""

from __future__ import annotations

import random
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch

from ..graph import Graph
from ..native.cuda import is_capturing, query_pointer, relax_stream_capture_mode
from ..native.find import find_loaded_libraries
from ..system.interruption import reraise_interruption
from ..system.version import Version, __version__
from ..why.wrapping import FunctionWrapper, WrapperRegistry, is_compiling, measure_wrapper_overhead
from .budget import Budget, SampleCost
from .calls import (
    READERS,
    AttentionCall,
    UncheckedCallError,
    bind_arguments,
    build_graph_of_call,
    copy_tensor_bytes_to_host,
    copy_with_strides,
)
from .case import Case, CaseFolder
from .judging import BackgroundCaseChecker
from .report import AuditReport, StoredCase
from .rows import FACTS, check_sampled_gradients, check_sampled_output_rows

__all__ = ["RunningAudit"]

MOST_CALL_BYTES = 1 << 30  # of the tensors of a call that is sampled
MOST_PENDING = 4  # calls whose tensors are held until the GPU has checked them
_OURS = str(Path(__file__).parents[1]) + "/"
_TORCH = str(Path(torch.__file__).parent) + "/"
_inside = threading.local()


@dataclass(eq=False)
class _PendingCheck:
    """A check that runs on the GPU: its result buffers, its CUDA events, and a function that makes a case of it."""

    account: SampleCost
    facts: dict[str, Any]
    began: Any
    ended: Any
    case: Callable[[Mapping[str, list[float]]], Case]


class _SampledCall(Protocol):
    """A call that is checked: its cost, the kinds of its checks, its arguments, and a method that checks the result."""

    account: SampleCost
    kinds: tuple[str, ...]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    def check_result(self, result: Any) -> None:
        """Check the result of the call."""


@dataclass(slots=True)
class _AuditedFunction:
    """One audited function: its wrapper, its number of calls, and the time from which it may be sampled again."""

    name: str
    around: FunctionWrapper
    passed_on: int = 0  # to the original by the countdown, when that was set last
    calls: int = 0
    tried: int = 0  # calls that were read to be sampled, also those that cannot be
    kinds: tuple[str, ...] = ("",)  # of checks of the last sample: what the next one will take
    paid_at: float = 0.0
    passed_over: int = 0  # of calls that were due, since that was not paid for
    counted: int = 0  # of the calls, as far as the budget knows
    counting_s: float = 0.0  # of those that were passed over, as far as the budget does not know

    def count_calls(self, passed_on: int) -> None:
        """Count the calls since the last count; let the wrapper pass on `passed_on` more calls without sampling."""
        self.calls += self.passed_on - self.around.remaining_unrecorded_calls
        self.around.remaining_unrecorded_calls = self.passed_on = passed_on

    def pop_call_counting_seconds(self, passing_s: float) -> float:
        """Return the seconds of counting calls since this was last called, if passing on one call takes `passing_s`."""
        seconds = (self.calls - self.counted) * passing_s + self.counting_s
        self.counted, self.counting_s = self.calls, 0.0
        return seconds


@dataclass
class RunningAudit:
    """The audit of this process between :meth:`start` and :meth:`stop`.

    Parameters
    ----------
    every
        One call in so many is sampled, at random distances; the `first` ones of each function all are.
    cost
        Which part of the time it may take, the first checks included: calls that are due after the `first` ones are
        passed over until it pays for them.
    folder
        Where cases are kept.
    report
        What it found.
    """

    every: int
    cost: float
    folder: CaseFolder
    report: AuditReport
    first: int = 16
    patience_s: float = 60.0
    seed: int = 0
    _wrapped: WrapperRegistry = field(default_factory=lambda: WrapperRegistry(__package__ or ""))
    _pending: list[_PendingCheck] = field(default_factory=list)
    _entry_points: dict[tuple[str, str], _AuditedFunction] = field(default_factory=dict)
    _generators: dict[int, Any] = field(default_factory=dict)
    _kinds: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self._lock = threading.Lock()
        self._random = random.Random(self.seed)
        self._budget = Budget(self.cost)
        self._passing_s = measure_wrapper_overhead()
        self._judging = BackgroundCaseChecker(
            self._store_case, relax_stream_capture_mode
        )  # which spoils no capture in progress

    # Wrapping

    def start(self) -> None:
        """Wrap the audited functions of torch and this package, or, if their module is not imported, on its import."""
        ours = f"{__name__.rpartition('.')[0].rpartition('.')[0]}."
        self._wrapped.wrap(torch.nn.functional, "scaled_dot_product_attention", self._make_wrapper("torch", "torch"))
        for name in ("attention", "attention_varlen", "attention_with_kvcache"):
            self._wrapped.wrap_after_import(f"{ours}torch_ops.functions", name, self._make_wrapper("operators", name))
        around = self._make_wrapper("operators", "torch")
        self._wrapped.wrap_after_import(f"{ours}torch_ops.drop_in", "scaled_dot_product_attention", around)
        self._wrapped.run_after_import(
            f"{ours}frontend.graphs", partial(self._wrap_frontend_execute, f"{ours}frontend.graphs")
        )
        self._budget.start()

    def _wrap_frontend_execute(self, module: str) -> None:
        for name in ("execute", "execute_plan_at_index"):
            self._wrapped.wrap(sys.modules[module].pygraph, name, self._make_wrapper("frontend", name))

    @contextmanager
    def pause(self) -> Iterator[None]:
        """Restore the wrapped functions for a block, which does not count as watched time."""
        self._budget.pause()
        self._wrapped.restore()
        yield
        self.start()

    def stop(self) -> None:
        """Restore the wrapped functions and finish the checks."""
        began = time.perf_counter()
        budget, report = self._budget, self.report
        budget.pause()
        self._wrapped.restore()
        report.elapsed_s = budget.elapsed_s
        self._process_finished_checks(wait=True)
        self._judging.finish(self.patience_s)
        report.unjudged.update(self._judging.unjudged)
        report.checked["graphs by the interpreter"] += self._judging.judged
        for entry_point in self._entry_points.values():
            entry_point.count_calls(sys.maxsize)  # who still holds a wrapper is passed on
            budget.add_call_counting_seconds(entry_point.pop_call_counting_seconds(self._passing_s))
            report.calls += entry_point.calls
            report.passed_over.update(
                {self._explain_exceeded_budget: entry_point.passed_over} if entry_point.passed_over else {}
            )
        report.counted_s, report.setup_s = budget.counted_s, budget.setup_s
        report.host_s, report.gpu_s = budget.host_s, budget.gpu_s
        report.waited_s = time.perf_counter() - began

    def _make_wrapper(self, name: str, how: str) -> FunctionWrapper:
        """Return the wrapper of an audited function; `how` names the signature by which to read its arguments."""
        if (name, how) in self._entry_points:
            return self._entry_points[name, how].around
        read: Any = partial(_SampledExecution, self, how)
        if name != "frontend":
            read = partial(_SampledAttention, self, name, READERS["torch" if how == "torch" else "operators"])

        def call_and_sample(original: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            if getattr(_inside, "busy", False) or is_compiling():
                return original(*args, **kwargs)
            return self._call_and_check_within_budget(entry_point, read, original, args, kwargs)

        entry_point = self._entry_points[name, how] = _AuditedFunction(name, FunctionWrapper(call_and_sample))
        return entry_point.around

    # Which calls

    def _call_and_check_within_budget(
        self, entry_point: _AuditedFunction, read: Any, original: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Call the original function for a call that is due to be sampled; check its result if the budget allows."""
        began = time.perf_counter()
        is_first = entry_point.tried < self.first
        entry_point.calls += 1
        entry_point.count_calls(0 if is_first else int(self._random.random() * (2 * self.every - 1)))
        if not is_first and self._budget.elapsed_s < entry_point.paid_at:
            entry_point.passed_over += 1
            entry_point.counting_s += time.perf_counter() - began
            return original(*args, **kwargs)
        self._budget.add_call_counting_seconds(entry_point.pop_call_counting_seconds(self._passing_s))
        found: _SampledCall | None = None
        try:
            if why := self._explain_skipped_call(entry_point, is_first):
                self.report.passed_over[why] += 1
            else:
                entry_point.tried += 1
                found = read(original, args, kwargs)
        except Exception as error:  # whatever it is, the program goes on
            reraise_interruption(error)
            self._count_unchecked_call(error)
        spent = time.perf_counter() - began
        if found is not None:
            args, kwargs = found.args, found.kwargs
        _inside.busy = True
        try:
            result = original(*args, **kwargs)
        finally:
            _inside.busy = False
            began = time.perf_counter()
        if found is not None:
            entry_point.kinds = found.kinds
            self.report.sampled[entry_point.name] += 1
            try:
                found.check_result(result)
            except Exception as error:
                reraise_interruption(error)
                self._count_unchecked_call(error)
        account = self._budget if found is None else found.account
        account.add_seconds(spent + time.perf_counter() - began)
        entry_point.paid_at = self._budget.find_elapsed_s_when_samples_are_affordable(*entry_point.kinds)
        return result

    def _explain_skipped_call(self, entry_point: _AuditedFunction, is_first: bool) -> str:
        """Return the reason not to sample a call that is due; empty if it can be sampled."""
        if torch.cuda.is_available() and torch.cuda.is_current_stream_capturing():
            return "the call was made while a CUDA graph was captured, which the audit does not check"
        self._process_finished_checks()
        if len(self._pending) >= MOST_PENDING or (entry_point.name == "frontend" and self._judging.is_full):
            return "checks of earlier ones were under way"
        if not is_first and self._budget.elapsed_s < self._budget.find_elapsed_s_when_samples_are_affordable(
            *entry_point.kinds
        ):
            return self._explain_exceeded_budget
        return ""

    @property
    def _explain_exceeded_budget(self) -> str:
        return f"an audit may take {self.cost:.1%} of the time"

    def _get_random_generator(self, device: int) -> Any:
        if device not in self._generators:
            self._generators[device] = torch.Generator(device=f"cuda:{device}").manual_seed(self.seed)
        return self._generators[device]

    def _count_unchecked_call(self, error: Exception) -> None:
        said = str(error) if isinstance(error, UncheckedCallError) else f"{type(error).__name__}: {error}"
        self.report.unjudged[said.partition("\n")[0][:200]] += 1

    # Attention

    def check_on_gpu(
        self,
        account: SampleCost,
        make: Callable[[Any], dict[str, Any]],
        device: int,
        tensors: Mapping[str, Any],
        about: Any,
    ) -> None:
        """Start the check of a call on the GPU; `tensors` are copied first, as the program may overwrite them."""
        with torch.no_grad():
            began, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            began.record()
            held = {name: copy_with_strides(x) for name, x in tensors.items() if x is not None}
            facts = make(self._get_random_generator(device))
            there = {name: torch.empty(len(FACTS), dtype=torch.float64, pin_memory=True) for name in facts}
            for name, x in facts.items():
                there[name].copy_(x, non_blocking=True)
            ended.record()
        self._pending.append(_PendingCheck(account, there, began, ended, partial(about, held)))

    def _process_finished_checks(self, wait: bool = False) -> None:
        """Add the costs and results of finished checks to the report, and store cases with wrong results."""
        with self._lock:
            done = [one for one in self._pending if wait or one.ended.query()]
            self._pending = [one for one in self._pending if one not in done] if done else self._pending
        for one in done:
            try:
                one.ended.synchronize()
                one.account.add_seconds(one.began.elapsed_time(one.ended) * 1e-3, on_gpu=True)
                facts = {name: x.tolist() for name, x in one.facts.items()}
                self.report.checked.update({name: int(x[-1]) for name, x in facts.items()})
                if any(x[0] for x in facts.values()):
                    self._store_case(one.case(facts))
            except Exception as error:
                reraise_interruption(error)
                self._count_unchecked_call(error)

    # Keeping

    def _store_case(self, case: Case) -> None:
        """Store a case and add it to the report, unless this audit has stored one of the same name."""
        with self._lock:
            if case.name in self._kinds:
                return
            self._kinds.add(case.name)
        path, why = self.folder.store(case)
        self.report.wrong.append(StoredCase(path, why, str(case), case.wrong))


class _SampledAttention:
    """A sampled call of attention, with the checks of its output and gradients."""

    def __init__(
        self,
        watch: RunningAudit,
        entry_point: str,
        read: Any,
        original: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> None:
        self.watch, self.entry_point = watch, entry_point
        self.call = _detach_and_autocast_call(read(original, args, kwargs))
        self.place = self.backend = ""
        self.o: Any = None
        self._d_o: Any = None
        self.args, self.kwargs, self._probed = self._replace_with_observed_views(args, kwargs)
        self.kinds = (entry_point, f"{entry_point}, backward")[: 1 + self._probed]
        self.account = watch._budget.start_sample(entry_point)

    def _replace_with_observed_views(
        self, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any], bool]:
        """Return the arguments with Q, K and V as views that observe gradients, and whether gradients are expected."""
        given = list(self.call.given.values())
        if not (torch.is_grad_enabled() and any(x.requires_grad for x in given)) or "block_table" in self.call.named:
            return args, kwargs, False
        if torch.is_autocast_enabled("cuda") or len({id(x) for x in given}) < len(given):
            return args, kwargs, False
        seen = _GradientObserver.apply(self, *given)
        swap = {id(old): new for old, new in zip(given, seen, strict=True)}

        def replace_with_view(x: Any) -> Any:
            return swap.get(id(x), x) if isinstance(x, torch.Tensor) else x

        return tuple(map(replace_with_view, args)), {name: replace_with_view(x) for name, x in kwargs.items()}, True

    def check_result(self, result: Any) -> None:
        """Check the output O, and the gradients when they arrive."""
        call, o = self.call, self.call.of_output(result).detach()
        self.place, self.backend = (
            _format_caller_location(),
            _query_torch_sdpa_backend(call) if self.entry_point == "torch" else "",
        )
        tensors = {**call.named, "o": o}
        make = partial(check_sampled_output_rows, call.named, call.options, o)
        self.watch.check_on_gpu(self.account, make, o.device.index, tensors, partial(self._make_case, False, tensors))
        output = result[0] if isinstance(result, tuple) else result
        if self._probed and output.requires_grad:
            self.o = o
            output.register_hook(self._store_output_gradient)

    def _store_output_gradient(self, gradient: Any) -> None:
        self._d_o = gradient

    def check_gradients(self, gradients: tuple[Any, ...]) -> None:
        """Check the gradients of Q, K and V."""
        watch, call = self.watch, self.call
        watch._process_finished_checks()
        if self._d_o is None or self.o is None or len(watch._pending) >= MOST_PENDING:
            return
        began = time.perf_counter()
        account = watch._budget.start_sample(self.kinds[-1])
        try:
            d_o = call.of_output(self._d_o).detach()
            found = dict(zip(("dq", "dk", "dv"), gradients, strict=True))
            if self.o.dim() == 4 and gradients[0] is not None and gradients[0].dim() == 3:
                found = {name: None if x is None else x.unsqueeze(1) for name, x in found.items()}
            found = {name: x.detach() for name, x in found.items() if x is not None}
            tensors = {**call.named, "o": self.o, "do": d_o, **found}
            make = partial(check_sampled_gradients, call.named, call.options, d_o, found)
            watch.check_on_gpu(account, make, d_o.device.index, tensors, partial(self._make_case, True, tensors))
        except Exception as error:
            reraise_interruption(error)
            watch._count_unchecked_call(error)
        finally:
            account.add_seconds(time.perf_counter() - began)
            self.o = self._d_o = None

    def _make_case(
        self,
        backward: bool,
        tensors: Mapping[str, Any],
        held: Mapping[str, Any],
        facts: Mapping[str, list[float]],
    ) -> Case:
        """Return the case of a wrong call, made from copies of its tensors and what the check on the GPU found."""
        call = self.call
        about = _describe_machine()
        shown = dict(held)
        if (bias := shown.get("bias")) is not None and bias.dtype == torch.bool:
            shown["bias"] = torch.zeros_like(bias, dtype=held["q"].dtype).masked_fill(~bias, float("-inf"))
        if bias is not None and call.is_dense:
            q, k = held["q"], held["k"]
            shown["bias"] = shown["bias"].expand(*bias.shape[:2], q.shape[2], k.shape[2])
        graph, shown, without = build_graph_of_call(
            call, shown, backward=backward, cudnn=about["cudnn"], sm=about["sm"]
        )
        names = set(shown) if graph is None else {tensor.name for tensor in graph.variant_pack_tensors}
        images = {name: copy_tensor_bytes_to_host(x) for name, x in shown.items() if name in names}
        wrong = tuple(name for name, x in facts.items() if x[0])
        batch, head = divmod(int(facts[wrong[0]][FACTS.index("head")]), held["q"].shape[1])
        return Case(
            entry_point=self.entry_point,
            place=self.place,
            found=tuple(_describe_wrong_element(name, facts[name]) for name in wrong),
            wrong=wrong,
            at=(batch, head),
            graph=graph,
            without=without,
            backend=self.backend,
            images=images,
            **about,
        )


class _SampledExecution:
    """A sampled execution of a frontend graph: its plan, and its tensors' memory before and after."""

    def __init__(
        self, watch: RunningAudit, how: str, original: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        from ..frontend.graphs import make_launch_arguments

        found = bind_arguments(original, args, kwargs)
        if found.get("override_uids"):
            raise UncheckedCallError("the call overrides the shapes of the graph, which the audit does not check")
        given, uids = found["tensor_dict"], found["tensor_uids"]
        index = found["index"] if how == "execute_plan_at_index" else None
        self.plan, self._at, self._stream = make_launch_arguments(
            found["self"], given, found["workspace"], found["handle"], uids, index
        )
        if is_capturing(self._stream):
            raise UncheckedCallError(
                "the call was made while a CUDA graph was captured, which the audit does not check"
            )
        self.graph: Graph = self.plan.graph
        self._written = {tensor.uid for tensor in self.graph.outputs}
        self._images: dict[str, Any] = {}
        self._numbers: dict[str, float] = {}
        self._there: Any = None
        tensors = [x for x in self.graph.variant_pack_tensors if not x.by_value and not x.scratch]
        if sum(tensor.span_bytes for tensor in tensors) > MOST_CALL_BYTES >> 3:
            raise UncheckedCallError(
                f"the tensors of the graph have more than {MOST_CALL_BYTES >> 3} bytes, the most that is checked"
            )
        self.watch, self.account, self.kinds = watch, watch._budget.start_sample("frontend"), ("frontend",)
        self.args, self.kwargs = args, kwargs
        with self.use_call_stream():
            self.copy_tensors(written=False)

    def check_result(self, result: Any) -> None:
        """Copy the call's outputs, and check them in the background."""
        with self.use_call_stream():
            self.copy_tensors(written=True)
        self.watch._judging.add(partial(self.make_case, _format_caller_location()), self.account.add_seconds)

    def use_call_stream(self) -> AbstractContextManager[Any]:
        """Return a context in which torch works on the call's stream."""
        if self._stream == torch.cuda.current_stream().cuda_stream:
            return nullcontext()
        found: AbstractContextManager[Any] = torch.cuda.stream(torch.cuda.ExternalStream(self._stream))
        return found

    def copy_tensors(self, *, written: bool) -> None:
        """Copy the call's inputs or outputs on its stream."""
        for tensor in self.graph.variant_pack_tensors:
            if tensor.scratch or (tensor.uid in self._written) != written or not self._at.get(tensor.uid):
                continue
            if tensor.by_value:
                if tensor.value is None:
                    self._numbers[tensor.name] = _read_scalar(self._at[tensor.uid], tensor)
                continue
            size, address = tensor.span_bytes, self._at[tensor.uid]
            if tensor.ragged_offset is not None:
                size = min(size, query_pointer(address).bytes_left or size)
            self._images[tensor.name] = torch.as_tensor(_GpuMemoryReader(address, size), device="cuda").clone()
        if written:
            self._there = torch.cuda.Event()
            self._there.record()

    def make_case(self, place: str) -> Case:
        """Return the case of the call, made from the copied tensors; waits for the GPU."""
        self._there.synchronize()
        side = torch.cuda.Stream()
        with torch.cuda.stream(side):
            images = {name: np.asarray(x.cpu()) for name, x in self._images.items()}
        about = _describe_machine()
        about |= {"cudnn": self.plan.target.library.build_text, "library": self.plan.target.library.path}
        return Case(
            entry_point="frontend",
            place=place,
            found=(),
            wrong=(),
            graph=self.graph,
            tag=self.plan.tag,
            images=images,
            numbers=self._numbers,
            **about,
        )


class _GpuMemoryReader:
    """A range of GPU memory, as an array that torch can read."""

    def __init__(self, address: int, size: int) -> None:
        self.__cuda_array_interface__ = {
            "shape": (size,), "typestr": "|u1", "data": (address, False), "strides": None, "version": 2,
        }  # fmt: skip


class _HostMemory:
    def __init__(self, address: int, size: int) -> None:
        self.__array_interface__ = {"shape": (size,), "typestr": "|u1", "data": (address, True), "version": 3}


def _read_scalar(address: int, tensor: Any) -> float:
    from .case import decode_memory

    return float(decode_memory(tensor, np.array(_HostMemory(address, tensor.span_bytes))).reshape(-1)[0])


class _GradientObserver(torch.autograd.Function):  # type: ignore[misc]
    """An identity function on tensors that observes their gradients."""

    @staticmethod
    def forward(ctx: Any, call: _SampledAttention, *tensors: Any) -> Any:
        """Return views of the tensors."""
        ctx.call = call
        ctx.set_materialize_grads(False)
        return tuple(x.view_as(x) for x in tensors)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        """Return the gradients unchanged."""
        ctx.call.check_gradients(gradients)
        return None, *gradients


def _detach_and_autocast_call(call: AttentionCall) -> AttentionCall:
    """Return a call with its tensors detached, and cast to the data type that autocast selects.

    Raises
    ------
    UncheckedCallError
        What is not checked, and why.
    """
    if sum(x.numel() * x.element_size() for x in call.named.values() if x is not None) > MOST_CALL_BYTES:
        raise UncheckedCallError(
            f"the tensors of the call have more than {MOST_CALL_BYTES} bytes, the most that is checked"
        )
    if call.options.dropout:
        raise UncheckedCallError("the call has dropout, so its right result depends on random numbers of torch")
    if torch.is_autocast_enabled("cuda"):
        _cast_for_autocast(call)
    call.named.update({name: x.detach() for name, x in call.named.items() if x is not None})
    return call


def _cast_for_autocast(call: AttentionCall) -> None:
    kind = torch.get_autocast_dtype("cuda")
    for name in ("q", "k", "v", "bias"):
        x = call.named.get(name)
        if x is not None and x.is_floating_point():
            call.named[name] = x.to(kind)


def _format_caller_location() -> str:
    """Return file, line and function of the nearest frame outside torch and this package."""
    frame: Any = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith((_OURS, _TORCH, "<frozen")):
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno} in {frame.f_code.co_name}"


_BACKENDS = {-1: "error", 0: "math", 1: "flash", 2: "efficient", 3: "cudnn", 4: "overrideable"}


def _query_torch_sdpa_backend(call: AttentionCall) -> str:
    """Return the backend that torch chooses for a call."""
    named, options = call.named, call.options
    try:
        found = torch._fused_sdp_choice(
            named["q"], named["k"], named["v"], named.get("bias"), 0.0, options.right_bound == 0,
            scale=options.scale, enable_gqa=named["q"].shape[1] != named["k"].shape[1],
        )  # fmt: skip
    except (AttributeError, TypeError, RuntimeError):
        return ""
    return f"torch's {_BACKENDS.get(int(found), str(found))}"


def _describe_machine() -> dict[str, Any]:
    """Return the GPU and the cuDNN, torch, CUDA and Python versions, for a case."""
    facts = torch.cuda.get_device_properties(torch.cuda.current_device())
    return {
        "cudnn": str(Version.from_number(torch.backends.cudnn.version() or 0)),
        "library": next(iter(find_loaded_libraries("libcudnn.so")), ""),
        "gpu": facts.name,
        "sm": facts.major * 10 + facts.minor,
        "versions": {
            "torch": torch.__version__,
            "cuda": str(torch.version.cuda),
            "python": sys.version.partition(" ")[0],
            "cudnn_backend_py": __version__,
        },
    }


def _describe_wrong_element(name: str, facts: list[float]) -> str:
    _, _, got, wanted, bound, compared = facts
    return f"{name}: one of the {int(compared)} elements checked is {got:.6g}, {wanted:.6g} +- {bound:.3g} is right"
