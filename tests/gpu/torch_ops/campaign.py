"""Random problems of the torch operators compared with float64 on the GPU: ``python -m tests.gpu.torch_ops.campaign``.

With ``--names``, each option of dense tensors has all the problems, in its own process: a thousand of each.

Dense tensors of random batch and lengths (forward, statistics, every gradient), packed tokens, paged K and V, and
decoding of 64 sequences of up to 32k tokens. The record has the number of right results, the largest error, and
the host time of each shape's first call.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

from cudnn_backend_py.info import make_measurement_record_header
from cudnn_backend_py.torch_ops import attention, attention_varlen, attention_with_kvcache
from tests.support.torch_reference import (
    Masks,
    compute_frobenius_error,
    compute_reference_attention,
    compute_reference_gradients,
    copy_sequences_to_shuffled_pages,
    pack_tokens,
    unpack_tokens,
)

MAX_FROBENIUS_ERRORS = {"float16": 2e-3, "bfloat16": 1.6e-2}  # relative Frobenius, gradients get twice that
MAX_SEQUENCE_LENGTH = 1024  # tokens of a sequence
CAUSAL_OPTIONS = {"causal": True}
WINDOW_OPTIONS = {"causal": True, "left_bound": 65}
# name: options of the operator, heads of Q and K, head dim, type, layout
DENSE_OPTIONS: dict[str, tuple[dict[str, Any], int, int, int, str, str]] = {
    "plain": ({}, 4, 4, 64, "float16", "bshd"),
    "causal": (CAUSAL_OPTIONS, 4, 4, 64, "float16", "bshd"),
    "causal, heads first": (CAUSAL_OPTIONS, 4, 4, 64, "bfloat16", "bhsd"),
    "slices of one buffer": (CAUSAL_OPTIONS, 4, 4, 64, "float16", "packed"),
    "window": (WINDOW_OPTIONS, 4, 4, 128, "bfloat16", "bshd"),
    "grouped heads": (CAUSAL_OPTIONS, 8, 2, 128, "float16", "bshd"),
    "grouped heads, heads first": (CAUSAL_OPTIONS, 4, 2, 64, "float16", "bhsd"),
    "padding": ({"lengths": True, **CAUSAL_OPTIONS}, 4, 4, 64, "float16", "bshd"),
    "padding, heads first": ({"lengths": True}, 4, 4, 64, "float16", "bhsd"),
    "bias": ({"bias": True}, 4, 4, 64, "float16", "bshd"),
    "soft cap": ({"soft_cap": 5.0, **CAUSAL_OPTIONS}, 4, 4, 64, "float16", "bshd"),
    "sink": ({"sink": True, **CAUSAL_OPTIONS}, 4, 2, 64, "bfloat16", "bshd"),
    "alibi": ({"alibi": True, **CAUSAL_OPTIONS}, 4, 4, 64, "float16", "bshd"),
}
VARLEN_OPTIONS: dict[str, tuple[dict[str, Any], int, int, int, str]] = {
    "plain": ({}, 4, 4, 64, "float16"),
    "causal": (CAUSAL_OPTIONS, 4, 4, 64, "bfloat16"),
    "causal, grouped heads": (CAUSAL_OPTIONS, 8, 2, 128, "float16"),
    "causal, top left": ({"alignment": "top_left", **CAUSAL_OPTIONS}, 4, 2, 64, "float16"),
    "window": (WINDOW_OPTIONS, 4, 2, 64, "float16"),
    "sink": ({"sink": True, **CAUSAL_OPTIONS}, 4, 2, 64, "bfloat16"),
    "sink, window": ({"sink": True, **WINDOW_OPTIONS}, 4, 4, 64, "float16"),
    "soft cap": ({"soft_cap": 5.0, **CAUSAL_OPTIONS}, 4, 4, 64, "float16"),
}
PAGED_OPTIONS: dict[str, tuple[dict[str, Any], int, int, int, str, int]] = {
    "plain": ({}, 4, 4, 64, "float16", 16),
    "causal, grouped heads": (CAUSAL_OPTIONS, 8, 2, 128, "bfloat16", 64),
    "window": (WINDOW_OPTIONS, 8, 2, 64, "float16", 16),
    "sink": ({"sink": True, **CAUSAL_OPTIONS}, 8, 2, 64, "float16", 32),
    "soft cap": ({"soft_cap": 5.0, **CAUSAL_OPTIONS}, 4, 2, 64, "float16", 128),
}


class CampaignRecord:
    """The counts and errors of the problems that have run, for each part of the campaign."""

    def __init__(self) -> None:
        self.parts: dict[str, dict[str, Any]] = {}

    def add(self, part: str, problem: dict[str, Any], kind: str, errors: dict[str, float], host_ms: float) -> None:
        """Add a problem that has run, with its errors."""
        limits = {name: MAX_FROBENIUS_ERRORS[kind] * (2 if name.startswith("d") else 1) for name in errors}
        wrong = {name: value for name, value in errors.items() if not value < limits[name]}
        self._add_problem(part, problem, wrong or None, errors)
        self.parts[part]["host_ms"].append(host_ms)

    def add_failure(self, part: str, problem: dict[str, Any], failure: Exception) -> None:
        """Add a problem that could not be run."""
        self._add_problem(part, problem, f"{type(failure).__name__}: {failure}"[:400], {})

    def _add_problem(self, part: str, problem: dict[str, Any], wrong: Any, errors: dict[str, float]) -> None:
        found = self.parts.setdefault(
            part, {"problems": 0, "right": 0, "wrong": [], "worst": {}, "by_name": {}, "host_ms": []}
        )
        found["problems"] += 1
        found["right"] += wrong is None
        by_name = found["by_name"].setdefault(problem["name"], [0, 0])
        by_name[0] += wrong is None
        by_name[1] += 1
        if wrong is not None and len(found["wrong"]) < 200:
            found["wrong"].append(problem | {"wrong": wrong})
        for name, value in errors.items():
            if not value <= found["worst"].get(name, 0.0):
                found["worst"][name] = value

    def to_dict(self) -> dict[str, Any]:
        """Return the record as JSON data, with host times as quantiles."""
        return {name: part | {"host_ms": _compute_quantiles(part["host_ms"])} for name, part in self.parts.items()}


def _compute_quantiles(values: list[float]) -> dict[str, float]:
    ordered = sorted(values)
    at = {"median": 0.5, "p90": 0.9, "p99": 0.99, "most": 1.0}
    return {name: ordered[min(len(ordered) - 1, int(share * len(ordered)))] for name, share in at.items() if ordered}


def _make_random_log_uniform(rng: random.Random, most: int, least: int = 1) -> int:
    """Return a random number between two bounds, uniform on a logarithmic scale."""
    return round(math.exp(rng.uniform(math.log(least), math.log(most))))


def _make_random_length(rng: random.Random, most: int) -> int:
    return rng.choice(
        (
            0,
            1,
            _make_random_log_uniform(rng, most),
            _make_random_log_uniform(rng, most),
            _make_random_log_uniform(rng, most),
        )
    )


class RandomInputs:
    """Random tensors of one seed on the GPU."""

    def __init__(self, torch: Any, kind: str, seed: int) -> None:
        self.torch, self.type = torch, getattr(torch, kind)
        self._generator = torch.Generator(device="cuda").manual_seed(seed)

    def make_random_normal(self, *dims: int, dtype: Any = None) -> Any:
        """Return normally distributed numbers in the type of Q, or in another type."""
        return self.torch.randn(dims, device="cuda", dtype=dtype or self.type, generator=self._generator)

    def make_random_heads(self, b: int, h: int, s: int, d: int, layout: str) -> Any:
        """Return a random [b, h, s, d] tensor in the requested layout."""
        if layout == "bhsd":
            return self.make_random_normal(b, h, s, d)
        return self.make_random_normal(b, s, h, d).transpose(1, 2)

    def make_int32_tensor(self, values: list[int]) -> Any:
        """Return these integers as an int32 tensor."""
        return self.torch.tensor(values, dtype=self.torch.int32, device="cuda")


def _make_reference_masks(options: dict[str, Any], bottom_right: bool) -> Masks:
    return Masks(
        left_bound=options.get("left_bound"),
        right_bound=0 if options.get("causal") else None,
        bottom_right=options.get("alignment", "bottom_right" if bottom_right else "top_left") == "bottom_right",
        soft_cap=options.get("soft_cap"),
    )


def _time_call(torch: Any, call: Callable[[], Any]) -> tuple[Any, float]:
    """Return the result of a call, and its host time in milliseconds."""
    torch.cuda.synchronize()
    begin = time.perf_counter()
    found = call()
    return found, (time.perf_counter() - begin) * 1e3


def make_random_dense_problem(rng: random.Random, names: Sequence[str] = tuple(DENSE_OPTIONS)) -> dict[str, Any]:
    """Return a random problem of dense tensors."""
    name = rng.choice(names)
    while True:
        b, s_q = _make_random_log_uniform(rng, 32), _make_random_log_uniform(rng, MAX_SEQUENCE_LENGTH)
        s_kv = s_q if rng.random() < 0.7 else _make_random_log_uniform(rng, MAX_SEQUENCE_LENGTH)
        if b * s_q * s_kv <= 1 << 22:
            break
    lengths = [[_make_random_length(rng, s) for _ in range(b)] for s in (s_q, s_kv)]
    return {"name": name, "batch": b, "seq_q": s_q, "seq_kv": s_kv, "lengths": lengths, "seed": rng.randrange(1 << 30)}


def run_dense_attention_problem(torch: Any, p: dict[str, Any], record: CampaignRecord | None, shapes: str) -> None:
    """Run a problem of dense tensors, forward and backward."""
    options, heads, kv_heads, d, kind, layout = DENSE_OPTIONS[p["name"]]
    options = dict(options)
    new = RandomInputs(torch, kind, p["seed"])
    b, s_q, s_kv = p["batch"], p["seq_q"], p["seq_kv"]
    if layout == "packed":
        s_kv = s_q
        q, k, v = (x.transpose(1, 2) for x in new.make_random_normal(b, s_q, 3, heads, d).unbind(2))
    else:
        q = new.make_random_heads(b, heads, s_q, d, layout)
        k, v = (new.make_random_heads(b, kv_heads, s_kv, d, layout) for _ in range(2))
    d_o, inputs, others = new.make_random_heads(b, heads, s_q, d, layout), {"q": q, "k": k, "v": v}, {}
    if options.pop("lengths", False):
        others = {"len_q": new.make_int32_tensor(p["lengths"][0]), "len_kv": new.make_int32_tensor(p["lengths"][1])}
    if options.pop("bias", False):
        inputs["bias"] = new.make_random_normal(1, heads, s_q, s_kv)
    if options.pop("sink", False):
        inputs["sink"] = new.make_random_normal(heads, dtype=torch.float32)
    slopes = {}
    if options.pop("alibi", False):
        slopes["alibi_slopes"] = 2.0 ** -torch.arange(1, heads + 1, device="cuda", dtype=torch.float32)
    for x in inputs.values():
        x.requires_grad_(True)
    lengths = {f"seq_{name}": x for name, x in others.items()}
    more = {name: x for name, x in inputs.items() if name not in "qkv"}

    def forward() -> Any:
        return attention(q, k, v, **options, **lengths, **more, **slopes, shapes=shapes, return_stats=True)

    (o, stats), host = _time_call(torch, forward)
    found, host_backward = _time_call(torch, lambda: torch.autograd.grad(o, list(inputs.values()), d_o))
    if record is None:
        return
    # Rows beyond the lengths are 0, regardless of the gradient of the output there.
    want = compute_reference_gradients(inputs, d_o, _make_reference_masks(options, False), **others, **slopes)
    errors = {"o": compute_frobenius_error(o, want["o"])} | {
        f"d{name}": compute_frobenius_error(x, want[f"d{name}"]) for name, x in zip(inputs, found, strict=True)
    }
    has_keys = want["stats"] != float("-inf")
    errors["stats"] = compute_frobenius_error(stats.squeeze(-1)[has_keys], want["stats"][has_keys])
    record.add("dense", p, kind, errors, host)
    record.parts["dense"]["host_ms"].append(host_backward)


def make_random_varlen_problem(rng: random.Random) -> dict[str, Any]:
    """Return a random problem of packed tokens."""
    name = rng.choice(list(VARLEN_OPTIONS))
    b = _make_random_log_uniform(rng, 16)
    many_q = [_make_random_length(rng, MAX_SEQUENCE_LENGTH // 2) for _ in range(b)]
    same = rng.random() < 0.6
    many_kv = many_q if same else [_make_random_length(rng, MAX_SEQUENCE_LENGTH // 2) for _ in range(b)]
    return {"name": name, "len_q": many_q, "len_kv": many_kv, "same": same, "seed": rng.randrange(1 << 30)}


def run_varlen_attention_problem(torch: Any, p: dict[str, Any], record: CampaignRecord | None, shapes: str) -> None:
    """Run a problem of packed tokens, forward and backward."""
    options, heads, kv_heads, d, kind = VARLEN_OPTIONS[p["name"]]
    options = dict(options)
    new = RandomInputs(torch, kind, p["seed"])
    many_q, many_kv = p["len_q"], p["len_kv"]
    q, d_o = (new.make_random_normal(sum(many_q), heads, d) for _ in range(2))
    inputs = {
        "q": q,
        "k": new.make_random_normal(sum(many_kv), kv_heads, d),
        "v": new.make_random_normal(sum(many_kv), kv_heads, d),
    }
    if options.pop("sink", False):
        inputs["sink"] = new.make_random_normal(heads, dtype=torch.float32)
    for x in inputs.values():
        x.requires_grad_(True)
    cu_q, cu_kv = (new.make_int32_tensor([sum(many[:i]) for i in range(len(many) + 1)]) for many in (many_q, many_kv))
    longest, longest_kv = max(many_q), max(many_kv)
    more = {"sink": inputs["sink"]} if "sink" in inputs else {}

    def forward() -> Any:
        packed = (inputs["q"], inputs["k"], inputs["v"], cu_q, None if p["same"] else cu_kv, longest, longest_kv)
        return attention_varlen(*packed, **options, **more, shapes=shapes, return_stats=True)

    (o, stats), host = _time_call(torch, forward)
    found, host_backward = _time_call(torch, lambda: torch.autograd.grad(o, list(inputs.values()), d_o))
    if record is None:
        return
    wide = {
        name: x
        if name == "sink"
        else unpack_tokens(x.detach(), *((many_q, longest) if name == "q" else (many_kv, longest_kv)))
        for name, x in inputs.items()
    }
    want = compute_reference_gradients(
        wide,
        unpack_tokens(d_o, many_q, longest),
        _make_reference_masks(options, True),
        len_q=new.make_int32_tensor(many_q),
        len_kv=new.make_int32_tensor(many_kv),
    )
    errors = {
        "o": compute_frobenius_error(o, pack_tokens(want["o"], many_q)),
        "dq": compute_frobenius_error(found[0], pack_tokens(want["dq"], many_q)),
    }
    errors |= {
        f"d{name}": compute_frobenius_error(x, pack_tokens(want[f"d{name}"], many_kv))
        for name, x in zip("kv", found[1:3], strict=True)
    }
    if more:
        errors["dsink"] = compute_frobenius_error(found[3], want["dsink"])
    lse = pack_tokens(want["stats"], many_q)
    has_keys = lse != float("-inf")
    errors["stats"] = compute_frobenius_error(stats[has_keys], lse[has_keys])
    record.add("varlen", p, kind, errors, host)
    record.parts["varlen"]["host_ms"].append(host_backward)


def make_random_paged_problem(rng: random.Random) -> dict[str, Any]:
    """Return a random problem with paged K and V: decoding, a chunk of equal lengths, or packed tokens."""
    name, way = rng.choice(list(PAGED_OPTIONS)), rng.choice(("decode", "chunk", "packed"))
    b = _make_random_log_uniform(rng, 32)
    chunk = 1 if way == "decode" else _make_random_log_uniform(rng, 256, 2)
    many_q = [chunk] * b if way != "packed" else [_make_random_length(rng, 256) for _ in range(b)]
    # The queries' own keys are in the pages; some sequences have only those, some none at all.
    many_kv = [
        n
        + rng.choice(
            (
                0,
                1,
                _make_random_log_uniform(rng, MAX_SEQUENCE_LENGTH),
                _make_random_log_uniform(rng, MAX_SEQUENCE_LENGTH),
            )
        )
        for n in many_q
    ]
    if rng.random() < 0.2 and "causal" not in PAGED_OPTIONS[name][0]:
        many_kv[rng.randrange(b)] = rng.choice((0, 1))
    return {"name": name, "way": way, "len_q": many_q, "len_kv": many_kv, "seed": rng.randrange(1 << 30)}


def run_paged_attention_problem(torch: Any, p: dict[str, Any], record: CampaignRecord | None, shapes: str) -> None:
    """Run a problem of paged K and V."""
    options, heads, kv_heads, d, kind, page_size = PAGED_OPTIONS[p["name"]]
    options = dict(options)
    new = RandomInputs(torch, kind, p["seed"])
    many_q, many_kv = p["len_q"], p["len_kv"]
    b, longest, longest_kv = len(many_q), max(*many_q, 1), max(*many_kv, 1)
    k, v = (new.make_random_heads(b, kv_heads, longest_kv, d, "bshd") for _ in range(2))
    # The same pages for every problem of a kind, as in a server: few of them are used.
    k_pages, table = copy_sequences_to_shuffled_pages(
        k, many_kv, page_size, 4096 - b * -(-longest_kv // page_size), p["seed"]
    )
    v_pages, _ = copy_sequences_to_shuffled_pages(
        v, many_kv, page_size, 4096 - b * -(-longest_kv // page_size), p["seed"]
    )
    q = new.make_random_heads(b, heads, longest, d, "bshd")
    more = {"sink": new.make_random_normal(heads, dtype=torch.float32)} if options.pop("sink", False) else {}
    packed: dict[str, Any] = {}
    given = q.transpose(1, 2)
    if p["way"] == "packed":
        given = pack_tokens(q, many_q)
        packed = {
            "cu_seqlens_q": new.make_int32_tensor([sum(many_q[:i]) for i in range(b + 1)]),
            "max_seqlen_q": longest,
        }

    def forward() -> Any:
        return attention_with_kvcache(
            *(given, k_pages, v_pages, table, new.make_int32_tensor(many_kv)),
            **(options | more | packed),
            shapes=shapes,
            return_stats=True,
        )

    (o, stats), host = _time_call(torch, forward)
    if record is None:
        return
    wide = {name: x.double() for name, x in (("q", q), ("k", k), ("v", v))}
    want, lse = compute_reference_attention(
        *wide.values(),
        _make_reference_masks(options, True),
        len_q=new.make_int32_tensor(many_q),
        len_kv=new.make_int32_tensor(many_kv),
        **{name: x.double() for name, x in more.items()},
    )
    if packed:
        want, lse = pack_tokens(want, many_q), pack_tokens(lse, many_q)
    else:
        o, stats = o.transpose(1, 2), stats.squeeze(-1)
    has_keys = lse != float("-inf")
    record.add(
        "paged",
        p,
        kind,
        {"o": compute_frobenius_error(o, want), "stats": compute_frobenius_error(stats[has_keys], lse[has_keys])},
        host,
    )


def decode_long_sequences(torch: Any, record: CampaignRecord) -> None:
    """Decode 64 sequences with up to 32k tokens."""
    rng = random.Random(64)
    for heads, kv_heads, d, page_size in ((8, 1, 128, 64), (8, 2, 64, 16)):
        new = RandomInputs(torch, "bfloat16", heads + page_size)
        many = [32768, 1, 2, *(_make_random_log_uniform(rng, 32768) for _ in range(61))]
        k, v = (new.make_random_heads(64, kv_heads, 32768, d, "bshd") for _ in range(2))
        k_pages, table = copy_sequences_to_shuffled_pages(k, many, page_size, 7, 1)
        v_pages, _ = copy_sequences_to_shuffled_pages(v, many, page_size, 7, 1)
        q, lens = new.make_random_normal(64, 1, heads, d), new.make_int32_tensor(many)
        p = {"name": f"{heads} heads over {kv_heads}, d {d}, pages of {page_size}"}
        (o, stats), host = _time_call(
            torch,
            lambda q=q, k=k_pages, v=v_pages, table=table, lens=lens: attention_with_kvcache(
                q, k, v, table, lens, causal=True, return_stats=True
            ),
        )
        wants = [
            compute_reference_attention(
                *(x[i : i + 8].double() for x in (q.transpose(1, 2), k, v)), Masks(), len_kv=lens[i : i + 8]
            )
            for i in range(0, 64, 8)
        ]
        want, lse = (torch.cat(parts) for parts in zip(*wants, strict=True))
        errors = {
            "o": compute_frobenius_error(o.transpose(1, 2), want),
            "stats": compute_frobenius_error(stats.squeeze(-1), lse),
        }
        record.add("decode", p, "bfloat16", errors, host)


CAMPAIGN_PARTS: dict[str, tuple[Callable[..., Any], Callable[..., Any], int]] = {
    "dense": (make_random_dense_problem, run_dense_attention_problem, 1000),
    "varlen": (make_random_varlen_problem, run_varlen_attention_problem, 500),
    "paged": (make_random_paged_problem, run_paged_attention_problem, 500),
}


def list_largest_attention_problems(part: str) -> list[dict[str, Any]]:
    """Return the largest problem of each kind in a part; the plans built for them also serve all smaller problems."""
    if part == "dense":
        full = [[MAX_SEQUENCE_LENGTH] * 32] * 2
        return [
            {
                "name": name,
                "batch": 32,
                "seq_q": MAX_SEQUENCE_LENGTH,
                "seq_kv": MAX_SEQUENCE_LENGTH,
                "lengths": full,
                "seed": 1,
            }
            for name in DENSE_OPTIONS
        ]
    if part == "varlen":
        return [
            {"name": name, "len_q": many, "len_kv": many, "same": same, "seed": 1}
            for name in VARLEN_OPTIONS
            for many in [[MAX_SEQUENCE_LENGTH // 2] * 16]
            for same in (True, False)
        ]
    return [
        {"name": name, "way": way, "len_q": [n] * 32, "len_kv": [MAX_SEQUENCE_LENGTH + 256] * 32, "seed": 1}
        for name in PAGED_OPTIONS
        for way, n in (("decode", 1), ("chunk", 256), ("packed", 256))
    ]


def main() -> None:
    """Run all parts of the campaign in parallel, each in its own process, and write the record."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument(
        "--seconds", type=float, default=100.0, help="seconds after which no further problem is started"
    )
    parser.add_argument("--shapes", default="any", help="shape policy of the calls")
    parser.add_argument("--share", type=float, default=1.0, help="share of the problems to run")
    parser.add_argument("--seed", type=int, default=2026)
    parser.add_argument("--parts", default="dense,varlen,paged,decode")
    parser.add_argument("--names", help="cases of dense tensors to run instead of parts, separated by commas")
    chosen = parser.parse_args()
    parts = [("dense", name) for name in chosen.names.split(",")] if chosen.names else []
    parts = parts or [(part, "") for part in chosen.parts.split(",")]
    if len(parts) == 1:
        found = _run_campaign_part_and_get_record(*parts[0], chosen)
    else:
        records = [chosen.output.with_suffix(f".{number}.json") for number in range(len(parts))]
        asked = ["--seconds", chosen.seconds, "--shapes", chosen.shapes, "--share", chosen.share, "--seed", chosen.seed]
        command = [sys.executable, "-m", "tests.gpu.torch_ops.campaign", *map(str, asked)]
        runs = [
            subprocess.Popen([*command, *(("--names", name) if name else ("--parts", part)), "--output", str(record)])
            for (part, name), record in zip(parts, records, strict=True)
        ]
        for run in runs:
            run.wait()
        found = {}
        for record in records:
            part = json.loads(record.read_text(encoding="utf-8"))
            found = part | {key: found.get(key, {}) | part[key] for key in ("seconds", "parts")}
            found["arguments"] = sys.argv[1:]
            record.unlink()
    chosen.output.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


def _run_campaign_part_and_get_record(part: str, name: str, chosen: argparse.Namespace) -> dict[str, Any]:
    """Run one part of the campaign, or only its problems with option `name`, and return the record."""
    import torch

    begin = time.perf_counter()
    record = CampaignRecord()
    if part == "decode":
        decode_long_sequences(torch, record)
    else:
        _run_campaign_part(torch, part, record, chosen, begin, name)
    found = record.to_dict()
    if name:
        found = {f"{part}, {name}": found.pop(part, {}), **found}
    for title, one in found.items():
        print(title, f"{one['right']} of {one['problems']} right", one["worst"], one["host_ms"], one["by_name"])
        for wrong in one["wrong"][:6]:
            print("  ", json.dumps(wrong)[:600])
    return {
        **make_measurement_record_header("torch-operators"),
        "what": "random problems of the torch operators against float64: relative Frobenius errors",
        "arguments": sys.argv[1:],
        "gpu": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "cudnn": torch.backends.cudnn.version(),
        "shapes": chosen.shapes,
        "seconds": {f"{part}, {name}" if name else part: time.perf_counter() - begin},
        "parts": found,
    }


def _run_campaign_part(
    torch: Any, part: str, record: CampaignRecord, chosen: argparse.Namespace, begin: float, name: str
) -> None:
    make, run, count = CAMPAIGN_PARTS[part]
    if name:
        make = partial(make_random_dense_problem, names=(name,))

    def build_plans(problem: dict[str, Any]) -> None:
        try:
            run(torch, problem, None, chosen.shapes)
        except Exception as failure:  # a campaign records errors and continues
            record.add_failure(f"{part}, plans", problem, failure)

    with ThreadPoolExecutor(8) as pool:
        list(
            pool.map(
                build_plans,
                [problem for problem in list_largest_attention_problems(part) if name in ("", problem["name"])],
            )
        )
    torch.cuda.synchronize()
    rng = random.Random(chosen.seed)
    for _ in range(int(count * chosen.share)):
        if time.perf_counter() - begin > chosen.seconds:
            break
        problem = make(rng)
        try:
            run(torch, problem, record, chosen.shapes)
        except Exception as failure:  # a campaign records errors and continues
            record.add_failure(part, problem, failure)


if __name__ == "__main__":
    main()
