"""A backward pass reads statistics in any layout, except on versions with ``backward-stats-layout``."""

from __future__ import annotations

import importlib.util
import random
from typing import Any

import pytest

from cudnn_backend_py import open_target, plan
from cudnn_backend_py.graph.attention import Attention, sdpa_backward
from cudnn_backend_py.known_issues import FAULTS

STATS_AXIS_ORDERS = [(0, 2, 1), (2, 1, 0), (1, 0, 2), (2, 0, 1), (1, 2, 0)]  # of b, h and s in memory
STATS_LAYOUT_ISSUE = next(issue for issue in FAULTS if issue.code == "backward-stats-layout")


@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="the buffers are torch's, which is not installed")
@pytest.mark.parametrize("seed", range(12))
def test_gradients_do_not_depend_on_the_statistics_layout(seed: int) -> None:
    import torch

    target = open_target()
    if STATS_LAYOUT_ISSUE.affects_version(target.library.version, target.sm):
        pytest.skip("did not run: the known issue is of this architecture and version")
    draw = random.Random(seed)
    b, h, s, d = draw.randint(2, 8), draw.randint(2, 6), draw.randint(64, 1500), draw.choice([32, 64, 128, 208, 256])
    options = {name: True for name in ("causal", "padding") if draw.random() < 0.5}
    problem: dict[str, Any] = {"batch": b, "heads": h, "seq_q": s, "seq_kv": s, "head_dim": d, **options}
    generator = torch.Generator("cuda").manual_seed(seed)
    buffers = {
        name: torch.randn(b, s, h, d, device="cuda", generator=generator, dtype=torch.float16).transpose(1, 2)
        for name in ("q", "k", "v", "do")
    }
    lengths = torch.randint(1, s + 1, (b, 1, 1, 1), device="cuda", generator=generator, dtype=torch.int32)
    if "padding" in options:
        buffers |= {"seq_len_q": lengths, "seq_len_kv": lengths}
    scores = buffers["q"].float() @ buffers["k"].float().transpose(2, 3) * d**-0.5
    place = torch.arange(s, device="cuda")
    hidden = (place[None] > place[:, None]) & ("causal" in options)
    if "padding" in options:
        hidden = hidden | (place >= lengths)
    scores.masked_fill_(hidden, float("-inf"))
    stats = scores.logsumexp(-1, keepdim=True)
    o = (scores.softmax(-1) @ buffers["v"].float()).half()
    buffers["o"] = o.transpose(1, 2).contiguous().transpose(1, 2)
    order, gap, strides, step = draw.choice(STATS_AXIS_ORDERS), draw.choice([0, 8]), [0, 0, 0], 1
    for axis in reversed(order):
        strides[axis], step = step, step * ((b, h, s)[axis] + gap)
    other = torch.full((step + 64,), float("nan"), device="cuda").as_strided((b, h, s, 1), (*strides, 1))
    other.copy_(stats)
    packed = compute_gradients({}, problem, buffers | {"stats": stats})
    found = compute_gradients({"stats": (*strides, 1)}, problem, buffers | {"stats": other})
    assert all(torch.equal(packed[name], found[name]) for name in packed)
    assert all(bool(gradient.isfinite().all()) and gradient.any() for gradient in found.values())


def compute_gradients(layout: dict[str, Any], problem: dict[str, Any], buffers: dict[str, Any]) -> dict[str, Any]:
    import torch

    scale = problem["head_dim"] ** -0.5
    run = plan(sdpa_backward(Attention(**problem, deterministic=True, scale=scale, layout=layout)))
    made = {f"d{name}": torch.full_like(buffers[name], float("nan")) for name in ("q", "k", "v")}
    run(**{name: (buffers | made)[name] for name in run.names})
    torch.cuda.synchronize()
    return made
