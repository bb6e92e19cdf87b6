"""Torch programs on a described GPU, without a real one: they run up to the first result that only a GPU computes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.child import run_python

pytest.importorskip("torch")

NOTEBOOK_CELLS = """
import torch, cudnn
assert torch.cuda.is_available() and torch.cuda.get_device_capability() == (9, 0)
assert torch.cuda.get_device_properties(0).multi_processor_count == 132
q, k = (torch.randn(8, 64, 64, dtype=torch.float16, device="cuda") for _ in range(2))
assert q.is_cuda and q.device.type == "cuda"
lengths = torch.arange(3, dtype=torch.int32, device="cuda") * 7
assert lengths.cpu().tolist() == [0, 7, 14]
with torch.device("cuda"):
    assert torch.ones(3).is_cuda and torch.ones(2).tolist() == [1, 1]
torch.set_default_device("cuda")
assert torch.zeros(2, 3).device.type == "cuda" and torch.zeros(1, device="cpu").device.type == "cpu"
torch.set_default_device(None)
assert not torch.empty(2).is_cuda
assert torch.nn.Linear(3, 4, device="cuda").weight.is_cuda
handle = cudnn.create_handle()
cudnn.set_stream(handle=handle, stream=torch.cuda.current_stream().cuda_stream)
with cudnn.Graph(io_data_type=cudnn.data_type.HALF, intermediate_data_type=cudnn.data_type.FLOAT,
                 compute_data_type=cudnn.data_type.FLOAT, handle=handle, inputs=["mm::A", "mm::B"],
                 outputs=["mm::C"]) as graph:
    graph.matmul(A=q, B=k, name="mm").set_output(True)
print("built", graph.get_workspace_size())
"""


THREAD_PROGRAM = """
import threading, torch
from concurrent.futures import ThreadPoolExecutor

class Own(threading.Thread):
    def run(self):
        self.made = work(2)

def work(rows):
    x = torch.ones(rows, 3, device="cuda")
    return (x @ x.mT).shape, x.is_cuda, x.sum().item()

wanted = [((n, n), True, 3.0 * n) for n in (1, 2, 3)]
with ThreadPoolExecutor(2) as pool:
    assert list(pool.map(work, (1, 2, 3))) == wanted
own = Own()
own.start()
own.join()
assert own.made == wanted[1], own.made
try:
    own.start()
except RuntimeError as error:
    print(error)
"""


def test_threads_of_a_program_see_the_described_gpu(tmp_path: Path) -> None:
    path = tmp_path / "threads.py"
    path.write_text(THREAD_PROGRAM)
    done = run_python(["-m", "cudnn_backend_py.frontend", "--target", "h100", str(path)])
    assert done.code == 0, done.stderr
    assert done.stdout == "threads can only be started once\n"


MASK_PROGRAM = """
import torch

few = torch.arange(10, device="cuda")
assert few[few % 2 == 0].tolist() == [0, 2, 4, 6, 8]
assert torch.nonzero(few > 7).tolist() == [[8], [9]] and torch.masked_select(few, few > 7).tolist() == [8, 9]
many = torch.randn(400, 100, device="cuda")
assert many[many > 0].shape == (40000,) and many[many[:, 0] > 0].shape == (400, 100)
assert torch.nonzero(many).shape == (40000, 2)
"""


def test_boolean_masks_select_all_elements_if_values_are_unknown(tmp_path: Path) -> None:
    path = tmp_path / "masks.py"
    path.write_text(MASK_PROGRAM)
    done = run_python(["-m", "cudnn_backend_py.frontend", "--target", "h100", str(path)])
    assert done.code == 0, done.stderr


@pytest.mark.parametrize(
    ("last", "end"),
    [
        (
            "graph(q, k)",
            "reached execute: this graph was built for the described target h100-sxm, on which plans cannot run",
        ),
        ("print(q.cpu())", "reached a point that needs a GPU: the program needs cpu of a tensor of shape (8, 64, 64)"),
    ],
)
def test_a_notebook_runs_up_to_its_first_result(tmp_path: Path, last: str, end: str) -> None:
    path = tmp_path / "sample.ipynb"
    path.write_text(json.dumps({"cells": [{"cell_type": "code", "source": cell} for cell in (NOTEBOOK_CELLS, last)]}))
    done = run_python(["-m", "cudnn_backend_py.frontend", "--target", "h100", str(path)])
    assert done.code == 0, done.stderr
    assert done.stdout.startswith("built ")
    assert end in done.stderr


DEVICE_PROPERTIES_PROGRAM = """
import torch, io
x = torch.ones(300, 300, device="cuda")
assert f"{torch.ones(2, device='cuda').sum():.2f}" == "2.00"
assert torch.ones(3, device="cuda").repeat_interleave(torch.tensor([1, 2, 3], device="cuda")).shape == (6,)
assert torch.ones(3, pin_memory=True).sum().item() == 3
assert torch.from_dlpack(x) is x
facts = x.half().T[:, :10].__cuda_array_interface__
assert (facts["typestr"], facts["shape"], facts["strides"]) == ("<f2", (300, 10), (2, 600))
file = io.BytesIO()
torch.save({"a": [torch.ones(3)]}, file)
file.seek(0)
loaded = torch.load(file, map_location="cuda")
assert loaded["a"][0].is_cuda and loaded["a"][0].tolist() == [1, 1, 1]
model = torch.nn.Linear(4, 5).cuda()
optimizer = torch.optim.AdamW(model.parameters())
model(torch.ones(3, 4, device="cuda")).sum().backward()
optimizer.step()
x.record_stream(torch.cuda.current_stream())
torch.cuda.cudart().cudaProfilerStart()
with torch.profiler.profile() as profile:
    pass
assert profile.key_averages().table(sort_by="cuda_time_total") == ""
with torch.cuda.device(torch.device("cuda:0")):
    assert torch.cuda.memory_summary() == ""
for refused, kind, words in (
    (lambda: torch.cuda.get_device_properties(0).uuid, AttributeError, "has no uuid: there is no GPU to query"),
    (lambda: torch.cuda.current_blas_handle(), AttributeError, "it needs a real GPU, but this GPU is only described"),
    (lambda: x + torch.ones(300, 300), RuntimeError, "not on the expected device cuda:0"),
):
    try:
        refused()
    except kind as error:
        assert words in str(error), error
    else:
        raise AssertionError(words)
print("all answered")
torch.unique(torch.ones(3000, 3000, device="cuda"))
"""


def test_torch_gets_the_properties_of_the_described_gpu_or_an_error(tmp_path: Path) -> None:
    path = tmp_path / "program.py"
    path.write_text(DEVICE_PROPERTIES_PROGRAM)
    done = run_python(["-m", "cudnn_backend_py.frontend", "--target", "h100", str(path)])
    assert (done.code, done.stdout.strip()) == (0, "all answered"), done.stderr
    assert "reached a point that needs a GPU: the program needs the size of what unique gives" in done.stderr


# Uses of torch next to tensors, each as a program that exits with 0 on a GPU.

AUTOCAST_PROGRAM = """
import torch
from torch.cuda.amp import GradScaler

x, w = torch.randn(8, 16, device="cuda", requires_grad=True), torch.randn(16, 4, device="cuda")
with torch.autocast("cuda", dtype=torch.float16):
    made = x @ w
    assert made.dtype == torch.float16 and made.softmax(-1).dtype == torch.float32
    assert torch.nn.functional.mse_loss(made, made).dtype == torch.float32
    assert torch.nn.LayerNorm(4).cuda()(made).dtype == torch.float32 and (made + 1).dtype == torch.float16
    with torch.autocast("cuda", enabled=False):
        assert (x @ w).dtype == torch.float32
with torch.autocast("cuda", dtype=torch.bfloat16):
    assert torch.nn.LSTM(16, 4).cuda()(x)[0].dtype == torch.bfloat16
    assert torch.nn.Conv2d(1, 1, 1).cuda()(torch.randn(1, 1, 2, 2, device="cuda")).dtype == torch.bfloat16
assert (x @ w).dtype == torch.float32
scaler, optimizer = GradScaler(), torch.optim.SGD([x], lr=0.1)
scaler.scale(made.float().sum()).backward()
scaler.step(optimizer)
scaler.update()
assert x.grad.dtype == torch.float32 and x.grad.is_cuda
"""

STREAM_PROGRAM = """
import torch

one, two = torch.cuda.Stream(), torch.cuda.Stream(device="cuda:0", priority=-1)
assert one != two and one.cuda_stream not in (0, two.cuda_stream) and isinstance(one, (torch.cuda.Stream, torch.Stream))
assert torch.cuda.current_stream() == torch.cuda.default_stream() and torch.cuda.current_stream().cuda_stream == 0
with torch.cuda.stream(one):
    assert torch.cuda.current_stream() == one
    with torch.cuda.stream(two):
        assert torch.cuda.current_stream("cuda:0") == two
    assert torch.cuda.current_stream() == one
assert torch.cuda.ExternalStream(one.cuda_stream) == one and len({one, two, one}) == 2
graph = torch.cuda.CUDAGraph()
assert not torch.cuda.is_current_stream_capturing()
with torch.cuda.graph(graph, stream=two, pool=torch.cuda.graph_pool_handle()):
    assert torch.cuda.is_current_stream_capturing() and torch.cuda.current_stream() == two
assert not torch.cuda.is_current_stream_capturing() and graph.pool() == graph.pool()
graph.replay()
start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
start.record(), end.record(), end.wait(one)
assert start.elapsed_time(end) > 0
assert torch.cuda.memory_stats()["allocated_bytes.all.current"] == 0 and torch.accelerator.memory_allocated() == 0
assert torch.cuda.memory.memory_allocated() == 0 and torch.cuda.mem_get_info()[1] > 1 << 30
generator = torch.Generator(device="cuda").manual_seed(7)
assert generator.device.type == "cuda" and generator.initial_seed() == 7
assert torch.randn(3, device="cuda", generator=generator).is_cuda
assert isinstance(torch.default_generator, torch.Generator)
state = torch.cuda.get_rng_state()
assert state.dtype == torch.uint8 and not state.is_cuda and torch.cuda.default_generators[0].device.type == "cuda"
with torch.random.fork_rng(devices=[0]):
    torch.cuda.manual_seed(3)
cpu = torch.ones(2)
for refused in (lambda: torch.cuda.set_device(1), lambda: cpu.to("cuda:1"), lambda: cpu.cuda(1)):
    try:
        refused()
    except RuntimeError as error:
        assert "invalid device ordinal" in str(error)
    else:
        raise AssertionError
"""

BACKWARD_PROGRAM = """
import torch
from torch.utils.checkpoint import checkpoint

places = []

class Twice(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * 2

    @staticmethod
    def backward(ctx, g):
        places.extend((g.device.type, ctx.saved_tensors[0].device.type, torch.zeros(2, device="cuda").device.type))
        return g * 2

x = torch.ones(3, device="cuda", requires_grad=True)
x.register_hook(lambda g: places.append(g.device.type))
Twice.apply(x).sum().backward()
torch.autograd.grad(Twice.apply(x).sum(), x)
with torch.autograd.graph.saved_tensors_hooks(lambda t: t.cpu(), lambda t: t.cuda()):
    (x * x).sum().backward()
assert len(places) == 9 and set(places) == {"cuda"}, places
model = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.ReLU()).cuda()
for reentrant in (False, True):
    checkpoint(model, x, use_reentrant=reentrant).sum().backward()
with torch.autograd.set_detect_anomaly(True):
    model(x).sum().backward()


@torch.library.custom_op("of_a_program::twice", mutates_args=(), device_types="cuda")
def twice(x: torch.Tensor) -> torch.Tensor:
    assert x.is_cuda and torch.empty(1, device="cuda").is_cuda
    places.append("kernel")
    return x * 2


twice.register_fake(lambda x: torch.empty_like(x))
twice.register_autograd(lambda ctx, g: g * 2)
twice(x).sum().backward()
library = torch.library.Library("of_a_program_too", "DEF")
library.define("add(Tensor x) -> Tensor")
library.impl("add", lambda x: [places.append("kernel"), x + 1][1], "CUDA")
assert torch.ops.of_a_program_too.add(x).is_cuda and places.count("kernel") == 2, places
"""

FILE_PROGRAM = """
import copy, io, pickle, torch

model = torch.nn.Linear(2, 2).cuda()
large = torch.randn(300, 300, device="cuda").T
file = io.BytesIO()
torch.save({"model": model.state_dict(), "few": torch.arange(3, device="cuda"), "large": large}, file)


def load(**options):
    file.seek(0)
    return torch.load(file, **options)


assert file.tell() < 10000
for options in ({}, {"map_location": "cuda:0"}, {"map_location": lambda storage, place: storage.cuda(0)}):
    loaded = load(**options)
    assert loaded["few"].is_cuda and loaded["few"].tolist() == [0, 1, 2]
    assert loaded["large"].stride() == (1, 300) and loaded["large"].is_cuda
    model.load_state_dict(loaded["model"])
few = pickle.loads(pickle.dumps(torch.arange(3, device="cuda")))
assert few.is_cuda and few.tolist() == [0, 1, 2] and copy.deepcopy(large).is_cuda
file.seek(0), file.truncate(), torch.save(few, file)
assert not load(map_location="cpu").is_cuda and not load(map_location={"cuda:0": "cpu"}).is_cuda
assert torch.nn.Parameter(torch.ones(2, device="cuda")).tolist() == [1, 1]
"""

DEVICE_PROGRAM = """
import torch

half = torch.cuda.HalfTensor(2, 3)
assert half.is_cuda and half.dtype == torch.float16 and half.shape == (2, 3) and half.type() == "torch.cuda.HalfTensor"
assert isinstance(half, torch.cuda.HalfTensor) and not isinstance(torch.ones(1), torch.cuda.FloatTensor)
assert torch.cuda.LongTensor([1, 2]).tolist() == [1, 2] and torch.ones(2).type("torch.cuda.FloatTensor").is_cuda
torch.set_default_tensor_type(torch.cuda.FloatTensor)
assert torch.ones(2).is_cuda
torch.set_default_tensor_type(torch.FloatTensor)
assert not torch.ones(2).is_cuda
x = torch.zeros(4, 4, device=0)
assert x.get_device() == 0 and torch.ones(2).to(0).is_cuda and torch.nn.Linear(2, 2).to(0).weight.is_cuda
assert torch.device(0) == x.device
assert x[1:].data_ptr() - x.data_ptr() == 16 and x.view(-1).data_ptr() == x.data_ptr() != x.clone().data_ptr()
assert x.untyped_storage().data_ptr() == x.data_ptr()
assert torch.ones(2, pin_memory=True).is_pinned() and torch.ones(2).pin_memory().is_pinned()
assert not torch.ones(2).is_pinned()
large = torch.randn(400, 400, device="cuda")
assert large.sum().cpu().numpy().shape == () and torch.nn.DataParallel(torch.nn.Linear(2, 2).cuda())(x[:, :2]).is_cuda
assert torch.jit.trace(torch.nn.Linear(4, 4).cuda(), x)(x).is_cuda


assert repr(torch.zeros(2, device="cuda")) == "tensor([0., 0.], device='cuda:0')" and "meta" not in repr(large)
assert repr(half.zero_()[0]) == "tensor([0., 0., 0.], device='cuda:0', dtype=torch.float16)"
torch.cuda.profiler.start()


class Other:
    __cuda_array_interface__ = x.half().__cuda_array_interface__


assert torch.as_tensor(Other(), device="cuda").dtype == torch.float16
torch.optim.LBFGS([weight := large.clone().requires_grad_()]).step(lambda: [s := weight.sum(), s.backward()][0])
assert torch.nested.nested_tensor([torch.ones(2, 3)], layout=torch.jagged, device="cuda").is_cuda
try:
    torch.nested.nested_tensor([torch.ones(2, 3)], device="cuda")
except NotImplementedError as error:
    assert "give layout=torch.jagged" in str(error)
else:
    raise AssertionError
"""


@pytest.mark.parametrize("program", [AUTOCAST_PROGRAM, STREAM_PROGRAM, BACKWARD_PROGRAM, FILE_PROGRAM, DEVICE_PROGRAM])
def test_torch_programs_run_to_the_end_for_a_described_gpu(tmp_path: Path, program: str) -> None:
    path = tmp_path / "program.py"
    path.write_text(program + "\nprint('to its end')")
    done = run_python(["-m", "cudnn_backend_py.frontend", "--target", "h100", str(path)])
    assert (done.code, done.stdout) == (0, "to its end\n"), done.stderr
