"""Run graphs on the GPU and compare with float64; wrong buffers are refused before launch."""

from __future__ import annotations

import importlib.util
import math
import re
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from cudnn_backend_py import DataType, OperationGraph, UsageError, build_plan, execute, open_target
from cudnn_backend_py.execution.run import variant_pack
from cudnn_backend_py.graph.attention import sdpa_forward
from cudnn_backend_py.plans.plan import Plan
from cudnn_backend_py.target import Target
from examples import forum_two_matmul
from tests.support.figures import append_measurement_to_run_record
from tests.support.flash import FLASH_SHAPE, compute_causal_attention, make_flash_graph
from tests.support.gpu_requirements import find_first_engine_config


@pytest.fixture(scope="module")
def gpu() -> Any:
    target = open_target()
    yield target
    target.close()


def build_first_plan(graph: Any, target: Target, mode: str = "A") -> Plan:
    return build_plan(find_first_engine_config(graph, target, mode))


def round_to_bf16(values: NDArray[np.float64]) -> NDArray[np.uint16]:
    """Round to bfloat16 (nearest even) and return its bits."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def convert_from_bf16(bits: NDArray[np.uint16]) -> NDArray[np.float64]:
    return (bits.astype(np.uint32) << 16).view(np.float32).astype(np.float64)


def test_two_matmuls_agree_with_float64_or_are_refused_as_removed(gpu: Target) -> None:
    if gpu.library.version >= (9, 25, 0):
        assert not OperationGraph(forum_two_matmul.graph(), gpu).heuristics("A").configs
        return
    plan = build_first_plan(forum_two_matmul.graph(), gpu)
    rng = np.random.default_rng(1)
    q, k, v = (rng.standard_normal((1, 1, 10, 64)).astype(np.float16) for _ in range(3))
    o = np.full((1, 1, 10, 64), np.nan, np.float16)
    execute(plan, {"q": q, "k": k.swapaxes(2, 3), "v": v, "o": o})
    s = (q.astype(np.float64) @ k.swapaxes(2, 3).astype(np.float64)).astype(np.float16)
    want = s.astype(np.float64) @ v.astype(np.float64)
    error = float(np.abs(o - want).max() / np.abs(want).max())
    frobenius = float(np.linalg.norm(o - want) / np.linalg.norm(want))
    append_measurement_to_run_record(
        "two matmul f16", engine=plan.tag, max_error_over_max=error, relative_frobenius=frobenius
    )
    assert frobenius < 2e-3


@pytest.mark.parametrize("data_type", [DataType.HALF, DataType.BFLOAT16], ids=["f16", "bf16"])
@pytest.mark.parametrize(
    ("seq", "head_dim", "heads", "kv_heads"), [(512, 64, 4, 4), (1000, 128, 4, 4), (1024, 64, 8, 2)]
)
def test_causal_flash_attention_agrees_with_float64(
    gpu: Target, data_type: DataType, seq: int, head_dim: int, heads: int, kv_heads: int
) -> None:
    graph = sdpa_forward(
        batch=2,
        heads=heads,
        kv_heads=kv_heads,
        seq_q=seq,
        head_dim=head_dim,
        data_type=data_type,
        causal=True,
        stats=True,
    )
    rng = np.random.default_rng(seq)
    raw = {
        name: rng.standard_normal((2, h, seq, head_dim)) for name, h in (("q", heads), ("k", kv_heads), ("v", kv_heads))
    }
    half = data_type is DataType.HALF
    stored = {name: x.astype(np.float16) if half else round_to_bf16(x) for name, x in raw.items()}
    exact = {name: x.astype(np.float64) if half else convert_from_bf16(x) for name, x in stored.items()}
    repeat = heads // kv_heads
    want_o, want_stats = compute_causal_attention(exact["q"], *(exact[name].repeat(repeat, 1) for name in "kv"))
    plan = build_first_plan(graph, gpu)
    shape = (2, heads, seq, head_dim)
    o = np.full(shape, np.nan, np.float16) if half else np.full(shape, 0x7FC0, np.uint16)
    stats = np.full((*shape[:3], 1), np.nan, np.float32)
    execute(plan, {"q": stored["q"], "k": stored["k"].swapaxes(2, 3), "v": stored["v"], "o": o, "stats": stats})
    got = o.astype(np.float64) if half else convert_from_bf16(o)
    frobenius = float(np.linalg.norm(got - want_o) / np.linalg.norm(want_o))
    stats_error = float(np.abs(stats - want_stats).max())
    append_measurement_to_run_record(
        f"causal flash {data_type.name} b2 h{heads}/{kv_heads} s{seq} d{head_dim}",
        engine=plan.tag,
        max_error=float(np.abs(got - want_o).max()),
        relative_frobenius=frobenius,
        stats_max_error=stats_error,
    )
    assert np.isfinite(got).all()
    assert frobenius < (1e-3 if half else 6e-3)
    assert stats_error < 1e-3


def list_installed_frameworks() -> list[str]:
    return [name for name in ("torch", "cupy") if importlib.util.find_spec(name)]


@pytest.mark.parametrize("framework", list_installed_frameworks())
def test_device_buffers_are_used_in_place(gpu: Target, framework: str) -> None:
    module = __import__(framework)
    plan = build_first_plan(make_flash_graph(), gpu)
    rng = np.random.default_rng(2)
    b, h, s, d = FLASH_SHAPE
    host = [rng.standard_normal((b, s, h, d)).astype(np.float16) for _ in range(3)]
    if framework == "torch":
        q, k, v = (module.from_numpy(x).cuda() for x in host)
        o, stats = module.full_like(q, math.nan), module.full((b, h, s, 1), math.nan, device="cuda")
        stream = module.cuda.current_stream().cuda_stream
        workspace = module.empty(max(1, plan.workspace_bytes), dtype=module.uint8, device="cuda")
        workspace_ptr = workspace.data_ptr()
    else:
        q, k, v = (module.asarray(x) for x in host)
        o, stats = module.full_like(q, math.nan), module.full((b, h, s, 1), math.nan, dtype="float32")
        stream = module.cuda.get_current_stream().ptr
        workspace = module.empty(max(1, plan.workspace_bytes), dtype="uint8")
        workspace_ptr = workspace.data.ptr
    execute(plan, {"q": q, "k": k, "v": v, "o": o, "stats": stats}, workspace_ptr=workspace_ptr, stream=stream)
    got = o.cpu().numpy() if framework == "torch" else module.asnumpy(o)
    want, _ = compute_causal_attention(*(x.swapaxes(1, 2) for x in host))
    assert np.linalg.norm(got.swapaxes(1, 2) - want) / np.linalg.norm(want) < 1e-3


def test_saved_plan_runs_after_loading(gpu: Target, tmp_path: Any) -> None:
    from cudnn_backend_py import load_plan

    graph = make_flash_graph()
    build_first_plan(graph, gpu).save(tmp_path / "plan.json")
    plan = load_plan(tmp_path / "plan.json", gpu)
    assert plan.graph == graph
    run_and_check_flash_attention(plan)


def test_numpy_execution_needs_only_the_cuda_driver() -> None:
    """Neither cuda-python nor a framework is needed: the driver manages memory and copies."""
    program = "import sys\nsys.modules.update(cuda=None, torch=None, cupy=None)\n"
    program += "from examples import flash_forward\nflash_forward.main()"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=120)
    assert not done.returncode, done.stderr
    error = re.search(r"max error of o ([\d.e+-]+), of stats ([\d.e+-]+)", done.stdout)
    assert error, done.stdout
    assert float(error[1]) < 5e-3
    assert float(error[2]) < 5e-3


def run_and_check_flash_attention(plan: Plan) -> float:
    rng = np.random.default_rng(3)
    shape = FLASH_SHAPE
    q, k, v = (rng.standard_normal(shape).astype(np.float16) for _ in range(3))
    o = np.full(shape, np.nan, np.float16)
    stats = np.full((*shape[:3], 1), np.nan, np.float32)
    execute(plan, {"q": q, "k": k.swapaxes(2, 3), "v": v, "o": o, "stats": stats})
    want, _ = compute_causal_attention(q, k, v)
    error = float(np.linalg.norm(o - want) / np.linalg.norm(want))
    assert error < 1e-3
    return error


def make_valid_buffers() -> dict[str | int, Any]:
    shape = FLASH_SHAPE
    x = np.zeros(shape, np.float16)
    return {"q": x, "k": x.swapaxes(2, 3), "v": x, "o": x.copy(), "stats": np.zeros((*shape[:3], 1), np.float32)}


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"q": None}, "missing-buffer"),
        ({"q": "text"}, "buffer-not-understood"),
        ({"q": 0}, "null-pointer"),
        ({"extra": 1}, "unknown-buffer"),
        ({"q": np.zeros((2, 4, 512, 64), np.float32)}, "array-type"),
        ({"q": np.zeros((2, 4, 511, 64), np.float16)}, "array-shape"),
        ({"q": 0x1001}, "buffer-misaligned"),
        ({"scale": np.zeros(2)}, "by-value-size"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_wrong_buffers_are_refused_and_the_context_survives(gpu: Target, change: dict[Any, Any], code: str) -> None:
    plan = build_first_plan(make_flash_graph(), gpu)
    with pytest.raises(UsageError) as caught:
        execute(plan, {**make_valid_buffers(), **change})
    assert caught.value.code == code
    run_and_check_flash_attention(plan)


def test_missing_buffer_and_workspace_are_refused(gpu: Target) -> None:
    plan = build_first_plan(make_flash_graph(), gpu)
    buffers = make_valid_buffers()
    del buffers["v"]
    with pytest.raises(UsageError, match=r"missing-buffer: no buffer was given for v"):
        execute(plan, buffers)
    if plan.workspace_bytes:
        with pytest.raises(UsageError, match="workspace-missing"):
            variant_pack(plan, {"q": 16, "k": 16, "v": 16, "o": 16, "stats": 16})
