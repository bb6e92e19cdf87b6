"""Programs of torch on a GPU that is described: up to their numbers, on a machine without one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.child import run_python

pytest.importorskip("torch")

CELLS = """
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


THREADS = """
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


def test_threads_of_the_program_have_the_gpu_too(tmp_path: Path) -> None:
    path = tmp_path / "threads.py"
    path.write_text(THREADS)
    done = run_python(["-m", "cudnn_backend_py.frontend", "--target", "h100", str(path)])
    assert done.code == 0, done.stderr
    assert done.stdout == "threads can only be started once\n"


MASKS = """
import torch

few = torch.arange(10, device="cuda")
assert few[few % 2 == 0].tolist() == [0, 2, 4, 6, 8]
assert torch.nonzero(few > 7).tolist() == [[8], [9]] and torch.masked_select(few, few > 7).tolist() == [8, 9]
many = torch.randn(400, 100, device="cuda")
assert many[many > 0].shape == (40000,) and many[many[:, 0] > 0].shape == (400, 100)
assert torch.nonzero(many).shape == (40000, 2)
"""


def test_a_mask_chooses_what_is_known_and_else_all(tmp_path: Path) -> None:
    path = tmp_path / "masks.py"
    path.write_text(MASKS)
    done = run_python(["-m", "cudnn_backend_py.frontend", "--target", "h100", str(path)])
    assert done.code == 0, done.stderr


@pytest.mark.parametrize(
    ("last", "end"),
    [
        ("graph(q, k)", "reached execute: this graph was built for the described target h100-sxm, which cannot run"),
        ("print(q.cpu())", "reached cpu of a tensor of shape (8, 64, 64), which only a GPU computes"),
    ],
)
def test_a_notebook_is_built_up_to_its_numbers(tmp_path: Path, last: str, end: str) -> None:
    path = tmp_path / "sample.ipynb"
    path.write_text(json.dumps({"cells": [{"cell_type": "code", "source": cell} for cell in (CELLS, last)]}))
    done = run_python(["-m", "cudnn_backend_py.frontend", "--target", "h100", str(path)])
    assert done.code == 0, done.stderr
    assert done.stdout.startswith("built ")
    assert done.stderr.rstrip().endswith(end)


ANSWERS = """
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
    (lambda: torch.cuda.get_device_properties(0).uuid, AttributeError, "has no uuid: no GPU is here"),
    (lambda: torch.cuda.current_blas_handle(), AttributeError, "the GPU is described, and cannot be asked"),
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


def test_torch_is_answered_for_the_described_gpu_or_says_that_it_is_described(tmp_path: Path) -> None:
    path = tmp_path / "program.py"
    path.write_text(ANSWERS)
    done = run_python(["-m", "cudnn_backend_py.frontend", "--target", "h100", str(path)])
    assert (done.code, done.stdout.strip()) == (0, "all answered"), done.stderr
    assert "reached the size of what unique gives, which only a GPU computes" in done.stderr
