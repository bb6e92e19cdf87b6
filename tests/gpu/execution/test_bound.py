"""``Executable`` with all kinds of buffers, streams, workspaces and by-value numbers; wrong buffers; CUDA graphs."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from cudnn_backend_py import (
    DataType,
    EnvironmentNotReady,
    GraphBuilder,
    PointwiseMode,
    UsageError,
    build_plan,
    open_target,
)
from cudnn_backend_py.execution.executable import Executable
from cudnn_backend_py.graph import Graph
from cudnn_backend_py.graph.attention import sdpa_backward, sdpa_forward
from cudnn_backend_py.target import Target
from tests.support.gpu_requirements import find_first_engine_config, needs_two_gpus

torch: Any = pytest.importorskip("torch", reason="did not run: torch is not installed, and these tests need it")
B, H, S, D = 2, 4, 256, 64


@pytest.fixture(scope="module")
def gpu() -> Iterator[Target]:
    target = open_target()
    yield target
    target.close()


def make_executable(graph: Graph, gpu: Target, **options: Any) -> Executable:
    return Executable(build_plan(find_first_engine_config(graph, gpu)), **options)


def make_forward_graph(**options: Any) -> Graph:
    return sdpa_forward(batch=B, heads=H, seq_q=S, head_dim=D, causal=True, stats=True, **options)


def make_random_buffers(seed: int = 0) -> dict[str, Any]:
    generator = torch.Generator("cuda").manual_seed(seed)
    q, k, v = (torch.randn(B, S, H, D, device="cuda", dtype=torch.half, generator=generator) for _ in range(3))
    return {"q": q, "k": k, "v": v, "o": torch.full_like(q, torch.nan), "stats": torch.empty(B, H, S, 1, device="cuda")}


def check_attention_output(given: dict[str, Any], scale: float | None = None) -> None:
    q, k, v = (given[name].transpose(1, 2).float() for name in "qkv")
    want = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True, scale=scale)
    error = torch.linalg.norm(given["o"].transpose(1, 2).float() - want) / torch.linalg.norm(want)
    assert error < 1e-3


def test_buffers_are_accepted_by_position_name_and_uid(gpu: Target) -> None:
    run = make_executable(make_forward_graph(), gpu)
    assert run.names == ("q", "k", "v", "stats", "o")  # inputs, then outputs, in the order of the operations
    for seed, way in enumerate(("position", "name", "uid", "mixed")):
        given = make_random_buffers(seed)
        if way == "position":
            run(*(given[name] for name in run.names))
        elif way == "name":
            run(**given)
        elif way == "uid":
            run.run({run.plan.graph.tensor(name).uid: buffer for name, buffer in given.items()})
        else:
            first, *rest = run.names
            run(given[first], **{name: given[name] for name in rest})
        check_attention_output(given)


def test_a_bound_call_uses_the_current_contents_of_its_buffers(gpu: Target) -> None:
    run = make_executable(make_forward_graph(), gpu)
    given = make_random_buffers(1)
    step = run.bind(**given)
    for seed in range(3):
        given["q"].copy_(make_random_buffers(seed + 10)["q"])
        step()
        check_attention_output(given)


@pytest.mark.parametrize("workspace", [None, "torch", "hook", "buffer"])
def test_workspaces_are_allocated_or_given(gpu: Target, workspace: Any) -> None:
    sizes: list[int] = []

    def allocate_workspace(size: int) -> Any:
        sizes.append(size)
        return torch.empty(size, dtype=torch.uint8, device="cuda")

    chosen: Any = workspace
    if workspace == "hook":
        chosen = allocate_workspace
    elif workspace == "buffer":
        chosen = torch.empty(1 << 20, dtype=torch.uint8, device="cuda")
    run = make_executable(make_forward_graph(), gpu, workspace=chosen)
    for seed in range(3):
        given = make_random_buffers(seed)
        run(*(given[name] for name in run.names))
        check_attention_output(given)
    assert sizes == ([run.workspace_bytes] * 3 if workspace == "hook" else [])


def test_backward_runs_with_scratch_memory(gpu: Target) -> None:
    graph = sdpa_backward(batch=B, heads=H, seq_q=S, head_dim=D, causal=True)
    run, ahead = make_executable(graph, gpu), make_executable(make_forward_graph(), gpu)
    assert run.workspace_bytes > B * H * S * D * 4
    given = make_random_buffers(3)
    ahead(**given)
    do = torch.randn_like(given["o"])
    q, k, v = (given[name].transpose(1, 2).float().requires_grad_() for name in "qkv")
    o = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
    wanted = torch.autograd.grad(o, (q, k, v), do.transpose(1, 2).float())
    for _ in range(2):
        gradients = {name: torch.full_like(given["q"], torch.nan) for name in ("dq", "dk", "dv")}
        run(**given, do=do, **gradients)
        for got, want in zip(gradients.values(), wanted, strict=True):
            assert torch.linalg.norm(got.transpose(1, 2).float() - want) / torch.linalg.norm(want) < 2e-3


def test_values_of_by_value_tensors_can_change_per_call(gpu: Target) -> None:
    run = make_executable(make_forward_graph(), gpu)
    for scale in (0.125, 0.5, 0.125, 2.0):
        given = make_random_buffers(4)
        run(**given, scale=scale)
        check_attention_output(given, scale)
    with pytest.raises(UsageError, match="scale"):
        run(**make_random_buffers(4), scale="much")


def test_current_stream_of_torch_is_respected(gpu: Target) -> None:
    run = make_executable(make_forward_graph(), gpu)
    given = make_random_buffers(5)
    late = make_random_buffers(6)["q"]
    stream = torch.cuda.Stream()
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(50_000_000)
        given["q"].copy_(late)  # visible only to later work on this stream
        run(*(given[name] for name in run.names))
    stream.synchronize()
    check_attention_output(given)


def test_captured_and_native_cuda_graphs_agree(gpu: Target) -> None:
    run = make_executable(make_forward_graph(), gpu)
    given = make_random_buffers(7)
    run(**given)
    captured = torch.cuda.CUDAGraph()
    with torch.cuda.graph(captured):
        run(*(given[name] for name in run.names))
    given["q"].copy_(make_random_buffers(8)["q"])
    given["o"].fill_(torch.nan)
    captured.replay()
    check_attention_output(given)

    native = run.cuda_graph(**given)
    given["o"].fill_(torch.nan)
    native.launch()
    check_attention_output(given)
    other = make_random_buffers(9)
    native.update(**other)
    native.launch(torch.cuda.current_stream().cuda_stream)
    check_attention_output(other)
    native.close()


def test_threads_share_an_executable_on_separate_streams(gpu: Target) -> None:
    run = make_executable(make_forward_graph(), gpu)
    errors: list[BaseException] = []

    def call_in_thread(seed: int) -> None:
        try:
            with torch.cuda.stream(torch.cuda.Stream()):
                for round_ in range(20):
                    given = make_random_buffers(seed * 100 + round_)
                    run(*(given[name] for name in run.names))
                    check_attention_output(given)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=call_in_thread, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors


def test_buffers_of_other_frameworks_and_numpy_are_accepted(gpu: Target) -> None:
    cupy = pytest.importorskip("cupy", reason="did not run: CuPy is not installed")
    run = make_executable(make_forward_graph(), gpu)
    given = make_random_buffers(10)
    arrays = {name: cupy.from_dlpack(buffer) for name, buffer in given.items()}
    run(**arrays)
    cupy.cuda.Device().synchronize()
    check_attention_output(given)
    order = {"q": (0, 2, 1, 3), "k": (0, 2, 3, 1), "v": (0, 2, 1, 3), "o": (0, 2, 1, 3), "stats": (0, 1, 2, 3)}
    host = {name: buffer.permute(order[name]).contiguous().cpu().numpy() for name, buffer in given.items()}
    wanted = host["o"].copy()
    host["o"][...] = np.nan
    run(**host)
    assert np.array_equal(host["o"], wanted)


WRONG_BUFFERS: list[tuple[str, Any, str]] = [
    ("q", lambda b: b["q"].cpu(), "buffer-not-on-device"),
    ("q", lambda b: b["q"].cpu().data_ptr(), "buffer-not-on-device"),
    ("q", lambda b: b["q"].float(), "buffer-type"),
    ("q", lambda b: b["q"].bfloat16(), "buffer-type"),
    ("q", lambda b: b["q"][:1], "buffer-too-small"),
    (
        "q",
        lambda b: torch.empty(b["q"].numel() + 1, device="cuda", dtype=torch.half)[1:].view_as(b["q"]),
        "buffer-misaligned",
    ),
    ("q", lambda b: b["q"].data_ptr() + 2, "buffer-misaligned"),
    ("q", lambda b: make_tensor_with_freed_memory(b["q"]), "null-pointer"),
    ("q", lambda b: None, "missing-buffer"),
    ("q", lambda b: object(), "buffer-not-understood"),
    ("wrong", lambda b: b["q"], "unknown-buffer"),
]


def make_tensor_with_freed_memory(tensor: Any) -> Any:
    copy = tensor.clone()
    copy.untyped_storage().resize_(0)
    return copy


@pytest.mark.parametrize(
    ("name", "make", "code"), WRONG_BUFFERS, ids=[f"{code}-{index}" for index, (_, _, code) in enumerate(WRONG_BUFFERS)]
)
def test_wrong_buffers_are_refused_before_launch_and_the_context_survives(
    gpu: Target, name: str, make: Any, code: str
) -> None:
    run = make_executable(make_forward_graph(), gpu)
    given = make_random_buffers(11)
    with pytest.raises(UsageError) as caught:
        run(**given | {name: make(given)})
    assert caught.value.code == code
    if name in run.names and make(given) is not None:
        with pytest.raises(UsageError) as caught:
            run(*(make(given) if item == name else given[item] for item in run.names))
        assert caught.value.code == code
    run(**given)
    torch.cuda.synchronize()
    check_attention_output(given)


@needs_two_gpus
def test_buffer_of_another_gpu_is_refused(gpu: Target) -> None:
    run = make_executable(make_forward_graph(), gpu)
    given = make_random_buffers(12)
    with pytest.raises(UsageError, match="is on GPU 1"):
        run(**given | {"q": given["q"].to("cuda:1")})


@needs_two_gpus
def test_a_plan_of_another_gpu_than_the_current_one_runs_on_its_gpu() -> None:
    errors: list[BaseException] = []
    with torch.cuda.device(1):
        run = make_executable(make_forward_graph(), open_target())
    given = {name: buffer.to("cuda:1") for name, buffer in make_random_buffers(14).items()}

    def call_in_thread() -> None:
        try:
            given["o"].fill_(torch.nan)
            run(*(given[name] for name in run.names))
            torch.cuda.synchronize(1)
            check_attention_output(given)
        except BaseException as error:
            errors.append(error)

    call_in_thread()
    thread = threading.Thread(target=call_in_thread)
    thread.start()
    thread.join()
    assert not errors
    given["o"].fill_(torch.nan)
    run.bind(**given)()
    torch.cuda.synchronize(1)
    check_attention_output(given)
    given["o"].fill_(torch.nan)
    run.cuda_graph(**given).launch()
    torch.cuda.synchronize(1)
    check_attention_output(given)
    assert torch.cuda.current_device() == 0
    with pytest.raises(UsageError, match="is on GPU 0"):
        run(**given | {"q": given["q"].to("cuda:0")})


def test_a_different_buffer_at_a_known_address_is_checked(gpu: Target) -> None:
    run = make_executable(make_forward_graph(), gpu)
    given = make_random_buffers(15)
    run(**given)
    wrong: list[tuple[Any, str]] = [
        (given["q"].view(torch.bfloat16), "buffer-type"),
        (given["q"][:1], "buffer-too-small"),
        (given["q"][:1].expand(B, -1, -1, -1), "buffer-too-small"),
    ]
    for buffer, code in wrong:
        for _ in range(2):
            with pytest.raises(UsageError) as caught:
                run(**given | {"q": buffer})
            assert caught.value.code == code
    run(*(given[name] for name in run.names))
    check_attention_output(given)


def test_raw_addresses_are_accepted(gpu: Target) -> None:
    run = make_executable(make_forward_graph(), gpu)
    given = make_random_buffers(20)
    torch.cuda.synchronize()
    run(*(given[name].data_ptr() for name in run.names))
    torch.cuda.synchronize()
    check_attention_output(given)


def test_array_interface_is_accepted(gpu: Target) -> None:
    class NumbaLikeArray:
        """An object with the interface of Numba's device arrays."""

        def __init__(self, tensor: Any) -> None:
            self.__cuda_array_interface__ = tensor.__cuda_array_interface__

    run = make_executable(make_forward_graph(), gpu)
    given = make_random_buffers(21)
    torch.cuda.synchronize()
    run(**{name: NumbaLikeArray(buffer) for name, buffer in given.items()})
    torch.cuda.synchronize()
    check_attention_output(given)


JAX_PROGRAM = """
import faulthandler
faulthandler.dump_traceback_later(120, exit=True)
import jax, torch
from tests.gpu.execution.test_bound import check_attention_output, make_executable, make_forward_graph
from tests.gpu.execution.test_bound import make_random_buffers, open_target
run = make_executable(make_forward_graph(), open_target())
given = make_random_buffers(22)
torch.cuda.synchronize()
run(**given | {name: jax.dlpack.from_dlpack(given[name]) for name in "qkv"})
torch.cuda.synchronize()
check_attention_output(given)
"""


@pytest.mark.skipif(importlib.util.find_spec("jax") is None, reason="did not run: JAX is not installed")
def test_jax_arrays_are_accepted() -> None:
    """Run JAX in a separate process, because it starts threads and would allocate most of the GPU's memory."""
    environment = {**os.environ, "XLA_PYTHON_CLIENT_PREALLOCATE": "false", "CUDA_VISIBLE_DEVICES": "0"}
    command = [sys.executable, "-X", "faulthandler", "-c", JAX_PROGRAM]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=150)
    assert not done.returncode, done.stderr


def test_bind_uses_the_current_torch_stream_after_raw_addresses(gpu: Target) -> None:
    run = make_executable(make_forward_graph(), gpu)
    given = make_random_buffers(16)
    run(*(given[name].data_ptr() for name in run.names))
    stream = torch.cuda.Stream()
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        step = run.bind(**given)
    assert step.stream == stream.cuda_stream


def test_an_executable_without_checks_accepts_any_dtype(gpu: Target) -> None:
    run = make_executable(make_forward_graph(), gpu, check=False)
    given = make_random_buffers(13)
    run(**given | {"q": given["q"].view(torch.int16)})
    check_attention_output(given)


def test_by_value_tensor_without_a_number_is_reported(gpu: Target) -> None:
    g = GraphBuilder("scaled", io_type=DataType.HALF)
    x, w = g.tensor("x", (1, 64, 64)), g.tensor("w", (1, 64, 64))
    factor = g.scalar(None, rank=3, name="factor", data_type=DataType.FLOAT)
    g.pointwise(PointwiseMode.MUL, g.matmul(x, w), factor, name="y", virtual=False, data_type=DataType.HALF)
    run = make_executable(g.graph(), gpu)
    a, b = (torch.randn(1, 64, 64, device="cuda", dtype=torch.half) for _ in range(2))
    y = torch.empty_like(a)
    with pytest.raises(UsageError, match="factor"):
        run(x=a, w=b, y=y)
    for number in (1.0, -2.0):
        run(x=a, w=b, factor=number, y=y)
        assert torch.allclose(y.float(), (a.float() @ b.float()) * number, atol=0.1, rtol=1e-2)


def test_plans_for_a_described_target_cannot_be_run() -> None:
    with pytest.raises(EnvironmentNotReady, match="described target"):
        make_executable(make_forward_graph(), open_target("h100"))
