"""Convert recorded cases of torch's backend choice to calls, machines and answers of this package."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

from cudnn_backend_py.why.calls import Machine, TensorFacts, TorchBackendChoice, TorchCall, TorchSwitches
from cudnn_backend_py.why.conditions import ENVIRONMENT_VARIABLES
from tools.records.sdpa_grid import compute_tensor_sizes

__all__ = ["make_torch_call", "parse_torch_backend_choice", "read_machine"]


def _compute_layout_strides(size: tuple[int, ...], layout: str) -> tuple[int, ...]:
    row_major = tuple(math.prod(max(one, 1) for one in size[place + 1 :]) for place in range(len(size)))
    if len(size) != 4 or layout == "bhsd":
        return row_major
    b, h, s, d = (max(one, 1) for one in size)
    return {
        "bshd": (s * h * d, d, h * d, 1),
        "sbhd": (h * d, d, b * h * d, 1),
        "packed": (3 * s * h * d, d, 3 * h * d, 1),
        "wide": (h * s * (d + 8), s * (d + 8), d + 8, 1),
        "expanded": (0 if b > 1 else h * s * d, s * d, d, 1),
        "transposed": (h * s * d, s * d, 1, s),
    }[layout]


def make_torch_call(case: Mapping[str, Any]) -> TorchCall:
    """Return a recorded case as a `TorchCall`, without torch."""
    case = dict(case)
    sizes = compute_tensor_sizes(
        {name: tuple(value) if isinstance(value, list) else value for name, value in case.items()}
    )
    made = {}
    for name in "qkv":
        kind = case.get(f"{name}_dtype", case["dtype"])
        gradient = bool(case.get("requires_grad"))
        if "nested" in case and len(sizes[name]) == 4:
            dims = (len(case["nested"]), sizes[name][1], -1, sizes[name][3])
            made[name] = TensorFacts(dims, (), kind, case["device"], gradient, "nested", tuple(case["nested"]))
        else:
            strides = _compute_layout_strides(sizes[name], case["layout"])
            made[name] = TensorFacts(sizes[name], strides, kind, case["device"], gradient)
    mask = None
    if "mask" in case and case.get("rank", 4) == 4 and not case.get("small") and "nested" not in case:
        dims = tuple(case["mask"])
        strides = _compute_layout_strides(dims, "bhsd")
        if case.get("mask_transposed"):
            dims, strides = (*dims[:-2], dims[-1], dims[-2]), (*strides[:-2], strides[-1], strides[-2])
        kind = case.get("mask_dtype", case["dtype"])
        mask = TensorFacts(dims, strides, kind, case["device"], bool(case.get("mask_requires_grad")))
    names = {0: "math", 1: "flash", 2: "efficient", 3: "cudnn"}
    switches = TorchSwitches(
        case.get("cudnn", True),
        case.get("flash", True),
        case.get("efficient", True),
        case.get("math", True),
        bool(case.get("deterministic")),
        bool(case.get("warn_only")),
        tuple(names[number] for number in case["order"]) if "order" in case else None,
    )
    return TorchCall(
        q=made["q"],
        k=made["k"],
        v=made["v"],
        mask=mask,
        dropout=case.get("dropout", 0.0),
        causal=bool(case.get("causal")),
        gqa=bool(case.get("gqa")),
        grad_enabled=not case.get("no_grad"),
        switches=switches,
    )


def read_machine(record: Mapping[str, Any]) -> Machine:
    """Return the machine on which a record was made."""
    number = record["cudnn"]
    torch = [int(part) for part in re.findall(r"\d+", record["torch"].partition("+")[0])[:3]]
    cuda = [int(part) for part in record["cuda"].split(".")] if record["cuda"] else None
    return Machine(
        (torch[0], torch[1], torch[2]),
        (number // 10000, number // 100 % 100, number % 100),
        record["sm"],
        None if cuda is None else (cuda[0], cuda[1]),
        record["gpu"],
        {name: value for name, value in record["environment"].items() if name in ENVIRONMENT_VARIABLES},
        True,
    )


def parse_torch_backend_choice(answer: Mapping[str, Any]) -> TorchBackendChoice:
    """Return torch's recorded answer to a case as a `TorchBackendChoice`."""
    names = {0: "math", 1: "flash", 2: "efficient", 3: "cudnn"}
    choice = names.get(answer["choice"]) if isinstance(answer["choice"], int) else None
    able = answer["cudnn"] if isinstance(answer["cudnn"], bool) else None
    return TorchBackendChoice(
        choice, able, tuple(answer["words"]), answer["flash"] is True, answer["efficient"] is True
    )
