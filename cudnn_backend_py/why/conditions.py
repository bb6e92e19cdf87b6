"""The conditions under which each version of torch uses cuDNN for attention: checks, messages, remedies.

torch is queried itself wherever it can answer (``query_torch``). This table names the gate that an answer came from,
and is in where there is no GPU to ask on. It was read in torch's ``aten/src/ATen/native/transformers/cuda/
sdp_utils.cpp`` and ``.../sdp_utils_cpp.h`` of the versions in ``RELEASES``; a version between two of them is answered
by both, and what they do not agree on is said to be unknown.
"""

from __future__ import annotations

import contextlib
import math
import re
from collections.abc import Callable
from dataclasses import dataclass, replace

from .calls import DEFAULT_ORDER, Machine, TorchBackendChoice, TorchCall, TorchSwitches

__all__ = [
    "GATES",
    "RELEASES",
    "Blocker",
    "apply_remedy",
    "find_blocker",
    "find_default_backend_order",
    "find_other_blockers",
    "find_releases",
    "find_torch_issues",
]

SDP_UTILS_SOURCE = "aten/src/ATen/native/transformers/cuda/sdp_utils.cpp"
ATTENTION_SOURCE = "aten/src/ATen/native/transformers/attention.cpp"
NESTED_VARIABLE = "TORCH_CUDNN_SDPA_NESTED_TENSOR_ENABLED"
ENABLED_VARIABLE = "TORCH_CUDNN_SDPA_ENABLED"
PREFERRED_VARIABLE = "TORCH_CUDNN_SDPA_PREFERRED"
DEPRIORITIZED_VARIABLE = "TORCH_CUDNN_SDPA_DEPRIORITIZED"
PACKED_SEQUENCES_NOTE = "torch uses cuDNN for packed sequences"
ENVIRONMENT_VARIABLES = (NESTED_VARIABLE, ENABLED_VARIABLE, PREFERRED_VARIABLE, DEPRIORITIZED_VARIABLE)


@dataclass(frozen=True, slots=True)
class Blocker:
    """A condition that excludes cuDNN from a call: the value found, and the remedy.

    ``sure`` is False where torch could not be queried and its source leaves the answer open. ``words`` are torch's own.
    """

    gate: str
    found: str
    cure: str
    source: str = SDP_UTILS_SOURCE
    sure: bool = True
    words: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.found}" + ("" if self.sure else " (not certain: torch was not queried on a GPU)")


GateResult = tuple[str, str] | None
GateCheck = Callable[[TorchCall, Machine, "TorchRelease"], GateResult]


@dataclass(frozen=True, slots=True)
class TorchRelease:
    """The conditions of a range of torch versions, from ``since`` to ``until``."""

    since: tuple[int, int]
    until: tuple[int, int]
    gates: tuple[str, ...]
    architectures: tuple[int, int]
    commit: str


def _check_cudnn_enabled(call: TorchCall, machine: Machine, release: TorchRelease) -> GateResult:
    if call.switches.cudnn:
        return None
    left = [name for name in ("flash", "efficient", "math") if getattr(call.switches, name)]
    how = (
        "enable_cudnn_sdp(False) was called"
        if len(left) == 3
        else f"sdpa_kernel or enable_..._sdp allows {', '.join(left) or 'nothing'} only"
    )
    return (
        f"cuDNN attention is disabled at this call: {how}",
        "leave CUDNN_ATTENTION in the list given to torch.nn.attention.sdpa_kernel, or "
        "torch.backends.cuda.enable_cudnn_sdp(True)",
    )


def _check_dropout_version(call: TorchCall, machine: Machine, release: TorchRelease) -> GateResult:
    if call.dropout > 0 and machine.cudnn is not None and (9, 11, 0) < machine.cudnn < (9, 14, 0):
        return (
            f"dropout with cuDNN {'.'.join(map(str, machine.cudnn))}: torch does not use 9.11 to 9.13 for it",
            "cuDNN 9.14 or later, or dropout_p=0",
        )
    return None


def _check_nested_tensors(call: TorchCall, machine: Machine, release: TorchRelease) -> GateResult:
    if not call.nested:
        return None
    if "nested-never" in release.gates:
        return (
            "q, k or v is a nested tensor, for which this torch never uses cuDNN",
            "a newer torch, or padded tensors",
        )
    if machine.read_variable(NESTED_VARIABLE) is not True:
        return (
            f"q, k or v is a nested tensor, and {NESTED_VARIABLE} is not 1",
            f"set {NESTED_VARIABLE}=1 before torch is imported",
        )
    if "nested-backward" in release.gates and any(one.requires_grad for one in (call.q, call.k, call.v)):
        return ("nested tensors that require gradients", "torch 2.10 or later, or padded tensors")
    if machine.sm is not None and machine.sm // 10 not in (9, 10):
        return (
            f"nested tensors on sm_{machine.sm}: torch uses cuDNN for them only on sm_90 and sm_100",
            "padded tensors",
        )
    return None


def _check_device(call: TorchCall, machine: Machine, release: TorchRelease) -> GateResult:
    if call.q.device == "cuda":
        return None
    return (f"q is on {call.q.device}, not on a GPU", "move the tensors, and the model, to cuda")


def _check_rank(call: TorchCall, machine: Machine, release: TorchRelease) -> GateResult:
    ranks = [len(one.dims) for one in (call.q, call.k, call.v)]
    if ranks == [4, 4, 4]:
        return None
    return (
        f"q, k, v have {', '.join(map(str, ranks))} dims; fused kernels need 4: batch, heads, length, head dim",
        "add or merge dims with unsqueeze or flatten",
    )


def _check_determinism(call: TorchCall, machine: Machine, release: TorchRelease) -> GateResult:
    if not call.switches.deterministic or call.switches.warn_only:
        return None
    return (
        "torch.use_deterministic_algorithms(True) is on, and torch considers cuDNN attention nondeterministic",
        "use_deterministic_algorithms(True, warn_only=True), or without it",
    )


def _check_dtype(call: TorchCall, machine: Machine, release: TorchRelease) -> GateResult:
    types = [one.dtype for one in (call.q, call.k, call.v)]
    able = {"float16", "bfloat16"} if machine.sm is None or machine.sm >= 80 else {"float16"}
    if len(set(types)) == 1 and types[0] in able:
        return None
    said = types[0] if len(set(types)) == 1 else ", ".join(types)
    cure = "cast q, k and v to bfloat16 or float16, or run under torch.autocast('cuda', dtype=torch.bfloat16)"
    if len(set(types)) > 1:
        cure = "give q, k and v one type, bfloat16 or float16: a preceding norm or rotary embedding may return float32"
    return (f"q, k, v are {said}; cuDNN attention in torch supports {' and '.join(sorted(able, reverse=True))}", cure)


def _check_mask(call: TorchCall, machine: Machine, release: TorchRelease) -> GateResult:
    mask = call.mask
    if mask is None:
        return None
    if mask.requires_grad:
        return (
            "the mask (bias) requires a gradient, which torch does not request from cuDNN",
            "detach() the bias if it is not learned",
        )
    batch, heads, seq_q, _ = call.q.dims
    wanted = (batch, heads, seq_q, call.k.dims[2])
    fits = len(mask.dims) >= 2 and all(
        found in (want, 1) for found, want in zip(mask.dims[-2:], wanted[-2:], strict=True)
    )
    if len(mask.dims) == 4:
        fits = fits and all(found in (want, 1) for found, want in zip(mask.dims[:2], wanted[:2], strict=True))
    elif len(mask.dims) != 2:
        fits = False
    if fits:
        return None
    return (
        f"the mask has dims {list(mask.dims)}; torch passes cuDNN masks of 2 dims [{seq_q}, {wanted[3]}] or 4 dims "
        f"{list(wanted)}, each of this size or 1",
        "unsqueeze the mask to 4 dims, or cut it to the lengths of q and k",
    )


def _check_architecture(call: TorchCall, machine: Machine, release: TorchRelease) -> GateResult:
    low, high = release.architectures
    if machine.sm is None or low <= machine.sm <= high:
        return None
    cure = "a newer torch" if machine.sm > high else "no remedy on this GPU: cuDNN attention needs sm_80 or later"
    return (f"sm_{machine.sm}: this torch uses cuDNN attention on sm_{low} to sm_{high}", cure)


def _check_dropout_is_multiple_of_16th(call: TorchCall, machine: Machine, release: TorchRelease) -> GateResult:
    if call.dropout * 16 == math.floor(call.dropout * 16):
        return None
    return (
        f"dropout_p={call.dropout:g} is not a multiple of 1/16, the step of cuDNN's kernels",
        f"dropout_p={max(1, round(call.dropout * 16)) / 16:g}",
    )


def _check_zero_length(call: TorchCall, machine: Machine, release: TorchRelease) -> GateResult:
    if call.q.dims[-2] and call.k.dims[-2]:
        return None
    return (f"a length of 0: q {call.q.dims[-2]}, k {call.k.dims[-2]}", "skip the call for empty sequences")


def _check_last_stride(call: TorchCall, machine: Machine, release: TorchRelease) -> GateResult:
    dense = all(one.strides[-1] == 1 for one in (call.q, call.k, call.v)) or call.q.dims[-1] == 1
    masked = call.mask is None or call.mask.strides[-1] == 1
    if dense and masked:
        return None
    names = [name for name in "qkv" if getattr(call, name).strides[-1] != 1] if not dense else []
    names += ["the mask"] * (not masked)
    return (
        f"the last dim of {', '.join(names)} is not contiguous (stride 1)",
        "call contiguous(); of a mask, expand only the other dims",
    )


def _check_batch_and_heads(call: TorchCall, machine: Machine, release: TorchRelease) -> GateResult:
    batches = [one.dims[0] for one in (call.q, call.k, call.v)]
    heads = [one.dims[-3] for one in (call.q, call.k, call.v)]
    if len(set(batches)) != 1:
        return (f"q, k, v have batches {', '.join(map(str, batches))}", "expand k and v to q's batch")
    if call.gqa:
        if heads[1] and heads[2] and not heads[0] % heads[1] and not heads[0] % heads[2]:
            return None
        return (
            f"heads {', '.join(map(str, heads))}: those of k and v must divide those of q",
            "pad or repeat the heads of k and v",
        )
    if len(set(heads)) == 1 or ("mqa" in release.gates and heads[1:] == [1, 1]):
        return None
    return (
        f"q, k, v have {', '.join(map(str, heads))} heads, and enable_gqa is not set",
        "scaled_dot_product_attention(..., enable_gqa=True), or repeat_interleave the heads of k and v",
    )


def _is_hopper_or_blackwell(machine: Machine) -> bool:
    return machine.sm is not None and (machine.sm == 90 or machine.sm // 10 == 10)


def _has_wrong_single_query_results(machine: Machine) -> bool:
    """Return whether torch assumes that this cuDNN computes single queries wrong; see ``decoding-on-blackwell``."""
    wrong = machine.cudnn is not None and (9, 19, 0) <= machine.cudnn <= (9, 25, 0) and machine.cudnn != (9, 24, 1)
    return wrong and machine.sm is not None and machine.sm // 10 in (10, 11)


def _find_head_dim_limit(call: TorchCall, machine: Machine, release: TorchRelease) -> int:
    cudnn, dims = machine.cudnn or (9, 0, 0), (call.q.dims[3], call.v.dims[3])
    if "head-256" in release.gates:
        unsupported = machine.sm == 107 and cudnn <= (9, 25, 0)
        if _is_hopper_or_blackwell(machine) and cudnn > (9, 22, 0) and not unsupported:
            return 256
        return 192 if _is_hopper_or_blackwell(machine) and cudnn >= (9, 11, 0) and dims == (192, 128) else 128
    if "head-192" in release.gates and machine.sm is not None and machine.sm // 10 == 10:
        return 192 if cudnn >= (9, 11, 0) and dims == (192, 128) else 128
    return 256 if "head-sm90" in release.gates and machine.sm == 90 and cudnn >= (9, 10, 0) else 128


def _check_shapes(call: TorchCall, machine: Machine, release: TorchRelease) -> GateResult:
    batch, heads, seq_q, head_dim = call.q.dims
    seq_kv, head_dim_v = call.k.dims[2], call.v.dims[3]
    if "65535" in release.gates and max(batch, heads) > 65535:
        return (f"batch {batch}, {heads} heads: torch uses cuDNN for up to 65535 of each", "split the batch")
    if min(head_dim, head_dim_v) < 0:
        return (
            "a head dim that torch.compile keeps symbolic: torch cannot report that it is small enough",
            "torch._dynamo.mark_static(tensor, dim), or torch.compile(..., dynamic=False)",
        )
    if "decode-on-blackwell" in release.gates and seq_q == 1 and _has_wrong_single_query_results(machine):
        return ("q has length 1: torch does not use cuDNN 9.19 to 9.25.0 for it on this GPU", "cuDNN 9.24.1 or 9.25.1")
    limit = _find_head_dim_limit(call, machine, release)
    if max(head_dim, head_dim_v) > limit:
        return (
            f"head dim {head_dim} (q, k), {head_dim_v} (v): this torch uses cuDNN for up to {limit} on this GPU",
            "more heads of a smaller dim, or a newer torch and cuDNN on sm_90 or sm_100",
        )
    if head_dim % 8 or head_dim_v % 8:
        return (
            f"head dim {head_dim} (q, k), {head_dim_v} (v): not a multiple of 8",
            f"pad the head dim with zeros to {-(-max(head_dim, head_dim_v) // 8) * 8}, keep scale=1/sqrt({head_dim})",
        )
    if "length-1" in release.gates and 1 in (seq_q, seq_kv):
        return (
            f"a length of 1: q {seq_q}, k {seq_kv}; this torch does not use cuDNN for single tokens",
            "a newer torch",
        )
    if seq_kv == 1:
        return ("k and v have length 1, for which torch does not use cuDNN", "not needed: the result is v")
    if seq_q == 1 and call.dropout:
        return ("q has length 1, and dropout is on", "dropout_p=0 where single tokens are decoded")
    return None


def _check_backward_head_dims(call: TorchCall, machine: Machine, release: TorchRelease) -> GateResult:
    dims, cudnn = (call.q.dims[3], call.v.dims[3]), machine.cudnn or (9, 0, 0)
    unsupported = machine.sm == 107 and cudnn <= (9, 25, 0)
    if not call.training or not _is_hopper_or_blackwell(machine) or cudnn <= (9, 22, 0) or unsupported:
        return None
    if max(dims) <= 128 or dims in ((192, 128), (256, 256)):
        return None
    return (
        f"training with head dims {dims[0]} (q, k), {dims[1]} (v): torch uses cuDNN for backward passes up to 128, of "
        "192 with 128, and of 256",
        "pad the head dims to 256",
    )


def _check_nested_query_length(call: TorchCall, machine: Machine, release: TorchRelease) -> GateResult:
    if not call.nested or call.q.form != "nested" or max(call.q.lengths, default=0) > 128:
        return None
    return ("nested q with a longest sequence of 128 or less", "padded tensors for short sequences")


GATES: dict[str, GateCheck] = {
    "dropout-of-version": _check_dropout_version,
    "disabled": _check_cudnn_enabled,
    "nested": _check_nested_tensors,
    "device": _check_device,
    "rank": _check_rank,
    "deterministic": _check_determinism,
    "dtype": _check_dtype,
    "mask": _check_mask,
    "architecture": _check_architecture,
    "dropout-steps": _check_dropout_is_multiple_of_16th,
    "zero-length": _check_zero_length,
    "last-stride": _check_last_stride,
    "batch-and-heads": _check_batch_and_heads,
    "shapes": _check_shapes,
    "backward-dims": _check_backward_head_dims,
    "nested-query": _check_nested_query_length,
}
#: The functions of torch's source that each gate is.
GATES_BY_TORCH_FUNCTION = {
    "check_runtime_disabled_cudnn": "disabled",
    "check_for_nested_inputs": "nested",
    "check_all_tensors_on_device": "device",
    "check_tensor_shapes": "rank",
    "check_cudnn_deterministic": "deterministic",
    "check_tensor_dtype": "dtype",
    "check_attn_mask_shape": "mask",
    "check_cudnn_hardware_support": "architecture",
    "check_cudnn_dropout": "dropout-steps",
    "check_nonzero_sequence_lengths_dense": "zero-length",
    "check_last_dim_stride_equals_1_dense": "last-stride",
    "check_batch_size_and_num_heads_dense": "batch-and-heads",
    "check_grouped_query_attention": "batch-and-heads",
    "check_cudnn_tensor_shapes": "shapes",
    "check_cudnn_d256_bprop_head_dim": "backward-dims",
    "check_cudnn_query_seq_len_nested": "nested-query",
    "can_use_cudnn_attention": "dropout-of-version",
}
#: Gates that torch asks of dense tensors only, in releases that report them apart.
_DENSE_TENSOR_GATES = {"zero-length", "last-stride", "batch-and-heads", "shapes", "backward-dims"}
_FIRST_GATES = ("disabled", "nested", "device", "rank", "deterministic", "dtype", "mask", "architecture")
_SHAPE_GATES = ("zero-length", "last-stride", "batch-and-heads", "shapes")

RELEASES = (
    TorchRelease(
        (2, 5),
        (2, 6),
        (
            *("nested-never", "length-1", "disabled", "nested", "zero-length", "last-stride", "device", "rank"),
            "shapes",
            *("deterministic", "dtype", "mask", "architecture"),
        ),
        (80, 90),
        "21c3369eded41cbad40b61858013c3312afc6dbb",
    ),
    TorchRelease(
        (2, 9),
        (2, 9),
        ("head-sm90", "nested-backward", "dropout-of-version", *_FIRST_GATES, *_SHAPE_GATES),
        (80, 121),
        "a copy of 2.9",
    ),
    TorchRelease(
        (2, 11),
        (2, 11),
        ("head-sm90", "head-192", "dropout-of-version", *_FIRST_GATES, *_SHAPE_GATES),
        (80, 121),
        "a copy of 2.11",
    ),
    TorchRelease(
        (2, 14),
        (2, 14),
        (
            *("head-256", "65535", "mqa", "dropout-of-version", *_FIRST_GATES, "dropout-steps", *_SHAPE_GATES),
            *("backward-dims", "nested-query"),
        ),
        (80, 121),
        "001f694aef6f922b4fdf6d27d59162d27bf3df58",
    ),
    TorchRelease(
        (2, 15),
        (99, 0),
        (
            *("head-256", "65535", "mqa", "dropout-of-version", *_FIRST_GATES, "dropout-steps", *_SHAPE_GATES),
            *("backward-dims", "nested-query", "decode-on-blackwell"),
        ),
        (80, 121),
        "001f694aef6f922b4fdf6d27d59162d27bf3df58, and pytorch/pytorch#194927",
    ),
)


def find_releases(version: tuple[int, ...]) -> tuple[TorchRelease, ...]:
    """Return the conditions of a torch version, or of the known versions before and after it; empty before 2.5."""
    for release in RELEASES:
        if release.since <= version[:2] <= release.until:
            return (release,)
    before = [release for release in RELEASES if release.until < version[:2]]
    after = [release for release in RELEASES if release.since > version[:2]]
    return (before[-1], after[0]) if before and after else ()


def find_default_backend_order(machine: Machine) -> tuple[str, ...]:
    """Return the order in which torch tries its attention backends by default."""
    first = ("cudnn", "flash", "efficient", "math")
    version, sm, cudnn = machine.torch, machine.sm or 0, machine.cudnn or (0, 0, 0)
    if version == (2, 5, 0):
        return first if sm >= 90 else DEFAULT_ORDER
    if version < (2, 9, 0):
        asked = version >= (2, 7, 0) and machine.read_variable(PREFERRED_VARIABLE) is True
        return first if asked and sm in (90, 100) else DEFAULT_ORDER
    if version < (2, 10, 0):
        built = (9, 8, 0) if machine.cuda == (12, 8) else cudnn  # what torch's wheels were compiled with counts
        return (
            first
            if machine.read_variable(PREFERRED_VARIABLE) is not False and sm in (90, 100) and built >= (9, 9, 0)
            else DEFAULT_ORDER
        )
    if machine.read_variable(DEPRIORITIZED_VARIABLE) is True:
        return DEFAULT_ORDER
    preferred = (90, 100, 103, 107) if version >= (2, 14, 0) and (machine.cuda or (0,)) >= (13, 0) else (90, 100, 103)
    return first if cudnn > (9, 15, 0) and sm in preferred else DEFAULT_ORDER


def find_condition_by_message(words: tuple[str, ...]) -> str | None:
    """Return the condition that torch's last warning is about; None without warning or for unknown functions."""
    said = re.search(r"\(function (\w+)\)$", words[-1]) if words else None
    return GATES_BY_TORCH_FUNCTION.get(said[1]) if said is not None else None


def find_blocker(call: TorchCall, machine: Machine, answer: TorchBackendChoice | None = None) -> Blocker | None:
    """Return the first condition that excludes cuDNN from a call; None where torch chooses cuDNN.

    Parameters
    ----------
    call, machine
        The call, and where it ran or is to be judged for.
    answer
        What torch itself said of it, where it could be queried: it decides, and the table only names the gate.
    """
    answer = answer or TorchBackendChoice()
    if (refused := _find_invalid_arguments(call)) is not None:
        return refused
    if answer.choice == "cudnn":
        return None
    if machine.live and machine.cudnn is None:
        return Blocker("build", "this torch was built without cuDNN (for ROCm, or without CUDA)", "a torch for CUDA")
    if call.kind != "sdpa":
        return _find_blocker_of_call_other_than_sdpa(call, machine)
    if call.q.form == "jagged":
        return _find_blocker_of_jagged_call(call, machine, answer)
    gate = _find_first_blocker(call, machine)
    if answer.cudnn is None:
        ordered = _find_backend_tried_before_cudnn(call, machine, answer)
        return ordered if gate is None or (not gate.sure and ordered is not None and ordered.sure) else gate
    if answer.cudnn:
        return _find_backend_tried_before_cudnn(call, machine, answer)
    told = find_condition_by_message(answer.words)
    if gate is not None and told is not None and told != gate.gate:  # torch knows better
        found = None
        with contextlib.suppress(IndexError, ValueError):
            found = GATES[told](call, machine, find_releases(machine.torch)[-1])
        gate = Blocker(told, *found) if found is not None else Blocker(told, answer.words[-1], "")
    if gate is None or (not gate.sure and told is None):
        return Blocker(
            gate.gate if gate else "unknown",
            answer.words[-1] if answer.words else "torch refuses cuDNN without a reason",
            gate.cure if gate else "",
            words=answer.words,
        )
    return Blocker(gate.gate, gate.found, gate.cure, gate.source, True, answer.words)


def _find_invalid_arguments(call: TorchCall) -> Blocker | None:
    """Return a blocker for arguments that no backend on a GPU supports; None if they are valid."""
    found, tensors = None, (call.q, call.k, call.v)
    if call.kind != "sdpa" or any(one.form != "dense" or one.device != "cuda" or len(one.dims) != 4 for one in tensors):
        return None
    if call.mask is not None and call.mask.dtype not in ("bool", "float32", call.q.dtype):
        found = f"the mask is {call.mask.dtype}, but torch needs bool, float32 or {call.q.dtype}, the type of q"
    elif not 0 <= call.dropout <= 1:
        found = f"dropout_p={call.dropout:g} is not a probability"
    elif call.q.dims[3] != call.k.dims[3] and min(call.q.dims[3], call.k.dims[3]) >= 0:
        found = f"q has head dim {call.q.dims[3]} and k {call.k.dims[3]}"
    elif call.k.dims[2] != call.v.dims[2] and min(call.k.dims[2], call.v.dims[2]) >= 0:
        found = f"k has length {call.k.dims[2]} and v {call.v.dims[2]}"
    if found is None:
        return None
    return Blocker("arguments", f"no backend computes this call: {found}", "fix the call", ATTENTION_SOURCE)


def _is_dense(call: TorchCall) -> bool:
    return all(one.form == "dense" for one in (call.q, call.k, call.v))


def _find_first_blocker(call: TorchCall, machine: Machine) -> Blocker | None:
    if machine.torch >= (2, 4, 0) and machine.cudnn is not None and machine.cudnn < (9, 0, 0):
        said = ".".join(map(str, machine.cudnn))
        return Blocker("cudnn-version", f"cuDNN {said}: torch needs cuDNN 9.0 for attention", "a torch with cuDNN 9")
    found = [_find_first_blocker_in_release(call, machine, release) for release in find_releases(machine.torch)]
    if not found:
        return _find_blocker_before_torch_2_5(call, machine)
    names = {one.gate if one else None for one in found}
    one = next((one for one in found if one is not None), None)
    if one is None or len(names) == 1:
        return one
    return Blocker(one.gate, one.found, one.cure, one.source, False)


def _find_blocker_before_torch_2_5(call: TorchCall, machine: Machine) -> Blocker | None:
    if machine.torch < (2, 4, 0):
        return Blocker("version", "torch before 2.4 never uses cuDNN for attention", "torch 2.5 or later")
    if machine.read_variable(ENABLED_VARIABLE) is not True:
        return Blocker(
            "variable", f"torch 2.4 uses cuDNN for attention only if {ENABLED_VARIABLE}=1", "torch 2.5 or later"
        )
    if call.training:
        return Blocker(
            "gradients", "torch 2.4 does not use cuDNN for inputs that require gradients", "torch 2.5 or later"
        )
    gate = _find_first_blocker_in_release(call, machine, RELEASES[0])  # those of 2.4 were not read one by one
    return None if gate is None else replace(gate, sure=False)


def _find_first_blocker_in_release(call: TorchCall, machine: Machine, release: TorchRelease) -> Blocker | None:
    dense = _is_dense(call)
    ordered = release.gates[0] != "nested-never"
    for name in release.gates:
        check = GATES.get(name)
        if check is None or (ordered and not dense and name in _DENSE_TENSOR_GATES):
            continue
        if (found := check(call, machine, release)) is not None:
            return Blocker(
                name, found[0], found[1], f"{SDP_UTILS_SOURCE} of torch {release.since[0]}.{release.since[1]}"
            )
    return None


def _find_backend_tried_before_cudnn(call: TorchCall, machine: Machine, answer: TorchBackendChoice) -> Blocker | None:
    """Return a blocker if torch prefers another usable backend to cuDNN; None if cuDNN comes first."""
    if machine.sm is None and answer.choice is None:
        return None  # no GPU, so nothing that could come first
    order = call.switches.order or find_default_backend_order(machine)
    if "cudnn" not in order:
        return _make_backend_order_blocker(order, "cuDNN is not in it", machine, True)
    known = machine.cudnn is not None or call.switches.order is not None  # the default depends on the version
    before = [name for name in order[: order.index("cudnn")] if _is_backend_enabled(call.switches, name)]
    if answer.choice is not None:
        return _make_backend_order_blocker(order, f"{answer.choice} comes first, and runs", machine, True)
    able = [name for name in before if name == "math" or getattr(answer, name, None) is not False]
    if not able:
        return None
    return _make_backend_order_blocker(order, f"{' or '.join(able)} comes first", machine, "math" in able and known)


def _is_backend_enabled(switches: TorchSwitches, name: str) -> bool:
    return bool(getattr(switches, name, False))


def _make_backend_order_blocker(order: tuple[str, ...], what: str, machine: Machine, sure: bool) -> Blocker:
    cure = "torch.nn.attention.sdpa_kernel([SDPBackend.CUDNN_ATTENTION, ...], set_priority=True) around the call"
    if machine.read_variable(DEPRIORITIZED_VARIABLE):
        cure = f"unset {DEPRIORITIZED_VARIABLE}, or {cure}"
    elif machine.torch >= (2, 10, 0) and machine.sm in (90, 100, 103) and (machine.cudnn or (0,)) <= (9, 15, 0):
        cure += "; with cuDNN 9.15.1 or later this torch tries cuDNN first by default"
    return Blocker("order", f"torch tries {', '.join(order)} in this order: {what}", cure, sure=sure)


def _find_blocker_of_call_other_than_sdpa(call: TorchCall, machine: Machine) -> Blocker | None:
    if call.kind == "flex":
        return Blocker(
            "flex",
            "flex_attention has kernels of its own (Triton, and CuTe DSL): torch never uses cuDNN for it",
            "scaled_dot_product_attention, if score_mod and block_mask express only a causal mask or a bias",
            "torch/nn/attention/flex_attention.py",
        )
    if call.kind == "varlen":
        if call.note == PACKED_SEQUENCES_NOTE:
            return None
        if not call.note and machine.torch >= (2, 14, 0) and (off := _check_cudnn_enabled(call, machine, RELEASES[-1])):
            return Blocker("disabled", *off, "torch/nn/attention/varlen.py", sure=False)
        return Blocker(
            "varlen",
            call.note or "varlen_attn runs flash attention; whether this torch would use cuDNN is not known here",
            "cudnn_backend_py.torch_ops.varlen_attention computes packed sequences with cuDNN",
            "torch/nn/attention/varlen.py",
            sure=bool(call.note),
        )
    return Blocker(
        "fast-path",
        "the fast path of nn.MultiheadAttention and nn.TransformerEncoderLayer has a kernel of its own",
        "torch.backends.mha.set_fastpath_enabled(False)",
        "torch/nn/modules/activation.py",
    )


def _find_blocker_of_jagged_call(call: TorchCall, machine: Machine, answer: TorchBackendChoice) -> Blocker | None:
    if not call.switches.cudnn or call.q.device != "cuda":
        return _find_first_blocker(call, machine)
    before = [name for name in ("flash", "efficient", "math") if getattr(call.switches, name)]
    if not before:
        return _find_first_blocker(call, machine) if answer.cudnn is not True else None
    return Blocker(
        "order",
        f"jagged nested tensors use another order: flash, efficient, math, cudnn; {before[0]} comes first",
        "sdpa_kernel(SDPBackend.CUDNN_ATTENTION) around the call",
        "torch/nested/_internal/sdpa.py",
        sure=answer.choice is not None or "math" in before,
    )


def find_other_blockers(call: TorchCall, machine: Machine, first: Blocker) -> tuple[Blocker, ...]:
    """Return the conditions that would still exclude cuDNN from a call after the first one is fixed."""
    if first.source.startswith("torch/"):  # another function than scaled_dot_product_attention
        return ()
    found: dict[str, Blocker] = {}
    if (gate := _find_first_blocker(call, machine)) is not None and not gate.sure and gate.gate != first.gate:
        found[gate.gate] = gate
    for release in find_releases(machine.torch)[-1:]:
        for name in release.gates:
            if name not in GATES or name == first.gate or (not _is_dense(call) and name in _DENSE_TENSOR_GATES):
                continue
            with contextlib.suppress(IndexError, ValueError):  # of dims that an earlier gate refuses
                if (seen := GATES[name](call, machine, release)) is not None:
                    found.setdefault(name, Blocker(name, *seen))
    if (
        first.gate != "order"
        and (last := _find_backend_tried_before_cudnn(call, machine, TorchBackendChoice())) is not None
    ):
        found["order"] = last
    return tuple(found.values())


def find_torch_issues(call: TorchCall) -> tuple[str, ...]:
    """Return torch's known issues with a call for which it uses cuDNN."""
    found = []
    if call.mask is not None and call.mask.dtype not in ("bool", call.q.dtype):
        found.append(
            f"the mask is {call.mask.dtype} and q {call.q.dtype}: torch describes both to cuDNN as "
            f"{call.q.dtype}, and the result is wrong without a message (pytorch/pytorch#191612); "
            f"cast the mask to {call.q.dtype}"
        )
    if call.dropout * 16 != math.floor(call.dropout * 16):
        found.append(
            f"some of cuDNN's kernels count dropout in sixteenths and round {call.dropout:g} (pytorch/pytorch#174245); "
            f"dropout_p={max(1, round(call.dropout * 16)) / 16:g} is exact"
        )
    return tuple(found)


def _make_row_major_strides(dims: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(math.prod(dims[place + 1 :]) for place in range(len(dims)))


def apply_remedy(call: TorchCall, blocker: Blocker | None) -> tuple[TorchCall, str]:
    """Apply a blocker's remedy to a call; return the call and a text of the change, empty if there is no remedy."""
    if blocker is None or not _is_dense(call):
        return call, ""
    tensors = {name: getattr(call, name) for name in "qkv"}
    if blocker.gate == "dtype":
        kinds = {one.dtype for one in tensors.values()} & {"float16", "bfloat16"}
        kind = kinds.pop() if len(kinds) == 1 else "bfloat16"
        changed = {name: replace(one, dtype=kind) for name, one in tensors.items()}
        return replace(call, **changed), f"with q, k and v in {kind}"
    if blocker.gate == "dropout-steps":
        share = max(1, round(call.dropout * 16)) / 16
        return replace(call, dropout=share), f"with dropout_p={share:g}"
    if blocker.gate == "last-stride":
        changed = {name: replace(one, strides=_make_row_major_strides(one.dims)) for name, one in tensors.items()}
        return replace(call, **changed), "with contiguous tensors"
    if blocker.gate == "shapes" and (call.q.dims[3] % 8 or call.v.dims[3] % 8):
        dims = {name: (*one.dims[:3], -(-one.dims[3] // 8) * 8) for name, one in tensors.items()}
        changed = {
            name: replace(one, dims=dims[name], strides=_make_row_major_strides(dims[name]))
            for name, one in tensors.items()
        }
        scale = call.scale or call.q.dims[3] ** -0.5
        return replace(call, **changed, scale=scale), f"with head dims of {dims['q'][3]} and {dims['v'][3]}"
    if blocker.gate == "rank" and all(len(one.dims) == 3 for one in tensors.values()):
        changed = {
            name: replace(one, dims=(1, *one.dims), strides=(math.prod(one.dims), *one.strides))
            for name, one in tensors.items()
        }
        return replace(call, **changed), "with a batch of 1"
    return call, ""
