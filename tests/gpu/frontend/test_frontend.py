"""Programs for cudnn-frontend run to their end on the GPU: the cells of its notebooks, and this package's examples."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest

from cudnn_backend_py import library
from cudnn_backend_py.frontend.notebooks import split_exported_cells
from tests.support import first_result
from tests.support.child import ROOT, run_python
from tests.support.gpu_requirements import assert_program_succeeded
from tests.support.notebook_cells import NOTEBOOK_FOLDERS, find_notebook, join_cells

NO_TORCH_REASON = "did not run: torch is not installed, and the program's tensors are torch's"
# A process that used torch's autograd sometimes aborts at exit, with either module: one and two of 14 on an H200.
PROGRAM_END = "print('to the end with', cudnn.__file__, flush=True)\nimport os\nos._exit(0)"
FRONTEND_EXAMPLES = sorted(path.name for path in (ROOT / "examples").glob("frontend_*.py"))


def skip_without_torch() -> None:
    if importlib.util.find_spec("torch") is None:
        pytest.skip(NO_TORCH_REASON)


@pytest.mark.parametrize("seed", [0, 1])
def test_the_notebook_runs_to_its_end(seed: int, tmp_path: Path) -> None:
    """Run every cell of the notebook; the two assert_close calls in its cells check the results."""
    skip_without_torch()
    path = find_notebook(seed)
    if path is None:
        pytest.skip(f"did not run: notebook {seed:03} is not available (looked in {NOTEBOOK_FOLDERS})")
    cells = split_exported_cells(path.read_text(encoding="utf-8"))
    assert sum("assert_close" in cell for cell in cells) == 2
    script = tmp_path / f"notebook_{seed:03}.py"
    script.write_text(join_cells([*cells, PROGRAM_END]), encoding="utf-8")
    done = run_python(["-m", "cudnn_backend_py.frontend", str(script)], timeout_s=300)
    assert_program_succeeded(done)
    assert f"to the end with {ROOT / 'cudnn_backend_py' / 'frontend'}" in done.stdout


@pytest.mark.parametrize("name", FRONTEND_EXAMPLES)
def test_the_example_agrees_with_torch(name: str) -> None:
    skip_without_torch()
    done = run_python([str(ROOT / "examples" / name)], timeout_s=300)
    assert_program_succeeded(done)
    assert "agrees with torch" in done.stdout


OVERRIDE_PROGRAM = """
import torch
import cudnn_backend_py.frontend as frontend
frontend.install()
import cudnn
g = cudnn.pygraph(
    io_data_type=cudnn.data_type.HALF, compute_data_type=cudnn.data_type.FLOAT, is_override_shape_enabled=True
)
a = g.tensor(name="a", dim=[4, 256, 128], stride=[256 * 128, 128, 1])
b = g.tensor(name="b", dim=[4, 128, 256], stride=[128 * 256, 256, 1])
c = g.matmul(a, b)
c.set_output(True).set_data_type(cudnn.data_type.HALF)
try:
    g.build([cudnn.heur_mode.A, cudnn.heur_mode.FALLBACK])
except cudnn.cudnnGraphNotSupportedError as error:
    print("refused:", error)
    raise SystemExit
x, y = torch.randn(2, 64, 128, device="cuda").half(), torch.randn(2, 128, 256, device="cuda").half()
z = torch.full((2, 64, 256), torch.nan, device="cuda", dtype=torch.half)
workspace = torch.empty(max(1, g.get_workspace_size()), device="cuda", dtype=torch.uint8)
made = [item.get_uid() for item in (a, b, c)]
g.execute(
    dict(zip(made, (x, y, z))), workspace, override_uids=made,
    override_shapes=[list(item.shape) for item in (x, y, z)],
    override_strides=[list(item.stride()) for item in (x, y, z)],
)
torch.testing.assert_close(z.float(), x.float() @ y.float(), atol=5e-2, rtol=5e-3)
print("agrees")
"""


def test_override_shapes_reach_the_kernel() -> None:
    skip_without_torch()
    done = run_python(["-c", OVERRIDE_PROGRAM], timeout_s=120)
    assert_program_succeeded(done)
    if library().version >= (9, 21, 0):
        assert "agrees" in done.stdout
    else:
        assert "refused: " in done.stdout
        assert "9.21.0" in done.stdout


def test_a_program_with_one_gpu_result_imports_no_unused_module() -> None:
    skip_without_torch()
    run = subprocess.run([sys.executable, first_result.__file__, "gpu"], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    found = json.loads(run.stdout)
    assert (found["import"], found["plan"], found["result"]) == ([], [], [])


CAPTURE_PROGRAM = """
import gc, threading
import torch
import cudnn_backend_py.frontend as cudnn
from cudnn_backend_py.native import cuda
gc.disable()
F = cudnn.data_type.FLOAT
stream = torch.cuda.Stream()
handle = cudnn.create_handle()
cudnn.set_stream(handle=handle, stream=stream.cuda_stream)
def make(rows):
    g = cudnn.pygraph(handle=handle, io_data_type=F, intermediate_data_type=F, compute_data_type=F)
    x = g.tensor(dim=[1, rows, 32], stride=[rows * 32, 32, 1])
    y = g.add(a=g.relu(x), b=x).set_output(True)
    g.build([cudnn.heur_mode.A, cudnn.heur_mode.FALLBACK])
    return g, x, y
def ready(rows):
    g, x, y = make(rows)
    a = torch.linspace(-2, 2, rows * 32, device="cuda").reshape(1, rows, 32)
    b = torch.empty_like(a)
    space = torch.empty(max(g.get_workspace_size(), 1), dtype=torch.uint8, device="cuda")
    torch.cuda.synchronize()
    g.execute({x: a, y: b}, space)
    torch.cuda.synchronize()
    return g, {x: a, y: b}, space, a, b
def crowd():
    for rows in (96, 128, 160):
        ready(rows)
def check(launch, a, b):
    crowd()
    b.fill_(float("nan"))
    torch.cuda.synchronize()
    launch()
    torch.cuda.synchronize()
    assert torch.equal(b, a.relu() + a)
def by_capture():
    g, pack, space, a, b = ready(64)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        g.execute(pack, space)
        g.execute(pack, space)
    return graph.replay, (graph, space), a, b
def by_cudnn():
    g, pack, space, a, b = ready(64)
    graph = cuda.CudaGraphHandle()
    try:
        g.populate_cuda_graph(handle, pack, space, graph.graph.value)
    except cudnn.cudnnGraphNotSupportedError:
        return by_capture()
    except RuntimeError as error:
        print("no graph of cuDNN's own:", error)
        return by_capture()
    g.update_cuda_graph(handle, pack, space, graph.graph.value)
    graph.instantiate()
    return (lambda: graph.launch(stream.cuda_stream)), (graph, space), a, b
for way in (by_capture, by_cudnn):
    launch, held, a, b = way()
    kept = len(cuda._objects_kept_for_graphs)
    check(launch, a, b)
    now_kept, expected_count = cuda._objects_kept_for_graphs, 1 if cudnn.backend_version() < 92700 else 0
    assert kept == len(now_kept) == expected_count, (way, kept, now_kept)
    del launch
    if hasattr(held[0], "close"):
        held[0].close()
    del held
    torch.cuda.synchronize()
    crowd()
    assert not cuda._objects_kept_for_graphs
g, pack, space, a, b = ready(64)
b.fill_(float("nan"))
def elsewhere():
    g.execute(pack, space)
thread = threading.Thread(target=elsewhere)
thread.start()
thread.join()
torch.cuda.synchronize()
assert torch.equal(b, a.relu() + a), "wrong result in a thread without an earlier CUDA call"
copy = torch.empty_like(a)
graph = torch.cuda.CUDAGraph()
victim = ready(96)
torch.cuda.synchronize()
with torch.cuda.graph(graph, stream=torch.cuda.Stream(), capture_error_mode="global"):
    del victim
    copy.copy_(a)
graph.replay()
torch.cuda.synchronize()
assert torch.equal(copy, a), "freeing a graph must not break the capture of another stream"
print("all right")
"""


def test_a_cuda_graph_outlives_the_graph_it_was_captured_from() -> None:
    """Memory that captured launches use is kept until the CUDA graph is freed, even if the cuDNN graph is gone."""
    skip_without_torch()
    done = run_python(["-c", CAPTURE_PROGRAM], timeout_s=300)
    assert_program_succeeded(done)
    assert "all right" in done.stdout
