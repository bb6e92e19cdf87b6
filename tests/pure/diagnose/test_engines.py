"""Engine libraries that are not installed, found from the files next to cuDNN, and the graphs that need them."""

from __future__ import annotations

from pathlib import Path

import pytest

from cudnn_backend_py.diagnose.causes.phrases import find_queried_device_properties
from cudnn_backend_py.diagnose.engines import _is_runtime_compiled_only
from cudnn_backend_py.native.environment import find_absent_engine_libraries
from tests.support.full_cudnn_graphs import GRAPHS_OF_FULL_CUDNN
from tests.support.varied_graphs import VARIED_GRAPHS

JIT_ENGINE_LIBRARIES = ("graph", "engines_runtime_compiled")


@pytest.mark.parametrize(
    ("present", "version", "cuda", "absent"),
    [
        (JIT_ENGINE_LIBRARIES, (9, 14, 0), 12, ("engines_precompiled",)),
        ((*JIT_ENGINE_LIBRARIES, "engines_precompiled"), (9, 28, 0), 12, ()),
        (JIT_ENGINE_LIBRARIES, (9, 28, 0), 12, ("engines_precompiled",)),  # for CUDA 12 the other one is empty
        (JIT_ENGINE_LIBRARIES, (9, 28, 0), 13, ("engines_precompiled", "engines_tensor_ir")),
        (JIT_ENGINE_LIBRARIES, (9, 21, 1), 13, ("engines_precompiled",)),
        ((*JIT_ENGINE_LIBRARIES, "engines_precompiled"), (9, 28, 0), 13, ("engines_tensor_ir",)),
        ((), (9, 28, 0), 13, ()),  # they are in another folder
    ],
)
def test_absent_engine_libraries_are_found_from_the_installed_files(
    tmp_path: Path, present: tuple[str, ...], version: tuple[int, ...], cuda: int, absent: tuple[str, ...]
) -> None:
    for name in present:
        (tmp_path / f"libcudnn_{name}.so.9").touch()
    assert find_absent_engine_libraries(str(tmp_path / "libcudnn.so.9"), version, cuda) == absent


def test_attention_norms_and_reductions_have_only_runtime_compiled_engines() -> None:
    alone = {
        name for name, make in {**GRAPHS_OF_FULL_CUDNN, **VARIED_GRAPHS}.items() if _is_runtime_compiled_only(make())
    }
    assert alone >= {
        name for name in VARIED_GRAPHS if name.startswith(("flash", "unified", "two matmul", "layer norm", "reduce"))
    }
    assert alone >= {"add f32", "softmax by hand", "batch norm relu", "instance norm backward"}
    others = ("conv", "dgrad", "wgrad", "matmul", "max pooling", "mean pooling", "bn ", "concat", "slice", "moe")
    assert not [name for name in alone if name.startswith(others)]


def test_the_memory_bound_engine_needs_a_real_gpu_on_blackwell() -> None:
    said = "CUDNN_STATUS_INTERNAL_ERROR: engine_iface->getStatus()"
    assert find_queried_device_properties(said, 90) is None
    assert "memory-bound engine" in (find_queried_device_properties(said, 100) or "")
    assert (
        find_queried_device_properties("CUDNN_STATUS_NOT_SUPPORTED: engine_iface->getStatus()", 100) is None
    )  # others, for graphs
    assert find_queried_device_properties("CUDNN_STATUS_NOT_SUPPORTED: cga_count == 0", 90)
