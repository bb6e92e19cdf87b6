"""Random calls of torch's scaled_dot_product_attention, and torch's backend choice for each (needs a GPU).

``python -m tools.records.sdpa_grid FILE`` writes the choices of the installed torch, for tests without a GPU.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import random
import re
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

BASE_CASE: dict[str, Any] = {
    "q": (2, 8, 128, 64),
    "k": (2, 8, 128, 64),
    "v": (2, 8, 128, 64),
    "dtype": "float16",
    "layout": "bhsd",
    "device": "cuda",
}
_HEAD_DIMS = (8, 20, 64, 96, 128, 136, 192, 200, 256, 264, 512)
_LENGTHS = ((128, 1), (1, 1), (1, 128), (0, 128), (128, 0), (128, 256), (63, 65), (256, 128))
_MASK_CASES = (
    {"mask": (128, 128)},
    {"mask": (128, 128), "mask_dtype": "bool"},
    {"mask": (1, 128), "mask_dtype": "bool"},
    {"mask": (128, 1)},
    {"mask": (8, 128, 128)},
    {"mask": (2, 8, 128, 128)},
    {"mask": (2, 1, 1, 128), "mask_dtype": "bool"},
    {"mask": (2, 4, 128, 128)},
    {"mask": (64, 128)},
    {"mask": (128, 64)},
    {"mask": (128, 128), "mask_requires_grad": True},
    {"mask": (128, 128), "mask_transposed": True},
    {"mask": (128, 128), "mask_dtype": "float32"},
)
CASE_VARIATIONS: tuple[tuple[dict[str, Any], ...], ...] = (
    tuple({"dtype": name} for name in ("bfloat16", "float32", "float64", "float8_e4m3fn")),
    ({"k_dtype": "bfloat16"}, {"v_dtype": "float32"}),
    tuple({"head_dim": dim} for dim in _HEAD_DIMS),
    ({"head_dim": 192, "head_dim_v": 128}, {"head_dim": 64, "head_dim_v": 128}, {"head_dim_v": 20}),
    tuple({"lengths": pair} for pair in _LENGTHS),
    ({"rank": 3}, {"rank": 5}, {"rank": 2}),
    tuple(
        {"heads": heads, "gqa": gqa} for heads in ((8, 2, 2), (8, 3, 3), (8, 4, 2), (8, 1, 1)) for gqa in (True, False)
    ),
    ({"batches": (2, 1, 1)}, {"batches": (1, 1, 1)}, {"batches": (65536, 65536, 65536), "small": True}),
    _MASK_CASES,
    tuple({"dropout": share} for share in (0.1, 0.125, 0.5, 1 / 3)),
    ({"causal": True},),
    tuple({"layout": name} for name in ("bshd", "sbhd", "packed", "wide", "transposed", "expanded")),
    ({"requires_grad": True}, {"requires_grad": True, "no_grad": True}),
    ({"cudnn": False}, {"flash": False}, {"math": False}, {"flash": False, "efficient": False, "math": False}),
    ({"deterministic": True}, {"deterministic": True, "warn_only": True}),
    ({"order": (1, 2, 0, 3)}, {"order": (3, 1, 2, 0)}),
    ({"device": "cpu"},),
    ({"nested": (200, 150)}, {"nested": (64, 100)}, {"nested": (200, 0)}),
)


def make_sdpa_cases(number: int, seed: int = 18) -> list[dict[str, Any]]:
    """Return SDPA calls: a plain one, each single variation of it, then random combinations of up to three."""
    found = [dict(BASE_CASE)] + [{**BASE_CASE, **choice} for aspect in CASE_VARIATIONS for choice in aspect]
    chance = random.Random(seed)
    while len(found) < number:
        case = dict(BASE_CASE)
        for aspect in chance.sample(CASE_VARIATIONS, chance.choice((2, 2, 3))):
            case |= chance.choice(aspect)
        found.append(case)
    return found[:number]


def compute_tensor_sizes(case: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    """Return the sizes of q, k and v of a case."""
    sizes = {}
    for place, name in enumerate("qkv"):
        b, h, s, d = case[name]
        b = case.get("batches", (b,) * 3)[place]
        h = case.get("heads", (h,) * 3)[place]
        if case.get("small"):
            h, s, d = 1, 8, 8
        d = case.get("head_dim_v", case.get("head_dim", d)) if name == "v" else case.get("head_dim", d)
        if case.get("small"):
            d = 8
        s = case.get("lengths", (s, s))[min(place, 1)]
        sizes[name] = {2: (s, d), 3: (h, s, d), 5: (1, b, h, s, d)}.get(case.get("rank", 4), (b, h, s, d))
    return sizes


def _make_tensor_with_layout(size: tuple[int, ...], layout: str, which: int, torch: Any, **how: Any) -> Any:
    if len(size) != 4 or layout == "bhsd":
        return torch.zeros(size, **how)
    b, h, s, d = size
    if layout == "bshd":
        return torch.zeros(b, s, h, d, **how).permute(0, 2, 1, 3)
    if layout == "sbhd":
        return torch.zeros(s, b, h, d, **how).permute(1, 2, 0, 3)
    if layout == "packed":
        return torch.zeros(b, s, 3, h, d, **how)[:, :, which].permute(0, 2, 1, 3)
    if layout == "wide":
        return torch.zeros(b, h, s, d + 8, **how)[..., :d]
    if layout == "expanded":
        return torch.zeros(1, h, s, d, **how).expand(b, h, s, d)
    return torch.zeros(b, h, d, s, **how).transpose(2, 3)


def make_sdpa_arguments(case: dict[str, Any], torch: Any) -> dict[str, Any]:
    """Return the arguments of a case for ``scaled_dot_product_attention``."""
    sizes, made = compute_tensor_sizes(case), {}
    for place, name in enumerate("qkv"):
        how = {"dtype": getattr(torch, case.get(f"{name}_dtype", case["dtype"])), "device": case["device"]}
        if "nested" in case and len(sizes[name]) == 4:
            _, h, _, d = sizes[name]
            parts = [torch.zeros(h, length, d, **how) for length in case["nested"]]
            made[name] = torch.nested.nested_tensor(parts, layout=torch.strided, **how)
        else:
            made[name] = _make_tensor_with_layout(sizes[name], case["layout"], place, torch, **how)
        if case.get("requires_grad") and made[name].is_floating_point():
            made[name].requires_grad_(True)
    mask = None
    if "mask" in case and case.get("rank", 4) == 4 and not case.get("small") and "nested" not in case:
        kind = getattr(torch, case.get("mask_dtype", case["dtype"]))
        mask = torch.zeros(case["mask"], dtype=kind, device=case["device"])
        if case.get("mask_transposed"):
            mask = mask.transpose(-1, -2)
        if case.get("mask_requires_grad"):
            mask.requires_grad_(True)
    options = {"dropout": case.get("dropout", 0.0), "causal": bool(case.get("causal")), "gqa": bool(case.get("gqa"))}
    return {**made, "mask": mask, **options}


@contextlib.contextmanager
def apply_backend_switches(case: dict[str, Any], torch: Any) -> Iterator[None]:
    """Apply torch's backend switches of a case within a ``with`` block."""
    cuda = torch.backends.cuda
    order = torch._C._get_sdp_priority_order()
    try:
        cuda.enable_cudnn_sdp(case.get("cudnn", True))
        cuda.enable_flash_sdp(case.get("flash", True))
        cuda.enable_mem_efficient_sdp(case.get("efficient", True))
        cuda.enable_math_sdp(case.get("math", True))
        torch.use_deterministic_algorithms(bool(case.get("deterministic")), warn_only=bool(case.get("warn_only")))
        if "order" in case:
            torch._C._set_sdp_priority_order([*case["order"]])
        with torch.no_grad() if case.get("no_grad") else contextlib.nullcontext():
            yield
    finally:
        for enable in (cuda.enable_cudnn_sdp, cuda.enable_flash_sdp, cuda.enable_mem_efficient_sdp):
            enable(True)
        cuda.enable_math_sdp(True)
        torch.use_deterministic_algorithms(False)
        torch._C._set_sdp_priority_order(order)


@contextlib.contextmanager
def _capture_standard_error() -> Iterator[list[str]]:
    """Capture standard error in the block, as torch's C++ code writes its warnings there."""
    said: list[str] = []
    kept = os.dup(2)
    with tempfile.TemporaryFile() as file:
        try:
            os.dup2(file.fileno(), 2)
            yield said
        finally:
            os.dup2(kept, 2)
            os.close(kept)
            file.seek(0)
            said.append(file.read().decode(errors="replace"))


def query_usable_backends(case: dict[str, Any], torch: Any) -> dict[str, Any]:
    """Return which of cuDNN, flash and efficient attention torch can use for a case, and which it selects."""
    call = make_sdpa_arguments(case, torch)
    cuda = torch.backends.cuda
    answer: dict[str, Any] = {"words": []}
    with apply_backend_switches(case, torch), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        given = cuda.SDPAParams(*(call[name] for name in ("q", "k", "v", "mask", "dropout", "causal", "gqa")))
        try:
            with _capture_standard_error() as said:
                answer["cudnn"] = cuda.can_use_cudnn_attention(given, debug=True)
        except Exception as error:
            answer["cudnn"] = f"{type(error).__name__}: {str(error)[:200]}"
        answer["words"] = re.findall(r"Warning: (.*\(function \w+\))", said[0])
        for name, able in (("flash", cuda.can_use_flash_attention), ("efficient", cuda.can_use_efficient_attention)):
            try:
                answer[name] = able(given, debug=False)
            except Exception as error:
                answer[name] = f"{type(error).__name__}"
        tensors = (call[name] for name in ("q", "k", "v", "mask", "dropout", "causal"))
        try:
            answer["choice"] = torch._fused_sdp_choice(*tensors, enable_gqa=call["gqa"])
        except Exception as error:
            answer["choice"] = f"{type(error).__name__}: {str(error)[:200]}"
    return answer


def _query_usable_backends_or_error(case: dict[str, Any], torch: Any) -> dict[str, Any]:
    try:
        return query_usable_backends(case, torch)
    except Exception as error:  # torch cannot make the tensors
        return {"unmade": f"{type(error).__name__}: {str(error)[:200]}"}


def main(path: str, number: int = 320) -> None:
    """Write torch's backend choice for every case, and for a few under each environment variable, as JSON."""
    import torch

    # this makes torch set its priority order
    torch._fused_sdp_choice(*[torch.empty(1, 1, 8, 8, dtype=torch.half, device="cuda")] * 3)
    cases = make_sdpa_cases(number)
    answers = [_query_usable_backends_or_error(case, torch) for case in cases]
    major, minor = torch.cuda.get_device_capability()
    record = {
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "cudnn": torch.backends.cudnn.version(),
        "gpu": torch.cuda.get_device_name(),
        "sm": 10 * major + minor,
        "environment": {name: value for name, value in os.environ.items() if "SDPA" in name},
        "order": torch._C._get_sdp_priority_order(),
        "cases": [{"case": case, "answer": answer} for case, answer in zip(cases, answers, strict=True)],
    }
    Path(path).write_text(json.dumps(record, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1], *(int(text) for text in itertools.islice(sys.argv, 2, 3)))
    if len(sys.argv) > 3:  # repeat with environment variables that torch reads only once per process
        for setting in sys.argv[3:]:
            name, _, value = setting.partition("=")
            target = Path(sys.argv[1]).with_suffix(f".{name}.json")
            command = [sys.executable, __file__, str(target), "60"]
            subprocess.run(command, env={**os.environ, name: value}, check=True)
