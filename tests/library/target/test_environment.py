"""Each environment problem is produced with library folders that lack a file or mix versions.

Every question is queried in a child, so that no library and no environment variable of it reaches another test.
"""

from __future__ import annotations

import ctypes.util
import json
import os
import shutil
import subprocess
from collections.abc import Collection, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import cudnn_backend_py
from cudnn_backend_py.native.driver import stub_path
from cudnn_backend_py.native.environment import name_version, sublibraries
from cudnn_backend_py.native.find import cudnn_places, nvrtc_places
from cudnn_backend_py.target.environment import NVRTC_ARCHITECTURES, nvrtc_needed
from tests.support.child import OLDER, cudnn_environment, run_code

PACKAGE = Path(cudnn_backend_py.__file__).parent

ASK = """
import json, sys
from cudnn_backend_py.target.environment import check_environment
{before}
faults = check_environment({arguments})
print(json.dumps([[f.code, f.headline, f.detail, f.repair, f.blocks] for f in faults]))
"""

needs_no_driver = pytest.mark.skipif(
    ctypes.util.find_library("cuda") is not None, reason="a machine with a driver cannot lack one"
)
needs_no_toolkit = pytest.mark.skipif(
    ctypes.util.find_library("nvrtc") is not None, reason="a machine with the CUDA toolkit cannot lack its libraries"
)


def newest() -> Path:
    """Return the folder of the default cuDNN, a full wheel of 9.28."""
    place = next(place.path for place in cudnn_places() if place.path is not None)
    return Path(place).parent


@cache
def older() -> Path:
    """Return the folder of the older cuDNN, a JIT wheel."""
    return Path(cudnn_environment(OLDER)["CUDNN_BACKEND_LIBRARY"]).parent


def nvrtc() -> Path:
    return Path(next(place.path for place in nvrtc_places(12) if place.path is not None))


def ask_all(
    arguments: str = "", before: str = "", cwd: Path | None = None, **environment: str | Path
) -> list[dict[str, Any]]:
    """Return the problems a child finds; one that crashes it fails the test."""
    clean = {
        name: value for name, value in os.environ.items() if name not in ("LD_LIBRARY_PATH", "CUDNN_BACKEND_LIBRARY")
    }
    variables: Mapping[str, str] = clean | {name: str(value) for name, value in environment.items()}
    options = {} if cwd is None else {"cwd": cwd}
    done = run_code(ASK.format(before=before, arguments=arguments), environment=variables, **options)
    names = ("code", "headline", "detail", "repair", "blocks")
    faults = [dict(zip(names, fault, strict=True)) for fault in json.loads(done.stdout)]
    blocking = [fault["blocks"] for fault in faults]
    assert blocking == sorted(blocking, reverse=True), "what blocks comes first"
    assert all(fault["repair"] and fault["headline"] for fault in faults)
    return faults


def run_query(arguments: str = "", **options: Any) -> dict[str, dict[str, Any]]:
    """Return the problems by code."""
    return {fault["code"]: fault for fault in ask_all(arguments, **options)}


def cudnn_folder(
    tmp_path: Path, source: Path, *, without: Collection[str] = (), replaced: Mapping[str, Path] = {}
) -> Path:
    """Return a folder with a copy of libcudnn and links to its sub-libraries, changed as requested."""
    folder = tmp_path / "lib"
    folder.mkdir()
    shutil.copy(source / "libcudnn.so.9", folder)
    for name, files in sublibraries(source).items():
        if name not in without:
            (folder / f"libcudnn_{name}.so.9").symlink_to(replaced.get(name, files[0]))
    return folder


# A sound environment


LOOK_AGAIN = """
import time
check_environment()
def look():
    start = time.perf_counter()
    check_environment(build=True)
    return time.perf_counter() - start
assert min(look() for _ in range(20)) < 0.003
"""


@pytest.mark.parametrize("folder", [newest, older])
def test_sound_environment_has_no_known_issue_but_its_driver_and_a_second_look_is_cheap(folder: Any) -> None:
    found = run_query("build=True", before=LOOK_AGAIN, CUDNN_BACKEND_LIBRARY=folder())
    assert set(found) <= {"driver-stub", "driver-without-gpu"}
    assert not any(fault["blocks"] for fault in found.values())


def test_links_to_the_libraries_are_sound(tmp_path: Path) -> None:
    found = run_query(CUDNN_BACKEND_LIBRARY=cudnn_folder(tmp_path, newest()))
    assert set(found) <= {"driver-stub", "driver-without-gpu"}


# Sub-libraries of cuDNN


@pytest.mark.parametrize(
    ("source", "missing"),
    [
        (newest, "graph"),
        (older, "graph"),
        (older, "engines_runtime_compiled"),
        (newest, "engines_tensor_ir"),  # of 9.28
    ],
)
def test_vital_sublibrary_missing(tmp_path: Path, source: Any, missing: str) -> None:
    folder = cudnn_folder(tmp_path, source(), without=[missing])
    fault = run_query(CUDNN_BACKEND_LIBRARY=folder)["cudnn-sublibrary-missing"]
    assert fault["blocks"]
    assert fault["headline"].startswith(f"libcudnn_{missing}.so.9 is missing")
    assert str(folder) in fault["detail"]


def test_other_sublibraries_missing(tmp_path: Path) -> None:
    lost = {"engines_precompiled": "convolutions", "heuristic": "mode A", "ops": "graph API"}
    faults = ask_all(CUDNN_BACKEND_LIBRARY=cudnn_folder(tmp_path, newest(), without=lost))
    missing = [fault for fault in faults if fault["code"] == "cudnn-sublibrary-missing"]
    for fault, (name, words) in zip(missing, lost.items(), strict=True):
        assert fault["headline"].startswith(f"libcudnn_{name}.so.9 is missing")
        assert words in fault["detail"]
        assert not fault["blocks"]


def test_sublibrary_of_another_version(tmp_path: Path) -> None:
    engines = older() / "libcudnn_engines_runtime_compiled.so.9"
    folder = cudnn_folder(tmp_path, newest(), replaced={"engines_runtime_compiled": engines})
    fault = run_query(CUDNN_BACKEND_LIBRARY=folder)["cudnn-sublibraries-mixed"]
    assert fault["blocks"]
    assert "another cuDNN version" in fault["headline"]
    assert "undefined symbol" in fault["detail"]


def test_sublibrary_that_is_not_a_library(tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    broken.write_bytes(b"\x7fELF cut off")
    folder = cudnn_folder(tmp_path, newest(), replaced={"engines_precompiled": broken})
    fault = run_query(CUDNN_BACKEND_LIBRARY=folder)["cudnn-sublibrary-unloadable"]
    assert fault["blocks"]
    assert "engines_precompiled" in fault["headline"]


OPEN = """
from cudnn_backend_py import EnvironmentNotReady
from cudnn_backend_py.target import open_target
try:
    open_target("h100")
except EnvironmentNotReady as error:
    print(error.code, error.sections["where"], error.sections["fix"])
"""


def test_a_target_with_libraries_do_not_load_leads_to_what_is_in_the_way(tmp_path: Path) -> None:
    """They do not apply to a driver, which is present or replaced by its stub."""
    broken = tmp_path / "broken"
    broken.write_bytes(b"\x7fELF cut off")
    folder = cudnn_folder(tmp_path, older(), replaced={"engines_runtime_compiled": broken})
    done = run_code(OPEN, environment={**os.environ, "CUDNN_BACKEND_LIBRARY": str(folder)})
    assert done.stdout.startswith("device-description-unavailable "), done.stdout
    assert "cudnn-backend doctor names what is in the way" in done.stdout


def test_file_name_of_another_version(tmp_path: Path) -> None:
    folder = cudnn_folder(tmp_path, older(), without=["graph"])
    shutil.copy(older() / "libcudnn_graph.so.9", folder / "libcudnn_graph.so.9.14.0")
    (folder / "libcudnn_graph.so.9").symlink_to("libcudnn_graph.so.9.14.0")
    fault = run_query(CUDNN_BACKEND_LIBRARY=folder)["cudnn-sublibraries-mixed"]
    assert fault["headline"] == f"libcudnn_graph is of cuDNN 9.14.0, libcudnn of {OLDER}"


def test_tf32_that_is_switched_off() -> None:
    fault = run_query(CUDNN_BACKEND_LIBRARY=newest(), NVIDIA_TF32_OVERRIDE="0")["tf32-switched-off"]
    assert not fault["blocks"]
    assert fault["headline"].startswith("NVIDIA_TF32_OVERRIDE is 0")
    assert "tf32-switched-off" not in run_query(CUDNN_BACKEND_LIBRARY=newest(), NVIDIA_TF32_OVERRIDE="1")


def test_loader_path_shadows() -> None:
    found = run_query(CUDNN_BACKEND_LIBRARY=newest(), LD_LIBRARY_PATH=older())
    fault = found["loader-path-shadows-cudnn"]
    assert str(older()) in fault["headline"]
    assert not fault["blocks"], "libcudnn.so.9 of this wheel looks next to itself first"


def test_loader_path_gives_the_sublibraries() -> None:
    """The JIT wheel prefers LD_LIBRARY_PATH, so the requested library acts as another version."""
    other = newest()
    found = run_query(CUDNN_BACKEND_LIBRARY=older(), LD_LIBRARY_PATH=other)
    fault = found["cudnn-sublibraries-mixed"]
    assert fault["blocks"]
    assert str(other / "libcudnn_graph.so.9") in fault["headline"]
    assert "9.28.0" in fault["detail"]
    assert "loader-path-shadows-cudnn" in found


def test_two_libcudnn_in_one_process() -> None:
    loaded = f"import ctypes; ctypes.CDLL({str(newest() / 'libcudnn.so.9')!r}).cudnnGetVersion()"
    found = run_query(before=loaded, CUDNN_BACKEND_LIBRARY=older())
    fault = found["cudnn-loaded-twice"]
    assert fault["blocks"]
    assert str(newest()) in fault["headline"]
    assert str(older()) in fault["headline"]


def test_no_libcudnn(tmp_path: Path) -> None:
    fault = run_query(CUDNN_BACKEND_LIBRARY=tmp_path)["cudnn-library-not-found"]
    assert fault["blocks"]
    assert str(tmp_path) in fault["detail"]


# What the loader takes instead


def test_an_empty_entry_of_the_loader_path_is_the_working_folder() -> None:
    found = run_query(
        cwd=older(), CUDNN_BACKEND_LIBRARY=newest(), LD_LIBRARY_PATH="/nonexistent:", PYTHONPATH=PACKAGE.parent
    )
    assert str(older()) in found["loader-path-shadows-cudnn"]["headline"]


def test_what_is_preloaded_is_named() -> None:
    graph = newest() / "libcudnn_graph.so.9"
    found = run_query(CUDNN_BACKEND_LIBRARY=older(), LD_PRELOAD=graph)
    assert found["cudnn-sublibraries-mixed"]["blocks"]
    assert str(graph) in found["cudnn-sublibraries-mixed"]["headline"]
    assert found["loader-path-shadows-cudnn"]["headline"] == f"LD_PRELOAD has {graph}"


def no_library(folder: Path, name: str) -> Path:
    """Build a library with that name but without its functions."""
    (folder / "nothing.c").write_text("int nothing;")
    command = ["cc", "-shared", "-fPIC", f"-Wl,-soname,{name}", "-o", folder / name, folder / "nothing.c"]
    subprocess.run(command, check=True)
    return folder


@needs_no_driver
def test_a_libcuda_that_is_not_a_driver(tmp_path: Path) -> None:
    fault = run_query(LD_LIBRARY_PATH=no_library(tmp_path, "libcuda.so.1"), CUDNN_BACKEND_LIBRARY=newest())[
        "driver-unusable"
    ]
    assert fault["blocks"]
    assert fault["headline"] == f"{tmp_path / 'libcuda.so.1'} is not a CUDA driver"
    assert "cuInit" in fault["detail"]


def test_a_libnvrtc_that_is_none(tmp_path: Path) -> None:
    no_library(tmp_path, "libnvrtc.so.12")
    fault = run_query("build=True", CUDNN_BACKEND_NVRTC=tmp_path, CUDNN_BACKEND_LIBRARY=older())["nvrtc-unusable"]
    assert fault["blocks"]
    assert str(tmp_path / "libnvrtc.so.12") in fault["headline"]


# NVRTC and cuBLASLt


HIDDEN = "sys.path[:] = [path for path in sys.path if 'site-packages' not in path]"


@needs_no_toolkit
def test_nvrtc_missing() -> None:
    for arguments in ("", "build=True"):
        found = run_query(arguments, before=HIDDEN, CUDNN_BACKEND_LIBRARY=older())
        assert found["nvrtc-missing"]["blocks"], "before 9.21 the jit wheels support no graph without it"
        assert "nvidia-cuda-nvrtc-cu12" in found["nvrtc-missing"]["repair"]
        assert "cublaslt-missing" not in found, "the jit wheels have no use for it"


@needs_no_toolkit
def test_cublaslt_missing(tmp_path: Path) -> None:
    moved = cudnn_folder(tmp_path, newest())
    found = run_query("build=True", before=HIDDEN, CUDNN_BACKEND_LIBRARY=moved)
    assert found["cublaslt-missing"]["blocks"], "the control graph, a matmul, ends the process"
    assert found["cublaslt-missing"]["repair"] == "pip install nvidia-cublas-cu12"
    assert "nvrtc-missing" not in found, "since 9.21 it is inside"


def test_what_is_where_the_runpath_leads_is_found() -> None:
    found = run_query("build=True", before=HIDDEN, CUDNN_BACKEND_LIBRARY=newest())
    assert set(found) <= {"driver-stub", "driver-without-gpu"}


def test_builtins_missing(tmp_path: Path) -> None:
    shutil.copy(nvrtc(), tmp_path)
    (tmp_path / "libnvrtc-builtins.so.12.1").symlink_to(next(nvrtc().parent.glob("libnvrtc-builtins.so.*")))
    fault = run_query("build=True", CUDNN_BACKEND_NVRTC=tmp_path, CUDNN_BACKEND_LIBRARY=older())[
        "nvrtc-builtins-missing"
    ]
    assert fault["blocks"]
    assert "libnvrtc-builtins.so.12." in fault["headline"]
    assert str(tmp_path) in fault["detail"]
    assert "next to it are libnvrtc-builtins.so.12.1" in fault["detail"], "the one of another version"


NEW_GPU = """
import dataclasses
from cudnn_backend_py import open_target
from cudnn_backend_py.target import find_profile
profile = find_profile("b200")
profile = dataclasses.replace(profile, properties={**profile.properties, "deviceVer": 1100})
target = open_target(profile)
"""


def test_nvrtc_too_old() -> None:
    fault = run_query("target=target, build=True", before=NEW_GPU, CUDNN_BACKEND_LIBRARY=newest())["nvrtc-too-old"]
    assert not fault["blocks"], "engines compiled ahead of time need no compiler"
    assert fault["headline"] == "NVRTC 12.9 does not compile for sm_110"
    assert "inside cuDNN 9.28.0" in fault["detail"]
    assert fault["repair"].startswith("take the cuDNN of CUDA 13")


def test_table_of_architectures_is_what_nvrtc_states() -> None:
    said = run_code(f"""
import json
from cudnn_backend_py.native.environment import query_nvrtc
answer = query_nvrtc({str(nvrtc())!r})
print(json.dumps([answer.version, answer.architectures, answer.refusal]))
""")
    version, architectures, refusal = json.loads(said.stdout)
    assert NVRTC_ARCHITECTURES[tuple(version)] == tuple(architectures)
    assert refusal == ""


# The driver


@needs_no_driver
def test_driver_missing(tmp_path: Path) -> None:
    shutil.copytree(PACKAGE, tmp_path / PACKAGE.name, ignore=shutil.ignore_patterns("_driver_stub*.so", "__pycache__"))
    fault = run_query(cwd=tmp_path, CUDNN_BACKEND_LIBRARY=newest())["driver-missing"]
    assert fault["blocks"]
    assert "C compiler" in fault["repair"]


def other_driver(folder: Path, version: int) -> Path:
    """Build a libcuda.so.1 that is distinguishable from the package's stub and reports another CUDA version."""
    source = (PACKAGE / "native" / "driver_stub.c").read_text()
    source = source.replace("cudnn_backend_py_driver_stub", "driver_of_a_test")
    source = source.replace("#define DRIVER_VERSION 13000", f"#define DRIVER_VERSION {version}")
    (folder / "driver.c").write_text(source)
    built = folder / "libcuda.so.1"
    subprocess.run(
        ["cc", "-shared", "-fPIC", "-Wl,-soname,libcuda.so.1", "-o", built, folder / "driver.c"],
        check=True,
    )
    return folder


@needs_no_driver
@pytest.mark.skipif(stub_path() is None, reason="the stub was not built with this installation: no C compiler")
def test_driver_too_old_and_without_gpu(tmp_path: Path) -> None:
    found = run_query("build=True", LD_LIBRARY_PATH=other_driver(tmp_path, 11080), CUDNN_BACKEND_LIBRARY=newest())
    fault = found["driver-too-old"]
    assert fault["blocks"]
    assert fault["headline"] == "the driver is for CUDA 11.8, this cuDNN is built for CUDA 12.9"
    assert found["driver-without-gpu"]["detail"] == f"cuInit of {tmp_path / 'libcuda.so.1'} answers 100"
    assert not found["driver-without-gpu"]["blocks"]


@needs_no_driver
@pytest.mark.skipif(stub_path() is None, reason="the stub was not built with this installation: no C compiler")
def test_driver_of_an_older_minor_version_will_do(tmp_path: Path) -> None:
    found = run_query("build=True", LD_LIBRARY_PATH=other_driver(tmp_path, 12000), CUDNN_BACKEND_LIBRARY=newest())
    assert "driver-too-old" not in found


# Names and numbers


@pytest.mark.parametrize(
    ("sm", "needed"), [(75, (12, 0)), (90, (12, 0)), (100, (12, 8)), (103, (12, 9)), (110, (13, 0)), (999, None)]
)
def test_nvrtc_needed(sm: int, needed: tuple[int, int] | None) -> None:
    assert nvrtc_needed(sm) == needed


def test_sublibraries_are_read_by_name(tmp_path: Path) -> None:
    for name in ("libcudnn.so.9", "libcudnn_ops.so", "libcudnn_ops.so.9", "libcudnn_graph.so.9.19.0", "libcudnn_x.a"):
        (tmp_path / name).touch()
    (tmp_path / "libcudnn_adv.so.9").symlink_to("nowhere")
    found = {name: [path.name for path in files] for name, files in sublibraries(tmp_path).items()}
    assert found == {"ops": ["libcudnn_ops.so", "libcudnn_ops.so.9"], "graph": ["libcudnn_graph.so.9.19.0"]}
    assert sublibraries(tmp_path / "none") == {}


def test_version_of_a_file_name(tmp_path: Path) -> None:
    (tmp_path / "libcudnn_graph.so.9").symlink_to("libcudnn_graph.so.9.19.0")
    assert name_version(tmp_path / "libcudnn_graph.so.9") == (9, 19, 0)
    assert name_version(tmp_path / "libcudnn_ops.so.9") is None
