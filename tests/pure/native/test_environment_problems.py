"""Environment problems that are found from file names and version numbers; loads no library."""

from __future__ import annotations

from pathlib import Path

import pytest

from cudnn_backend_py.native.environment import Nvrtc
from cudnn_backend_py.native.environment_problems import (
    NVRTC_ARCHITECTURES,
    _find_missing_sublibraries,
    _make_architecture_problem,
)
from cudnn_backend_py.system.version import Version


def test_missing_sublibrary_of_the_9_12_jit_wheel_is_reported(tmp_path: Path) -> None:
    """With 9.12 all queries fail with SUBLIBRARY_LOADING_FAILED; 9.13 reports the missing library and still answers."""
    for name in ("graph", "engines_runtime_compiled"):
        (tmp_path / f"libcudnn_{name}.so.9").touch()
    library = str(tmp_path / "libcudnn.so.9")
    [problem] = _find_missing_sublibraries(library, Version(9, 12, 0))
    assert problem.blocks
    assert problem.code == "cudnn-sublibrary-missing"
    assert problem.headline == "libcudnn_engines_precompiled.so.9 is missing next to libcudnn.so.9"
    assert problem.detail.endswith("the JIT wheel of 9.12.0 does not include")
    assert "(cudnn-backend cudnn install 9.12.0 --full)" in problem.repair
    assert "driver" not in problem.repair
    assert list(_find_missing_sublibraries(library, Version(9, 13, 0))) == []


@pytest.mark.parametrize(
    ("cuda", "sm", "path", "code", "repair"),
    [
        ((13, 0), 70, "inside cuDNN 9.24.0", "nvrtc-dropped-architecture", "use the cuDNN of CUDA 12"),
        (
            (13, 0),
            130,
            "inside cuDNN 9.24.0",
            "nvrtc-too-old",
            "use a newer CUDA with its cuDNN and NVRTC: none up to 13.4 does",
        ),
        ((12, 9), 110, "inside cuDNN 9.24.0", "nvrtc-too-old", "use the cuDNN of CUDA 13"),
        (
            (12, 9),
            107,
            "inside cuDNN 9.24.0",
            "nvrtc-too-old",
            "use the cuDNN of CUDA 13 (cu13 wheels), built with CUDA 13.4",
        ),
        ((13, 0), 107, "inside cuDNN 9.24.0", "nvrtc-too-old", "use a cuDNN that was built with CUDA 13.4 or later"),
        ((12, 6), 120, "inside cuDNN 9.24.0", "nvrtc-too-old", "use a cuDNN that was built with CUDA 12.8"),
        ((12, 6), 103, "/lib/libnvrtc.so.12", "nvrtc-too-old", "install that of CUDA 12.9"),
    ],
)
def test_architectures_that_nvrtc_lacks_are_reported(
    cuda: tuple[int, int], sm: int, path: str, code: str, repair: str
) -> None:
    nvrtc = Nvrtc(path, cuda, NVRTC_ARCHITECTURES[cuda])
    problem = _make_architecture_problem(cuda[0], sm, nvrtc)
    assert (problem.code, problem.blocks) == (code, False)
    assert problem.headline == f"NVRTC {cuda[0]}.{cuda[1]} does not compile for sm_{sm}"
    assert problem.repair.startswith(repair)
