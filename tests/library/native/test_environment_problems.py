"""Each environment problem, produced with library folders in which one library is missing or of another version.

Every query runs in a child, so that no library and no environment variable of it reaches another test.
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
from cudnn_backend_py.native.driver import find_driver_stub
from cudnn_backend_py.native.environment import find_sublibraries, parse_version_in_file_name
from cudnn_backend_py.native.environment_problems import NVRTC_ARCHITECTURES, find_oldest_nvrtc
from cudnn_backend_py.native.find import find_cudnn_places, find_nvrtc_places
from tests.support.child import OLDER_VERSION, make_cudnn_environment, run_code

PACKAGE = Path(cudnn_backend_py.__file__).parent

CHECK = """
import json, sys
from cudnn_backend_py.native.environment_problems import check_environment
{before}
problems = check_environment({arguments})
print(json.dumps([[f.code, f.headline, f.detail, f.repair, f.blocks] for f in problems]))
"""

needs_no_driver = pytest.mark.skipif(
    ctypes.util.find_library("cuda") is not None, reason="a machine with a driver cannot lack one"
)
needs_no_toolkit = pytest.mark.skipif(
    ctypes.util.find_library("nvrtc") is not None, reason="a machine with the CUDA toolkit cannot lack its libraries"
)


def find_newest_cudnn_folder() -> Path:
    """Return the folder of the default cuDNN, a full wheel of 9.28."""
    place = next(place.path for place in find_cudnn_places() if place.path is not None)
    return Path(place).parent


@cache
def find_older_cudnn_folder() -> Path:
    """Return the folder of the older cuDNN, a JIT wheel."""
    return Path(make_cudnn_environment(OLDER_VERSION)["CUDNN_BACKEND_LIBRARY"]).parent


def find_nvrtc() -> Path:
    return Path(next(place.path for place in find_nvrtc_places(12) if place.path is not None))


def list_environment_problems_in_child(
    arguments: str = "", before: str = "", cwd: Path | None = None, **environment: str | Path
) -> list[dict[str, Any]]:
    """Return the environment problems found by a child process; fail the test if a missing library ends the child."""
    clean = {
        name: value for name, value in os.environ.items() if name not in ("LD_LIBRARY_PATH", "CUDNN_BACKEND_LIBRARY")
    }
    variables: Mapping[str, str] = clean | {name: str(value) for name, value in environment.items()}
    options = {} if cwd is None else {"cwd": cwd}
    done = run_code(CHECK.format(before=before, arguments=arguments), environment=variables, **options)
    names = ("code", "headline", "detail", "repair", "blocks")
    problems = [dict(zip(names, problem, strict=True)) for problem in json.loads(done.stdout)]
    blocking = [problem["blocks"] for problem in problems]
    assert blocking == sorted(blocking, reverse=True), "blocking problems must come first"
    assert all(problem["repair"] and problem["headline"] for problem in problems)
    return problems


def map_codes_to_environment_problems(arguments: str = "", **options: Any) -> dict[str, dict[str, Any]]:
    """Return the environment problems found by a child process, by their codes."""
    return {problem["code"]: problem for problem in list_environment_problems_in_child(arguments, **options)}


def make_cudnn_folder(
    tmp_path: Path, source: Path, *, without: Collection[str] = (), replaced: Mapping[str, Path] = {}
) -> Path:
    """Make a folder with a copy of libcudnn and links to its sub-libraries, with the requested changes."""
    folder = tmp_path / "lib"
    folder.mkdir()
    shutil.copy(source / "libcudnn.so.9", folder)
    for name, files in find_sublibraries(source).items():
        if name not in without:
            (folder / f"libcudnn_{name}.so.9").symlink_to(replaced.get(name, files[0]))
    return folder


# A valid environment


LOOK_AGAIN = """
import time
check_environment()
def look():
    start = time.perf_counter()
    check_environment(build=True)
    return time.perf_counter() - start
assert min(look() for _ in range(20)) < 0.003
"""


@pytest.mark.parametrize("folder", [find_newest_cudnn_folder, find_older_cudnn_folder])
def test_valid_environment_has_only_a_driver_problem_and_is_checked_once(folder: Any) -> None:
    found = map_codes_to_environment_problems("build=True", before=LOOK_AGAIN, CUDNN_BACKEND_LIBRARY=folder())
    assert set(found) <= {"driver-stub", "driver-without-gpu"}
    assert not any(problem["blocks"] for problem in found.values())


def test_a_folder_of_links_to_libraries_is_valid(tmp_path: Path) -> None:
    found = map_codes_to_environment_problems(
        CUDNN_BACKEND_LIBRARY=make_cudnn_folder(tmp_path, find_newest_cudnn_folder())
    )
    assert set(found) <= {"driver-stub", "driver-without-gpu"}


# Sub-libraries of cuDNN


@pytest.mark.parametrize(
    ("source", "missing"),
    [
        (find_newest_cudnn_folder, "graph"),
        (find_older_cudnn_folder, "graph"),
        (find_older_cudnn_folder, "engines_runtime_compiled"),
        (find_newest_cudnn_folder, "engines_tensor_ir"),  # of 9.28
    ],
)
def test_a_missing_vital_sublibrary_blocks_judging(tmp_path: Path, source: Any, missing: str) -> None:
    folder = make_cudnn_folder(tmp_path, source(), without=[missing])
    problem = map_codes_to_environment_problems(CUDNN_BACKEND_LIBRARY=folder)["cudnn-sublibrary-missing"]
    assert problem["blocks"]
    assert problem["headline"].startswith(f"libcudnn_{missing}.so.9 is missing")
    assert str(folder) in problem["detail"]


def test_missing_optional_sublibraries_do_not_block_judging(tmp_path: Path) -> None:
    lost = {"engines_precompiled": "convolutions", "heuristic": "mode A", "ops": "graph API"}
    problems = list_environment_problems_in_child(
        CUDNN_BACKEND_LIBRARY=make_cudnn_folder(tmp_path, find_newest_cudnn_folder(), without=lost)
    )
    missing = [problem for problem in problems if problem["code"] == "cudnn-sublibrary-missing"]
    for problem, (name, words) in zip(missing, lost.items(), strict=True):
        assert problem["headline"].startswith(f"libcudnn_{name}.so.9 is missing")
        assert words in problem["detail"]
        assert not problem["blocks"]


def test_a_sublibrary_of_another_version_blocks_judging(tmp_path: Path) -> None:
    engines = find_older_cudnn_folder() / "libcudnn_engines_runtime_compiled.so.9"
    folder = make_cudnn_folder(tmp_path, find_newest_cudnn_folder(), replaced={"engines_runtime_compiled": engines})
    problem = map_codes_to_environment_problems(CUDNN_BACKEND_LIBRARY=folder)["cudnn-sublibraries-mixed"]
    assert problem["blocks"]
    assert "another cuDNN version" in problem["headline"]
    assert "undefined symbol" in problem["detail"]


def test_an_invalid_sublibrary_blocks_judging(tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    broken.write_bytes(b"\x7fELF cut off")
    folder = make_cudnn_folder(tmp_path, find_newest_cudnn_folder(), replaced={"engines_precompiled": broken})
    problem = map_codes_to_environment_problems(CUDNN_BACKEND_LIBRARY=folder)["cudnn-sublibrary-unloadable"]
    assert problem["blocks"]
    assert "engines_precompiled" in problem["headline"]


OPEN = """
from cudnn_backend_py import EnvironmentNotReady
from cudnn_backend_py.target import open_target
try:
    open_target("h100")
except EnvironmentNotReady as error:
    print(error.code, error.sections["where"], error.sections["fix"])
"""


def test_opening_a_target_reports_unloadable_libraries(tmp_path: Path) -> None:
    """The error must not blame the CUDA driver, which is present or replaced by the package's stub."""
    broken = tmp_path / "broken"
    broken.write_bytes(b"\x7fELF cut off")
    folder = make_cudnn_folder(tmp_path, find_older_cudnn_folder(), replaced={"engines_runtime_compiled": broken})
    done = run_code(OPEN, environment={**os.environ, "CUDNN_BACKEND_LIBRARY": str(folder)})
    assert done.stdout.startswith("device-description-unavailable "), done.stdout
    assert "cudnn-backend doctor shows the problem" in done.stdout


def test_a_library_file_named_after_another_version_is_reported(tmp_path: Path) -> None:
    folder = make_cudnn_folder(tmp_path, find_older_cudnn_folder(), without=["graph"])
    shutil.copy(find_older_cudnn_folder() / "libcudnn_graph.so.9", folder / "libcudnn_graph.so.9.14.0")
    (folder / "libcudnn_graph.so.9").symlink_to("libcudnn_graph.so.9.14.0")
    problem = map_codes_to_environment_problems(CUDNN_BACKEND_LIBRARY=folder)["cudnn-sublibraries-mixed"]
    assert problem["headline"] == f"libcudnn_graph belongs to cuDNN 9.14.0, libcudnn to {OLDER_VERSION}"


def test_disabled_tf32_is_reported() -> None:
    problem = map_codes_to_environment_problems(
        CUDNN_BACKEND_LIBRARY=find_newest_cudnn_folder(), NVIDIA_TF32_OVERRIDE="0"
    )["tf32-switched-off"]
    assert not problem["blocks"]
    assert problem["headline"].startswith("NVIDIA_TF32_OVERRIDE is 0")
    assert "tf32-switched-off" not in map_codes_to_environment_problems(
        CUDNN_BACKEND_LIBRARY=find_newest_cudnn_folder(), NVIDIA_TF32_OVERRIDE="1"
    )


def test_a_loader_path_that_shadows_cudnn_is_reported() -> None:
    found = map_codes_to_environment_problems(
        CUDNN_BACKEND_LIBRARY=find_newest_cudnn_folder(), LD_LIBRARY_PATH=find_older_cudnn_folder()
    )
    problem = found["loader-path-shadows-cudnn"]
    assert str(find_older_cudnn_folder()) in problem["headline"]
    assert not problem["blocks"], "this libcudnn.so.9 loads libraries next to itself first"


def test_sublibraries_from_the_loader_path_are_reported() -> None:
    """The JIT wheel takes sub-libraries from LD_LIBRARY_PATH first, so it may load those of another version."""
    other = find_newest_cudnn_folder()
    found = map_codes_to_environment_problems(CUDNN_BACKEND_LIBRARY=find_older_cudnn_folder(), LD_LIBRARY_PATH=other)
    problem = found["cudnn-sublibraries-mixed"]
    assert problem["blocks"]
    assert str(other / "libcudnn_graph.so.9") in problem["headline"]
    assert "9.28.0" in problem["detail"]
    assert "loader-path-shadows-cudnn" in found


def test_two_libcudnn_in_one_process_are_reported() -> None:
    loaded = f"import ctypes; ctypes.CDLL({str(find_newest_cudnn_folder() / 'libcudnn.so.9')!r}).cudnnGetVersion()"
    found = map_codes_to_environment_problems(before=loaded, CUDNN_BACKEND_LIBRARY=find_older_cudnn_folder())
    problem = found["cudnn-loaded-twice"]
    assert problem["blocks"]
    assert str(find_newest_cudnn_folder()) in problem["headline"]
    assert str(find_older_cudnn_folder()) in problem["headline"]


def test_missing_libcudnn_is_reported(tmp_path: Path) -> None:
    problem = map_codes_to_environment_problems(CUDNN_BACKEND_LIBRARY=tmp_path)["cudnn-library-not-found"]
    assert problem["blocks"]
    assert str(tmp_path) in problem["detail"]


# Other libraries found by the loader


def test_an_empty_loader_path_entry_means_the_working_folder() -> None:
    found = map_codes_to_environment_problems(
        cwd=find_older_cudnn_folder(),
        CUDNN_BACKEND_LIBRARY=find_newest_cudnn_folder(),
        LD_LIBRARY_PATH="/nonexistent:",
        PYTHONPATH=PACKAGE.parent,
    )
    assert str(find_older_cudnn_folder()) in found["loader-path-shadows-cudnn"]["headline"]


def test_preloaded_libraries_are_reported() -> None:
    graph = find_newest_cudnn_folder() / "libcudnn_graph.so.9"
    found = map_codes_to_environment_problems(CUDNN_BACKEND_LIBRARY=find_older_cudnn_folder(), LD_PRELOAD=graph)
    assert found["cudnn-sublibraries-mixed"]["blocks"]
    assert str(graph) in found["cudnn-sublibraries-mixed"]["headline"]
    assert found["loader-path-shadows-cudnn"]["headline"] == f"LD_PRELOAD has {graph}"


def build_empty_library(folder: Path, name: str) -> Path:
    """Build a shared library of the given name without the functions that a real one has."""
    (folder / "nothing.c").write_text("int nothing;")
    command = ["cc", "-shared", "-fPIC", f"-Wl,-soname,{name}", "-o", folder / name, folder / "nothing.c"]
    subprocess.run(command, check=True)
    return folder


@needs_no_driver
def test_a_libcuda_without_driver_functions_is_reported(tmp_path: Path) -> None:
    problem = map_codes_to_environment_problems(
        LD_LIBRARY_PATH=build_empty_library(tmp_path, "libcuda.so.1"), CUDNN_BACKEND_LIBRARY=find_newest_cudnn_folder()
    )["driver-unusable"]
    assert problem["blocks"]
    assert problem["headline"] == f"{tmp_path / 'libcuda.so.1'} is not a CUDA driver"
    assert "cuInit" in problem["detail"]


def test_an_invalid_libnvrtc_is_reported(tmp_path: Path) -> None:
    build_empty_library(tmp_path, "libnvrtc.so.12")
    problem = map_codes_to_environment_problems(
        "build=True", CUDNN_BACKEND_NVRTC=tmp_path, CUDNN_BACKEND_LIBRARY=find_older_cudnn_folder()
    )["nvrtc-unusable"]
    assert problem["blocks"]
    assert str(tmp_path / "libnvrtc.so.12") in problem["headline"]


# NVRTC and cuBLASLt


HIDDEN = "sys.path[:] = [path for path in sys.path if 'site-packages' not in path]"


@needs_no_toolkit
def test_missing_nvrtc_is_reported() -> None:
    for arguments in ("", "build=True"):
        found = map_codes_to_environment_problems(
            arguments, before=HIDDEN, CUDNN_BACKEND_LIBRARY=find_older_cudnn_folder()
        )
        assert found["nvrtc-missing"]["blocks"], "before 9.21 the jit wheels support no graph without it"
        assert "nvidia-cuda-nvrtc-cu12" in found["nvrtc-missing"]["repair"]
        assert "cublaslt-missing" not in found, "JIT wheels do not use cuBLASLt"


EMPTY_LISTS = """
import json, sys, warnings
from cudnn_backend_py import *
from tests.support.typical_graphs import TYPICAL_GRAPHS
sys.path[:] = [path for path in sys.path if 'site-packages' not in path]
graph = OperationGraph(TYPICAL_GRAPHS["matmul"].make(), open_target("h100"))
question = Descriptor(DescriptorType.ENGINEHEUR).set(Attr.ENGINEHEUR_OPERATION_GRAPH, graph.descriptor)
question.set(Attr.ENGINEHEUR_MODE, HeurMode.A).set(Attr.ENGINEHEUR_DEVICEPROP, graph.target.device).finalize()
said = []
for read in (lambda: question.get(Attr.ENGINEHEUR_RESULTS), graph.heuristics, lambda: list(graph.configs("A"))):
    try:
        said.append(str(read()))
    except EnvironmentNotReady as error:
        said.append(error.code)
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    lists = [
        capi.cudnnBackendGetAttribute(question, Attr.ENGINEHEUR_RESULTS, AttributeType.BACKEND_DESCRIPTOR, 8)
        for _ in range(2)
    ]
answer = graph.heuristics(judging=True)
reason = "libnvrtc" in answer.answer.text
print(json.dumps([said, lists, [str(item.message) for item in caught], len(answer.configs), reason]))
"""


@needs_no_toolkit
def test_empty_lists_of_engine_configs_without_nvrtc_are_explained() -> None:
    environment = {name: value for name, value in os.environ.items() if name != "LD_LIBRARY_PATH"}
    done = run_code(EMPTY_LISTS, environment=environment | {"CUDNN_BACKEND_LIBRARY": str(find_older_cudnn_folder())})
    said, lists, warned, configs, reason = json.loads(done.stdout)
    assert said == ["nvrtc-missing"] * 3
    assert lists == [[0, []]] * 2, "C functions answer as in C"
    assert [text.split(":")[0] for text in warned] == ["cuDNN lists no engine config for any graph"], "once"
    assert "pip install nvidia-cuda-nvrtc-cu12" in warned[0]
    assert (configs, reason) == (0, True), "code that judges gets cuDNN's reasons"


@needs_no_toolkit
def test_missing_cublaslt_is_reported(tmp_path: Path) -> None:
    moved = make_cudnn_folder(tmp_path, find_newest_cudnn_folder())
    found = map_codes_to_environment_problems("build=True", before=HIDDEN, CUDNN_BACKEND_LIBRARY=moved)
    assert found["cublaslt-missing"]["blocks"], "the control graph, a matmul, ends the process"
    assert found["cublaslt-missing"]["repair"] == "pip install nvidia-cublas-cu12"
    assert "nvrtc-missing" not in found, "cuDNN contains NVRTC since 9.21"
    stored = tmp_path / "9.27.0.42-cu12-full/nvidia/cudnn/lib"
    stored.parent.mkdir(parents=True)
    moved.rename(stored)
    found = map_codes_to_environment_problems("build=True", before=HIDDEN, CUDNN_BACKEND_LIBRARY=stored)
    assert found["cublaslt-missing"]["repair"] == "cudnn-backend cudnn install 9.27.0.42 --cuda 12 --full"


def test_libraries_in_the_runpath_are_found() -> None:
    found = map_codes_to_environment_problems(
        "build=True", before=HIDDEN, CUDNN_BACKEND_LIBRARY=find_newest_cudnn_folder()
    )
    assert set(found) <= {"driver-stub", "driver-without-gpu"}


def test_missing_nvrtc_builtins_are_reported(tmp_path: Path) -> None:
    shutil.copy(find_nvrtc(), tmp_path)
    (tmp_path / "libnvrtc-builtins.so.12.1").symlink_to(next(find_nvrtc().parent.glob("libnvrtc-builtins.so.*")))
    problem = map_codes_to_environment_problems(
        "build=True", CUDNN_BACKEND_NVRTC=tmp_path, CUDNN_BACKEND_LIBRARY=find_older_cudnn_folder()
    )["nvrtc-builtins-missing"]
    assert problem["blocks"]
    assert "libnvrtc-builtins.so.12." in problem["headline"]
    assert str(tmp_path) in problem["detail"]
    assert "next to it are libnvrtc-builtins.so.12.1" in problem["detail"], (
        "the builtins of another version must be listed"
    )


NEW_GPU = """
import dataclasses
from cudnn_backend_py import open_target
from cudnn_backend_py.target import find_profile
profile = find_profile("b200")
profile = dataclasses.replace(profile, properties={**profile.properties, "deviceVer": 1100})
target = open_target(profile)
"""


def test_too_old_nvrtc_is_reported() -> None:
    problem = map_codes_to_environment_problems(
        "target=target, build=True", before=NEW_GPU, CUDNN_BACKEND_LIBRARY=find_newest_cudnn_folder()
    )["nvrtc-too-old"]
    assert not problem["blocks"], "engines compiled ahead of time need no compiler"
    assert problem["headline"] == "NVRTC 12.9 does not compile for sm_110"
    assert "inside cuDNN 9.28.0" in problem["detail"]
    assert problem["repair"].startswith("use the cuDNN of CUDA 13")


def test_the_nvrtc_architecture_table_equals_the_answer_of_nvrtc() -> None:
    said = run_code(f"""
import json
from cudnn_backend_py.native.environment import query_nvrtc
answer = query_nvrtc({str(find_nvrtc())!r})
print(json.dumps([answer.version, answer.architectures, answer.refusal]))
""")
    version, architectures, refusal = json.loads(said.stdout)
    assert NVRTC_ARCHITECTURES[tuple(version)] == tuple(architectures)
    assert refusal == ""


# The driver


@needs_no_driver
def test_missing_driver_is_reported(tmp_path: Path) -> None:
    shutil.copytree(PACKAGE, tmp_path / PACKAGE.name, ignore=shutil.ignore_patterns("_driver_stub*.so", "__pycache__"))
    problem = map_codes_to_environment_problems(cwd=tmp_path, CUDNN_BACKEND_LIBRARY=find_newest_cudnn_folder())[
        "driver-missing"
    ]
    assert problem["blocks"]
    assert "C compiler" in problem["repair"]


def build_fake_libcuda_with_version(folder: Path, version: int) -> Path:
    """Build a libcuda.so.1 that differs from the package's stub and returns another CUDA version."""
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
@pytest.mark.skipif(find_driver_stub() is None, reason="the stub was not built with this installation: no C compiler")
def test_too_old_driver_without_gpu_is_reported(tmp_path: Path) -> None:
    found = map_codes_to_environment_problems(
        "build=True",
        LD_LIBRARY_PATH=build_fake_libcuda_with_version(tmp_path, 11080),
        CUDNN_BACKEND_LIBRARY=find_newest_cudnn_folder(),
    )
    problem = found["driver-too-old"]
    assert problem["blocks"]
    assert problem["headline"] == "the driver is for CUDA 11.8, this cuDNN is built for CUDA 12.9"
    assert found["driver-without-gpu"]["detail"] == f"cuInit of {tmp_path / 'libcuda.so.1'} returns 100"
    assert not found["driver-without-gpu"]["blocks"]


@needs_no_driver
@pytest.mark.skipif(find_driver_stub() is None, reason="the stub was not built with this installation: no C compiler")
def test_driver_of_an_older_minor_version_is_accepted(tmp_path: Path) -> None:
    found = map_codes_to_environment_problems(
        "build=True",
        LD_LIBRARY_PATH=build_fake_libcuda_with_version(tmp_path, 12000),
        CUDNN_BACKEND_LIBRARY=find_newest_cudnn_folder(),
    )
    assert "driver-too-old" not in found


# Names and numbers


@pytest.mark.parametrize(
    ("sm", "needed"),
    [(75, (12, 0)), (90, (12, 0)), (100, (12, 8)), (103, (12, 9)), (107, (13, 4)), (110, (13, 0)), (999, None)],
)
def test_the_nvrtc_needed_by_an_architecture_is_known(sm: int, needed: tuple[int, int] | None) -> None:
    assert find_oldest_nvrtc(sm) == needed


def test_sublibraries_are_found_by_file_name(tmp_path: Path) -> None:
    for name in ("libcudnn.so.9", "libcudnn_ops.so", "libcudnn_ops.so.9", "libcudnn_graph.so.9.19.0", "libcudnn_x.a"):
        (tmp_path / name).touch()
    (tmp_path / "libcudnn_adv.so.9").symlink_to("nowhere")
    found = {name: [path.name for path in files] for name, files in find_sublibraries(tmp_path).items()}
    assert found == {"ops": ["libcudnn_ops.so", "libcudnn_ops.so.9"], "graph": ["libcudnn_graph.so.9.19.0"]}
    assert find_sublibraries(tmp_path / "none") == {}


def test_version_is_read_from_a_file_name(tmp_path: Path) -> None:
    (tmp_path / "libcudnn_graph.so.9").symlink_to("libcudnn_graph.so.9.19.0")
    assert parse_version_in_file_name(tmp_path / "libcudnn_graph.so.9") == (9, 19, 0)
    assert parse_version_in_file_name(tmp_path / "libcudnn_ops.so.9") is None
