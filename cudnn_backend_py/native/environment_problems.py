"""``check_environment``: find problems of the machine and the process that prevent verdicts or plans."""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Protocol

from ..errors import EnvironmentNotReady
from ..frozen import FrozenValue
from ..system.integrity import FileDamage, find_damage
from ..system.interruption import reraise_interruption
from ..system.version import JIT_SINCE, Version, format_cuda_version_number, format_version_numbers
from .environment import (
    Nvrtc,
    find_sublibraries,
    get_loader_error,
    initialize_driver,
    list_loader_folders,
    list_loader_preloads,
    list_mapped_cudnn_libraries,
    parse_version_in_file_name,
    query_nvrtc,
)
from .find import find_cudnn_places, find_loaded_libraries, find_nvrtc_places
from .libcudnn import Library, library, loaded_library
from .version_store import find_version_folder, format_install_command

__all__ = [
    "DRIVER_STUB_HEADLINE",
    "NVRTC_ARCHITECTURES",
    "EnvironmentProblem",
    "check_environment",
    "find_oldest_nvrtc",
    "find_problem_explaining_crash",
    "find_problem_explaining_refusal",
    "includes_nvrtc",
    "raise_problem_explaining_empty_config_list",
]

#: The headline where there is no driver, and this package's own library serves for verdicts.
DRIVER_STUB_HEADLINE = "libcuda.so.1 is this package's stub: enough for verdicts and plans, nothing can run"

# What the NVRTC of each CUDA version compiles for, as it says itself (nvrtcGetSupportedArchs).
_ARCHITECTURES_UP_TO_HOPPER = (50, 52, 53, 60, 61, 62, 70, 72, 75, 80, 86, 87, 89, 90)
NVRTC_ARCHITECTURES: dict[tuple[int, int], tuple[int, ...]] = {
    (12, 0): _ARCHITECTURES_UP_TO_HOPPER,
    (12, 6): _ARCHITECTURES_UP_TO_HOPPER,
    (12, 8): (*_ARCHITECTURES_UP_TO_HOPPER, 100, 101, 120),
    (12, 9): (*_ARCHITECTURES_UP_TO_HOPPER, 100, 101, 103, 120, 121),
    (13, 0): (75, 80, 86, 87, 88, 89, 90, 100, 103, 110, 120, 121),
    (13, 4): (75, 80, 86, 87, 88, 89, 90, 100, 103, 107, 110, 120, 121),
}

# Without these cuDNN judges nothing: it ends the process (graph) or answers SUBLIBRARY_LOADING_FAILED.
_VITAL_SUBLIBRARIES = ("graph", "engines_runtime_compiled")
_VITAL_SUBLIBRARIES_SINCE = {"engines_tensor_ir": (9, 28, 0)}  # of full wheels
_TF32_SWITCH = "NVIDIA_TF32_OVERRIDE"
_VITAL_SUBLIBRARIES_BEFORE = {
    "engines_precompiled": JIT_SINCE
}  # of all: the jit wheel of 9.12.0 is without it, and of no use
# A folder with one of these is that of a full wheel, which has all of them; the jit wheels have none.
_FULL_WHEEL_SUBLIBRARIES = ("engines_precompiled", "heuristic", "ops", "cnn", "adv")
_MISSING_SUBLIBRARY_EFFECTS = {
    "engines_precompiled": "engines compiled ahead of time are not offered, including those for convolutions and norms",
    "heuristic": "mode A may propose other engines",
    "ops": "functions outside the graph API end the process",
    "cnn": "functions outside the graph API end the process",
    "adv": "functions outside the graph API end the process",
}

# From here on libcudnn_graph has the NVRTC of its CUDA inside and loads no other: plans of the jit wheels of 9.21, 9.22
# and 9.24 and of the full 9.28 build without any libnvrtc, and next to a broken one. The jit wheels of 9.12 to 9.20
# support no graph without one. All of this is measured.
_NVRTC_INCLUDED_SINCE = (9, 21, 0)

# Problems that damaged files may cause: then every byte is compared with the installed files.
_POSSIBLE_DAMAGE_CODES = (
    *("cudnn-library-not-found", "cudnn-sublibrary-missing", "cudnn-sublibrary-unloadable"),
    *("cudnn-sublibraries-mixed", "nvrtc-builtins-missing", "nvrtc-unusable"),
)

# What cuInit answers where a driver library is there and cannot be used.
_CUDA_ERROR_NO_DEVICE = 100
_CUINIT_ERRORS = {
    34: ("it is a stub of the CUDA toolkit", "remove the toolkit's 'stubs' folder from LD_LIBRARY_PATH"),
    46: ("the GPU is in use exclusively or not reachable", "nvidia-smi shows which process uses it, and its mode"),
    _CUDA_ERROR_NO_DEVICE: (
        "it sees no GPU",
        "see nvidia-smi, CUDA_VISIBLE_DEVICES, and how the container was given its GPUs",
    ),
    802: ("the system is not ready; the fabric manager may not be running", "start nvidia-fabricmanager"),
    803: ("the kernel module is of another version", "reboot, or load the module of the installed driver"),
    804: ("it is a compatibility package, which this GPU does not support", "install a newer driver instead"),
}


class JudgedGpu(Protocol):
    """The properties of a :class:`~cudnn_backend_py.target.Target` that :func:`check_environment` reads."""

    @property
    def library(self) -> Library:
        """The libcudnn that judges graphs for the GPU."""

    @property
    def sm(self) -> int:
        """The architecture of the GPU, such as 90."""

    @property
    def is_live(self) -> bool:
        """Whether the GPU is a real one of this machine, not a described one."""


class EnvironmentProblem(FrozenValue):
    """A problem of the environment, with instructions to repair it.

    ``blocks`` says that verdicts cannot be believed, or not be had, before it is repaired.
    """

    code: str
    headline: str
    detail: str
    repair: str
    blocks: bool

    def __str__(self) -> str:
        return f"{self.headline} ({self.code}); {self.repair}"

    def to_exception(self) -> EnvironmentNotReady:
        """Return the problem as an exception."""
        return EnvironmentNotReady(self.headline, code=self.code, where=self.detail, fix=self.repair)


def check_environment(
    on: Library | None = None, target: JudgedGpu | None = None, build: bool = False
) -> list[EnvironmentProblem]:
    """Return the environment problems; those that prevent verdicts come first.

    Parameters
    ----------
    on
        The library; that of `target`, or the one this process has or would load, if not given. Before a library is
        loaded its files are looked at, since one that lacks a vital part ends the process.
    target
        What graphs are judged for: its architecture decides whether NVRTC is new enough, and a live one needs a
        driver.
    build
        Whether plans are to be built, which takes NVRTC; before cuDNN 9.21 that has to be available.

    Source: the files next to libcudnn, ``/proc/self/maps``, and the libraries' own answers. Takes some 0.1 s once per
    library, then less than 3 ms.
    """
    lib = on or (target.library if target is not None else loaded_library())
    if lib is None:
        path = _find_library_to_load()
        problems = [] if path is None else _find_problems_of_libcudnn_to_load(path)
        if any(problem.blocks for problem in problems):
            return _prepend_damaged_wheel_problems(problems, path)
        try:
            lib = library()
        except EnvironmentNotReady as error:
            where = error.sections.get("where", "")
            refused = EnvironmentProblem(error.code, error.headline, where, error.sections.get("fix", ""), blocks=True)
            return _prepend_damaged_wheel_problems(
                [refused, *([] if path is None else _find_shadowing_libraries(path))], path
            )
    problems = [*_find_other_mapped_cudnn_versions(lib), *_find_shadowing_libraries(lib.path)]
    if not any(problem.code in ("cudnn-sublibraries-mixed", "cudnn-loaded-twice") for problem in problems):
        problems += _find_sublibrary_problems(lib.path, lib.version)
    problems += [
        *_check_driver(lib, target, build),
        *_check_nvrtc(lib, target, build),
        *_check_cublaslt(lib),
        *_check_tf32(),
    ]
    return _prepend_damaged_wheel_problems(
        sorted(problems, key=lambda problem: not problem.blocks), lib.path, lib.nvrtc.path
    )


def _check_tf32() -> Iterator[EnvironmentProblem]:
    """Yield a problem if an environment variable disables TF32, as cuDNN's messages do not mention it."""
    if os.environ.get(_TF32_SWITCH) == "0":
        yield EnvironmentProblem(
            "tf32-switched-off",
            f"{_TF32_SWITCH} is 0: cuDNN proposes no engine that computes in TF32",
            "float32 matmuls and convolutions are refused or get fewer engine configs",
            f"unset {_TF32_SWITCH} if TF32 is precise enough",
            blocks=False,
        )


def find_problem_explaining_refusal(
    lib: Library, target: JudgedGpu | None = None, *, built: bool = False
) -> EnvironmentProblem | None:
    """Return the environment problem that explains why cuDNN lists no engine config or builds no plan.

    Parameters
    ----------
    built
        Whether configs were offered, and plans of them could not be built.
    """
    for problem in check_environment(lib, target, build=built):
        if problem.blocks or (built and problem.code.startswith("nvrtc-")):
            return problem
    return None


def raise_problem_explaining_empty_config_list(lib: Library, target: JudgedGpu | None = None) -> None:
    """Raise the environment problem that explains an empty list of engine configs, if there is one.

    Raises
    ------
    EnvironmentNotReady
        Codes of :func:`check_environment`, such as ``nvrtc-missing``: the list says nothing about the graph.
    """
    if (problem := find_problem_explaining_refusal(lib, target)) is not None:
        raise problem.to_exception()


def includes_nvrtc(lib: Library) -> bool:
    """Return whether a libcudnn contains NVRTC."""
    return lib.version >= _NVRTC_INCLUDED_SINCE


def find_problem_explaining_crash(library: str, nvrtc: str, *, in_start: bool = False) -> EnvironmentProblem | None:
    """Return a problem of the library files that explains why a process crashed; None if the files are intact.

    Every byte of cuDNN and of its NVRTC is compared with the installed files: a second or more the first time, then
    less than 2 ms while the files stay as they are.

    Parameters
    ----------
    library, nvrtc
        Paths of ``libcudnn.so.9`` and ``libnvrtc``; empty where they are not known.
    in_start
        Whether it died before the control graph was answered: then what was loaded is not known to be what was queried
        for, as it is later.

    Returns
    -------
    EnvironmentProblem
        ``installed-files-changed``; after a death in the start also ``loader-path-shadows-cudnn`` where the files are
        whole and ``LD_LIBRARY_PATH`` or ``LD_PRELOAD`` brings others. None if nothing is known to be wrong.
    """
    if not nvrtc:
        places = (place.path for major in (12, 13) for place in find_nvrtc_places(major, library or None))
        nvrtc = next((place for place in places if place is not None and "/nvidia/" in place), "")
    for file in filter(None, (library, nvrtc)):
        if (damage := find_damage(file, full=True)) is not None:
            return _make_damaged_library_problem(damage)
    return next(_find_shadowing_libraries(library), None) if in_start and library else None


def _make_damaged_library_problem(damage: FileDamage) -> EnvironmentProblem:
    return EnvironmentProblem(
        "installed-files-changed", damage.headline, "\n".join(damage.differences), damage.repair, blocks=True
    )


def _prepend_damaged_wheel_problems(problems: list[EnvironmentProblem], *paths: str | None) -> list[EnvironmentProblem]:
    """Return the problems, preceded by those of damaged wheels if damage may explain them."""
    if not any(problem.code in _POSSIBLE_DAMAGE_CODES for problem in problems):
        return problems
    found = (find_damage(path, full=True) for path in paths if path is not None)
    return [*(_make_damaged_library_problem(damage) for damage in found if damage is not None), *problems]


def _find_library_to_load() -> str | None:
    """Return the path of the libcudnn that this process will load; None if the dynamic loader searches for it."""
    place = next((place for place in find_cudnn_places() if place.path is not None), None)
    return None if place is None or place.path is None or "/" not in place.path else place.path


def _find_problems_of_libcudnn_to_load(path: str) -> list[EnvironmentProblem]:
    """Find problems of the libcudnn that this process will load, from its files, without loading it."""
    if (damage := find_damage(path, full=False)) is not None:
        return [_make_damaged_library_problem(damage)]
    try:
        with Path(path).open("rb") as file:
            is_library = file.read(4) == b"\x7fELF"
    except OSError as error:
        reraise_interruption(error)
        is_library = False
    return list(_find_missing_sublibraries(path, None)) if is_library else []  # the loader says it better


@lru_cache
def _find_sublibrary_problems(path: str, version: Version) -> tuple[EnvironmentProblem, ...]:
    """Return the problems of the sub-libraries next to a libcudnn, such as missing ones."""
    return (
        *_find_missing_sublibraries(path, version),
        *_find_misnamed_sublibraries(path, version),
        *_find_unloadable_sublibraries(path),
    )


def _find_missing_sublibraries(path: str, version: Version | None) -> Iterator[EnvironmentProblem]:
    folder = Path(path).parent
    present = set(find_sublibraries(folder))
    full = not present.isdisjoint(_FULL_WHEEL_SUBLIBRARIES)
    vital = list(_VITAL_SUBLIBRARIES)
    if version is not None:
        vital += [name for name, before in _VITAL_SUBLIBRARIES_BEFORE.items() if version < before]
        vital += [name for name, since in _VITAL_SUBLIBRARIES_SINCE.items() if full and version >= since]
    for name in dict.fromkeys((*vital, *(_FULL_WHEEL_SUBLIBRARIES if full else ()))):
        if name in present:
            continue
        blocks = name in vital
        never_there = not full and name in _VITAL_SUBLIBRARIES_BEFORE
        lost = "cuDNN cannot judge without it" if blocks else _MISSING_SUBLIBRARY_EFFECTS[name]
        yield EnvironmentProblem(
            "cudnn-sublibrary-missing",
            f"libcudnn_{name}.so.9 is missing next to libcudnn.so.9",
            f"in {folder}; {lost}" + (f", which the JIT wheel of {version} does not include" if never_there else ""),
            f"install the full wheel (cudnn-backend cudnn install {version} --full), or a JIT wheel of 9.13 or later"
            if never_there
            else _make_reinstall_command(path),
            blocks,
        )


def _find_misnamed_sublibraries(path: str, version: Version) -> Iterator[EnvironmentProblem]:
    """Yield sub-libraries with another version in their file names than cuDNN reports."""
    for name, files in find_sublibraries(Path(path).parent).items():
        versions = {found for file in files if (found := parse_version_in_file_name(file)) is not None}
        if versions and not any(version[: len(found)] == found[:3] for found in versions):
            theirs = ", ".join(map(format_version_numbers, sorted(versions)))
            yield EnvironmentProblem(
                "cudnn-sublibraries-mixed",
                f"libcudnn_{name} belongs to cuDNN {theirs}, libcudnn to {version}",
                f"according to the file names in {Path(path).parent}",
                _make_reinstall_command(path),
                blocks=True,
            )


def _find_unloadable_sublibraries(path: str) -> Iterator[EnvironmentProblem]:
    """Yield sub-libraries that cannot be loaded, as symbols are missing when versions are mixed."""
    present = find_sublibraries(Path(path).parent)
    for name in (*_VITAL_SUBLIBRARIES, *_VITAL_SUBLIBRARIES_SINCE, "heuristic", "engines_precompiled"):
        if name not in present:
            continue
        refusal = get_loader_error(str(present[name][0]))
        if refusal and "libcuda.so" not in refusal:  # without a driver that is the problem, and has its own line
            mixed = "undefined symbol" in refusal
            yield EnvironmentProblem(
                "cudnn-sublibraries-mixed" if mixed else "cudnn-sublibrary-unloadable",
                f"libcudnn_{name}.so.9 belongs to another cuDNN version than the libraries next to it"
                if mixed
                else f"libcudnn_{name}.so.9 cannot be loaded",
                refusal,
                _make_reinstall_command(path),
                blocks=True,
            )


def _find_other_mapped_cudnn_versions(lib: Library) -> Iterator[EnvironmentProblem]:
    """Yield libraries of other cuDNN versions that are mapped into this process."""
    shims, parts = list_mapped_cudnn_libraries()
    if len(shims) > 1:
        yield EnvironmentProblem(
            "cudnn-loaded-twice",
            f"{len(shims)} libcudnn are loaded in this process: {' and '.join(shims)}",
            f"they share their sub-libraries by name, and both act as cuDNN {lib.build_text}",
            "use another process, or import the package with the wanted cuDNN first, and leave "
            "CUDNN_BACKEND_LIBRARY unset",
            blocks=True,
        )
    foreign = [path for path in parts if path not in _list_sublibrary_paths(lib.path)]
    if foreign:
        yield EnvironmentProblem(
            "cudnn-sublibraries-mixed",
            f"{lib.path} uses sub-libraries from another folder: {', '.join(foreign)}",
            f"together they act as cuDNN {lib.build_text}",
            "remove the other folder from LD_LIBRARY_PATH, or use a process that has not loaded another cuDNN",
            blocks=True,
        )


@lru_cache
def _list_sublibrary_paths(path: str) -> frozenset[str]:
    """Return the resolved paths of the sub-libraries next to a libcudnn, as in ``/proc/self/maps``."""
    return frozenset(str(file.resolve()) for files in find_sublibraries(Path(path).parent).values() for file in files)


@lru_cache
def _list_sublibrary_names(folder: Path) -> frozenset[str]:
    return frozenset(find_sublibraries(folder))


def _find_shadowing_libraries(path: str) -> Iterator[EnvironmentProblem]:
    """Yield libraries that the loader finds before the sub-libraries next to the libcudnn at `path`."""
    own = Path(path).resolve().parent
    for folder in list_loader_folders():
        if "graph" in _list_sublibrary_names(folder) and folder.resolve() != own:
            yield EnvironmentProblem(
                "loader-path-shadows-cudnn",
                f"LD_LIBRARY_PATH has another cuDNN: {folder}",
                f"the loader searches it before {own}, so {path} may load its sub-libraries",
                f"remove {folder} from LD_LIBRARY_PATH, or put {own} before it",
                blocks=False,
            )
    for file in list_loader_preloads():
        if file.name.startswith(("libcudnn", "libcuda.so", "libnvrtc")) and file.resolve().parent != own:
            yield EnvironmentProblem(
                "loader-path-shadows-cudnn",
                f"LD_PRELOAD has {file}",
                f"the loader uses it before the files in {own}",
                f"remove {file} from LD_PRELOAD",
                blocks=False,
            )


def _check_driver(lib: Library, target: JudgedGpu | None, build: bool) -> Iterator[EnvironmentProblem]:
    driver = lib.driver
    live = target is not None and target.is_live
    if driver.kind == "missing":
        yield EnvironmentProblem(
            "driver-missing",
            "there is no libcuda.so.1",
            driver.note,
            "install the CUDA driver, or reinstall this package with a C compiler, which builds its driver stub",
            blocks=True,
        )
    elif driver.kind == "stub":
        yield EnvironmentProblem(
            "driver-stub",
            DRIVER_STUB_HEADLINE,
            driver.note,
            "install the CUDA driver to run plans",
            blocks=live,
        )
    else:
        yield from _check_real_driver(lib, live, build)


def _check_real_driver(lib: Library, live: bool, build: bool) -> Iterator[EnvironmentProblem]:
    version, needed = lib.driver.version, lib.cuda_version // 1000
    if version is None:
        yield EnvironmentProblem(
            "driver-unusable",
            f"{lib.driver.path} is not a CUDA driver",
            lib.driver.note,
            "remove its folder from LD_LIBRARY_PATH, or install the CUDA driver",
            blocks=True,
        )
        return
    if version // 1000 < needed:
        yield EnvironmentProblem(
            "driver-too-old",
            f"the driver is for CUDA {format_cuda_version_number(version)}, "
            f"this cuDNN is built for CUDA {format_cuda_version_number(lib.cuda_version)}",
            f"the driver's CUDA major must be at least {needed}",
            f"install a driver for CUDA {needed}, or the cuDNN of CUDA {version // 1000} (cu{version // 1000} wheels)",
            blocks=live or build,
        )
    if lib.driver.devices == 0:
        status = initialize_driver() or _CUDA_ERROR_NO_DEVICE
        words, repair = _CUINIT_ERRORS.get(status, (f"cuInit returns {status}", "see nvidia-smi and the kernel log"))
        yield EnvironmentProblem(
            "driver-without-gpu",
            f"the CUDA driver is installed but does not work: {words}",
            f"cuInit of {lib.driver.path} returns {status}",
            repair,
            blocks=live,
        )


def _check_nvrtc(lib: Library, target: JudgedGpu | None, build: bool) -> Iterator[EnvironmentProblem]:
    major, minor = lib.cuda_version // 1000, lib.cuda_version % 1000 // 10
    if includes_nvrtc(lib):
        where = f"inside cuDNN {lib.version}"
        yield from _check_nvrtc_supports_architecture(
            major, target, Nvrtc(where, (major, minor), _find_nvrtc_architectures((major, minor)))
        )
        return
    package = "nvidia-cuda-nvrtc" + (f"-cu{major}" if major < 13 else f"=={major}.*")
    blocks = build or not _is_full_wheel(lib.path)
    lost = "cuDNN supports no graph without it" if not _is_full_wheel(lib.path) else "no plan can be built"
    if lib.nvrtc.path is None:
        yield EnvironmentProblem(
            "nvrtc-missing",
            f"NVRTC for CUDA {major} is not found: {lost}",
            lib.nvrtc.found,
            f"pip install {package}, or set CUDNN_BACKEND_NVRTC to the path of libnvrtc.so.{major}",
            blocks,
        )
        return
    try:
        nvrtc = query_nvrtc(lib.nvrtc.path)
    except OSError as error:
        reraise_interruption(error)
        found = ", ".join(find_loaded_libraries(Path(lib.nvrtc.path).name)) or lib.nvrtc.path
        headline = f"{found} is not an NVRTC library: {lost}"
        repair = f"remove its folder from LD_LIBRARY_PATH, and pip install --force-reinstall {package}"
        yield EnvironmentProblem("nvrtc-unusable", headline, str(error), repair, blocks)
        return
    if nvrtc.version[0] != major:
        yield EnvironmentProblem(
            "nvrtc-of-another-cuda",
            f"{nvrtc.path} belongs to CUDA {nvrtc.version[0]}.{nvrtc.version[1]}, NVRTC for CUDA {major} is needed",
            lib.nvrtc.found,
            f"remove its folder from LD_LIBRARY_PATH, and pip install {package}",
            blocks=build,
        )
    if nvrtc.refusal:
        others = [path.name for path in Path(nvrtc.path).parent.glob("libnvrtc-builtins.so.*")]
        neighbours = f"; next to it are {', '.join(others)}" if others else ""
        yield EnvironmentProblem(
            "nvrtc-builtins-missing",
            f"NVRTC {nvrtc.version[0]}.{nvrtc.version[1]} cannot load {nvrtc.builtins}, so no plan can be built",
            f"{nvrtc.path} reports: {nvrtc.refusal}{neighbours}",
            f"reinstall NVRTC as a whole (pip install --force-reinstall {package}), and put its folder on "
            "LD_LIBRARY_PATH if the file is there",
            blocks=build,
        )
    yield from _check_nvrtc_supports_architecture(major, target, nvrtc)


def _find_nvrtc_architectures(cuda: tuple[int, int]) -> tuple[int, ...]:
    """Return the architectures that a CUDA version's NVRTC supports, or those of the last known version before it."""
    known = [version for version in NVRTC_ARCHITECTURES if version[0] == cuda[0] and version <= cuda]
    return NVRTC_ARCHITECTURES[max(known)] if known else ()


def _check_nvrtc_supports_architecture(
    major: int, target: JudgedGpu | None, nvrtc: Nvrtc
) -> Iterator[EnvironmentProblem]:
    """Yield a problem if NVRTC does not support the target's architecture; precompiled engines may still run."""
    if target is not None and nvrtc.architectures and target.sm not in nvrtc.architectures:
        yield _make_architecture_problem(major, target.sm, nvrtc)


def _make_architecture_problem(major: int, sm: int, nvrtc: Nvrtc) -> EnvironmentProblem:
    needed = find_oldest_nvrtc(sm)
    dropped = needed is not None and needed < nvrtc.version
    if needed is None:
        wanted = (
            f"use a newer CUDA with its cuDNN and NVRTC: none up to {'.'.join(map(str, max(NVRTC_ARCHITECTURES)))} does"
        )
    elif needed[0] != major:
        built = f", built with CUDA {needed[0]}.{needed[1]} or later" if needed[0] > major and needed[1] else ""
        wanted = f"use the cuDNN of CUDA {needed[0]} (cu{needed[0]} wheels){built}, and its NVRTC where it needs one"
    elif nvrtc.path.startswith("inside"):
        wanted = f"use a cuDNN that was built with CUDA {needed[0]}.{needed[1]} or later"
    else:
        wanted = f"install that of CUDA {needed[0]}.{needed[1]}"
    return EnvironmentProblem(
        "nvrtc-dropped-architecture" if dropped else "nvrtc-too-old",
        f"NVRTC {nvrtc.version[0]}.{nvrtc.version[1]} does not compile for sm_{sm}",
        f"the one {nvrtc.path} compiles for {', '.join(f'sm_{sm}' for sm in nvrtc.architectures)}",
        wanted,
        blocks=False,
    )


def _check_cublaslt(lib: Library) -> Iterator[EnvironmentProblem]:
    """Yield problems of cuBLASLt, without which the matmul that tests a full wheel's cuDNN would crash."""
    if lib.cublaslt.path is None and _is_full_wheel(lib.path):
        major, folder = lib.cuda_version // 1000, find_version_folder(Path(lib.path))
        yield EnvironmentProblem(
            "cublaslt-missing",
            f"libcublasLt.so.{major} cannot be loaded: cuDNN then crashes the process for every graph that needs "
            "it, including every matmul",
            lib.cublaslt.found,
            f"pip install nvidia-cublas{f'-cu{major}' if major < 13 else ''}"
            if folder is None
            else format_install_command(folder),
            blocks=True,
        )


def _is_full_wheel(path: str) -> bool:
    """Return whether a libcudnn belongs to a full wheel, by the files next to it."""
    return not _list_sublibrary_names(Path(path).parent).isdisjoint(_FULL_WHEEL_SUBLIBRARIES)


def find_oldest_nvrtc(sm: int) -> tuple[int, int] | None:
    """Return the oldest known CUDA version with an NVRTC that compiles for sm_`sm`, if any."""
    return min((version for version, architectures in NVRTC_ARCHITECTURES.items() if sm in architectures), default=None)


def _make_reinstall_command(path: str) -> str:
    if "/nvidia/cudnn_jit/" in path:
        return "reinstall cuDNN: pip install --force-reinstall nvidia-cudnn-jit-cu12 (or -cu13)"
    if "/nvidia/cudnn/" in path:
        return (
            "reinstall cuDNN: pip install --force-reinstall nvidia-cudnn-cu12 or -cu13, not both: they share a folder"
        )
    return "reinstall cuDNN, all of its packages in one version"
