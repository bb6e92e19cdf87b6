"""Query torch about an attention call: selected backend, messages, switches; and measure times on a GPU."""

from __future__ import annotations

import contextlib
import os
import re
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from packaging.version import Version

from ..system.interruption import suppress_errors
from .calls import (
    BACKENDS,
    DEFAULT_ORDER,
    Machine,
    TensorFacts,
    TensorForm,
    TorchBackendChoice,
    TorchCall,
    TorchSwitches,
)
from .conditions import ENVIRONMENT_VARIABLES

__all__ = [
    "describe_tensor",
    "find_autocast_dtype",
    "measure",
    "query_backend_choice_with_fake_tensors",
    "query_torch",
    "query_whether_torch_may_use_cudnn",
    "read_autocast_dtype",
    "read_backend_order",
    "read_machine",
    "read_switches",
]

_warnings_lock = threading.RLock()
_initialized_order: list[bool] = []
_WARNING_PATTERN = re.compile(r"Warning: (.*\(function \w+\))")


def read_maybe_symbolic_size(value: Any) -> int:
    """Return a tensor size as an int; of a symbolic size its hint, or -1, without adding a dynamo guard."""
    if isinstance(value, int):
        return value
    hint = getattr(getattr(value, "node", None), "hint", None)
    return hint if isinstance(hint, int) else -1


def _read_lengths(tensor: Any) -> tuple[int, ...]:
    with suppress_errors(Exception):
        if tensor.layout == torch.jagged:
            offsets = tensor.offsets()
            return tuple((offsets[1:] - offsets[:-1]).tolist())
        return tuple(int(row[-2]) for row in tensor._nested_tensor_size().tolist())
    return ()


def _read_nested_dims(tensor: Any) -> tuple[int, ...]:
    found = []
    for place in range(tensor.dim()):
        try:
            found.append(read_maybe_symbolic_size(tensor.size(place)) if isinstance(tensor.size(place), int) else -1)
        except RuntimeError:  # an irregular dim has no size
            found.append(-1)
    return tuple(found)


def describe_tensor(tensor: Any, dtype: Any = None) -> TensorFacts:
    """Return the properties of a tensor; `dtype` replaces its type, as autocast does."""
    kind = str(dtype or tensor.dtype).removeprefix("torch.")
    if tensor.is_nested:
        form: TensorForm = "jagged" if tensor.layout == torch.jagged else "nested"
        return TensorFacts(
            _read_nested_dims(tensor), (), kind, tensor.device.type, tensor.requires_grad, form, _read_lengths(tensor)
        )
    return TensorFacts(
        tuple(map(read_maybe_symbolic_size, tensor.shape)),
        tuple(map(read_maybe_symbolic_size, tensor.stride())),
        kind,
        tensor.device.type,
        tensor.requires_grad,
    )


def read_autocast_dtype(device: str) -> Any:
    """Return autocast's type for a device type; None where autocast is off."""
    if device in ("cuda", "cpu"):
        with contextlib.suppress(TypeError, RuntimeError):  # before torch 2.4 it takes no device
            if torch.is_autocast_enabled(device):
                return torch.get_autocast_dtype(device)
    return None


def find_autocast_dtype(tensor: Any) -> Any:
    """Return the type that autocast casts a tensor to before attention; None if unchanged."""
    if not tensor.is_floating_point() or tensor.dtype == torch.float64:
        return None
    wanted = read_autocast_dtype(tensor.device.type)
    return None if wanted == tensor.dtype else wanted


def read_backend_order() -> tuple[str, ...] | None:
    """Return the order in which torch tries its backends; None where torch does not report it."""
    read = getattr(torch._C, "_get_sdp_priority_order", None)
    return None if read is None else tuple(BACKENDS.get(number, str(number)) for number in read())


def initialize_backend_order() -> None:
    """Make torch set its backend order, which it otherwise sets when it first chooses a backend."""
    if torch.cuda.is_available() and torch.cuda.is_initialized() and not _initialized_order:
        with contextlib.suppress(RuntimeError, AttributeError), torch._C.DisableTorchFunction():
            one = torch.empty(1, 1, 8, 8, dtype=torch.float16, device="cuda")
            torch._fused_sdp_choice(one, one, one)
            if type(one) is torch.Tensor:
                _initialized_order.append(True)


def read_switches() -> TorchSwitches:
    """Return torch's current attention settings, such as the enabled backends."""
    initialize_backend_order()
    cuda = torch.backends.cuda
    return TorchSwitches(
        cuda.cudnn_sdp_enabled(),
        cuda.flash_sdp_enabled(),
        cuda.mem_efficient_sdp_enabled(),
        cuda.math_sdp_enabled(),
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
        read_backend_order(),
    )


def _parse_version(text: str) -> tuple[int, int, int]:
    found = Version(text)
    return found.major, found.minor, found.micro


def read_machine() -> Machine:
    """Describe torch's machine: versions of torch, CUDA and cuDNN, GPU, and the variables its conditions read."""
    version, sm, gpu = None, None, ""
    live = torch.cuda.is_available()
    with suppress_errors(Exception):
        number = torch.backends.cudnn.version()
        version = (number // 10000, number // 100 % 100, number % 100) if number else None
    if live:
        major, minor = torch.cuda.get_device_capability()
        sm, gpu = 10 * major + minor, torch.cuda.get_device_name()
    cuda = _parse_version(torch.version.cuda)[:2] if torch.version.cuda else None
    environment = {name: os.environ[name] for name in ENVIRONMENT_VARIABLES if name in os.environ}
    return Machine(_parse_version(torch.__version__), version, sm, cuda, gpu, environment, live)


@contextlib.contextmanager
def _collect_torch_warnings() -> Iterator[list[str]]:
    """Collect the warnings that torch writes to standard error in this block; other output is passed on."""
    words: list[str] = []
    with _warnings_lock, warnings.catch_warnings(), tempfile.TemporaryFile() as file:
        warnings.simplefilter("ignore")
        sys.stderr.flush()
        kept = os.dup(2)
        try:
            os.dup2(file.fileno(), 2)
            yield words
        finally:
            os.dup2(kept, 2)
            os.close(kept)
            file.seek(0)
            for line in file.read().decode(errors="replace").splitlines():
                if (said := _WARNING_PATTERN.search(line)) is not None:
                    words.append(said[1])
                else:
                    print(line, file=sys.stderr)


def query_whether_torch_may_use_cudnn(params: Any) -> tuple[bool, tuple[str, ...]]:
    """Return whether torch may use cuDNN for a call (``torch.backends.cuda.SDPAParams``), and its messages if not.

    Each of the text ends with the function of torch that said it. Standard error is torch's for that moment.
    """
    with _collect_torch_warnings() as words:
        able = bool(torch.backends.cuda.can_use_cudnn_attention(params, debug=True))
    return able, tuple(words)


def query_torch(q: Any, k: Any, v: Any, mask: Any, call: TorchCall) -> TorchBackendChoice:
    """Return torch's report for a call with these tensors, including exceptions."""
    if torch.backends.cuda.is_built() and q.is_cuda and call.q.device == "cuda":
        with contextlib.suppress(AttributeError), torch._C.DisableTorchFunction():
            return _query_backend_choice_with_tensors(q, k, v, mask, call)
    return TorchBackendChoice()


def _query_backend_choice_with_tensors(q: Any, k: Any, v: Any, mask: Any, call: TorchCall) -> TorchBackendChoice:
    if call.autocast:
        wanted = getattr(torch, call.autocast)
        q, k, v = (_cast_tensor(one, wanted) for one in (q, k, v))
        mask = _cast_tensor(mask, wanted) if mask is not None and mask.is_floating_point() else mask
    choice, error = None, ""
    try:
        if call.q.form == "jagged":
            from torch.nested._internal.sdpa import _select_sdp_backend

            chosen = _select_sdp_backend(q, k, v, mask, call.dropout, call.causal, call.gqa)
            choice = BACKENDS.get(int(chosen.value), str(chosen))
        else:
            number = torch._fused_sdp_choice(
                q, k, v, mask, call.dropout, call.causal, scale=call.scale, enable_gqa=call.gqa
            )
            choice = BACKENDS.get(number, str(number))
    except RuntimeError as caught:
        error = str(caught).partition("\n")[0]
    try:
        params = torch.backends.cuda.SDPAParams(q, k, v, mask, call.dropout, call.causal, call.gqa)
        able = torch.backends.cuda.can_use_cudnn_attention(params)
        flash = torch.backends.cuda.can_use_flash_attention(params)
        efficient = torch.backends.cuda.can_use_efficient_attention(params)
    except (RuntimeError, TypeError) as caught:
        return TorchBackendChoice(choice, error=error or str(caught).partition("\n")[0])
    return TorchBackendChoice(choice, able, (), flash, efficient, error)


def query_backend_choice_with_fake_tensors(call: TorchCall) -> TorchBackendChoice:
    """Return torch's report on a call without its tensors, from fake tensors and recorded settings.

    Of fake tensors torch itself chooses nothing: the first backend in its order that it lets run is the choice. Nothing
    where torch has no GPU, or sizes are unknown.
    """
    tensors = [call.q, call.k, call.v, *([call.mask] if call.mask is not None else [])]
    if not torch.cuda.is_available() or call.kind != "sdpa":
        return TorchBackendChoice()
    if any(one.form != "dense" or one.device != "cuda" or min(one.dims, default=0) < 0 for one in tensors):
        return TorchBackendChoice()
    from torch._subclasses.fake_tensor import FakeTensorMode

    with _use_attention_settings_of_call(call), FakeTensorMode():
        made = [
            torch.empty_strided(one.dims, one.strides, dtype=getattr(torch, one.dtype), device="cuda").requires_grad_(
                one.requires_grad
            )
            for one in tensors
        ]
        mask = made[3] if call.mask is not None else None
        params = torch.backends.cuda.SDPAParams(*made[:3], mask, call.dropout, call.causal, call.gqa)
        able, words = query_whether_torch_may_use_cudnn(params)
        flash = torch.backends.cuda.can_use_flash_attention(params)
        efficient = torch.backends.cuda.can_use_efficient_attention(params)
        may = {"cudnn": able, "flash": flash, "efficient": efficient, "math": call.switches.math}
        choice = next((name for name in read_backend_order() or DEFAULT_ORDER if may.get(name)), None)
        return TorchBackendChoice(choice, able, words, flash, efficient)


@contextlib.contextmanager
def _use_attention_settings_of_call(call: TorchCall) -> Iterator[None]:
    """During a block, set torch's settings as they were in a call; restore them afterwards."""
    before = read_switches()
    try:
        _set_attention_settings(call.switches)
        with torch.set_grad_enabled(call.grad_enabled):
            yield
    finally:
        _set_attention_settings(before)


def _set_attention_settings(switches: TorchSwitches) -> None:
    cuda = torch.backends.cuda
    cuda.enable_cudnn_sdp(switches.cudnn)
    cuda.enable_flash_sdp(switches.flash)
    cuda.enable_mem_efficient_sdp(switches.efficient)
    cuda.enable_math_sdp(switches.math)
    torch.use_deterministic_algorithms(switches.deterministic, warn_only=switches.warn_only)
    if switches.order is not None and hasattr(torch._C, "_set_sdp_priority_order"):
        numbers = {name: number for number, name in BACKENDS.items()}
        torch._C._set_sdp_priority_order([numbers[name] for name in switches.order if name in numbers])


def _cast_tensor(tensor: Any, dtype: Any) -> Any:
    if not tensor.is_floating_point() or tensor.dtype == torch.float64:
        return tensor
    return tensor.detach().to(dtype).requires_grad_(tensor.requires_grad)


def measure(call: TorchCall, rounds: int = 20) -> dict[str, dict[str, float]]:
    """Return, for each backend, the median milliseconds of a call, and of the first call with a new shape.

    The new shape has one batch more: plans of shapes that the program had are kept by torch. Empty where there is no
    GPU, or not the memory for the tensors. The numbers are random.
    """
    if not torch.cuda.is_available() or call.kind != "sdpa" or call.q.form != "dense":
        return {}
    found = {}
    with contextlib.suppress(RuntimeError, AttributeError, torch.OutOfMemoryError):
        usual, new = _make_arguments(call, 0), _make_arguments(call, 1)
        for name in ("cudnn", "flash", "efficient", "math"):
            with contextlib.suppress(RuntimeError):
                found[name] = _time_backend(name, usual, new, call, rounds)
    return found


def _make_arguments(call: TorchCall, more: int) -> tuple[Any, ...]:
    """Make q, k, v and mask of a call on the GPU with random data, and a batch larger by `more`."""
    tensors = [call.q, call.k, call.v]
    dims = [(one.dims[0] + more, *one.dims[1:]) for one in tensors]
    made = [_make_random_tensor(replace(one, dims=size)) for one, size in zip(tensors, dims, strict=True)]
    mask = call.mask
    if mask is not None and len(mask.dims) == 4 and mask.dims[0] > 1:
        mask = replace(mask, dims=(mask.dims[0] + more, *mask.dims[1:]))
    return (*made, None if mask is None else _make_random_tensor(mask))


def _make_random_tensor(facts: TensorFacts) -> Any:
    dtype = getattr(torch, facts.dtype)
    made = torch.empty_strided(facts.dims, facts.strides, dtype=dtype, device="cuda")
    if 0 not in facts.strides:
        made.fill_(True) if dtype == torch.bool else made.copy_(torch.randn(facts.dims, device="cuda"))
    else:  # expanded: one element is at several places
        made = torch.zeros((), dtype=dtype, device="cuda").expand(facts.dims).clone()
    return made.requires_grad_(facts.requires_grad)


def _time_backend(
    name: str, usual: tuple[Any, ...], new: tuple[Any, ...], call: TorchCall, rounds: int
) -> dict[str, float]:
    from ..execution.timing import measure_gpu_time

    backend = {
        "cudnn": torch.nn.attention.SDPBackend.CUDNN_ATTENTION,
        "flash": torch.nn.attention.SDPBackend.FLASH_ATTENTION,
        "efficient": torch.nn.attention.SDPBackend.EFFICIENT_ATTENTION,
        "math": torch.nn.attention.SDPBackend.MATH,
    }[name]

    def run_attention(q: Any, k: Any, v: Any, mask: Any) -> None:
        out = torch._C._nn.scaled_dot_product_attention(
            q, k, v, mask, call.dropout, call.causal, scale=call.scale, enable_gqa=call.gqa
        )
        if call.training:
            torch.autograd.grad(out, [one for one in (q, k, v) if one.requires_grad], out)

    with warnings.catch_warnings(), torch.nn.attention.sdpa_kernel(backend), torch.set_grad_enabled(call.grad_enabled):
        warnings.simplefilter("ignore")
        run_attention(*usual)  # what is loaded with the first call of all is not that of a new shape
        torch.cuda.synchronize()
        started = time.perf_counter()
        run_attention(*new)
        torch.cuda.synchronize()
        first = time.perf_counter() - started
        device, stream = torch.cuda.current_device(), torch.cuda.current_stream().cuda_stream
        usual_us = measure_gpu_time(partial(run_attention, *usual), stream, device=device, repeats=rounds)
    return {"first_ms": 1000 * first, "ms": usual_us / 1000}
