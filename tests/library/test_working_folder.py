"""The working folder is data: no file in it is imported or loaded, regardless of its name."""

from __future__ import annotations

import os
import subprocess
import sys
import venv
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from shutil import copytree, ignore_patterns

import pytest

import cudnn_backend_py
from cudnn_backend_py import save_graph
from cudnn_backend_py.native.find import find_cudnn_places, find_nvrtc_places, list_library_folders
from cudnn_backend_py.versions.store import get_default_root
from examples import flash_forward, forum_two_matmul
from tests.support.child import OLDER_VERSION, ROOT, FinishedChild, run_code

MODULES = (
    *("numpy", "click", "rich", "platformdirs", "jinja2", "markupsafe", "pytest", "torch", "cuda", "cudnn", "pip"),
    *("ruff", "setuptools", "sitecustomize", "usercustomize", "cudnn_backend_py", "nvidia", "tests", "examples"),
)
LIBRARIES = (
    *("nvidia/cudnn/lib/libcudnn.so.9", "nvidia/cudnn_jit/lib/libcudnn.so.9", "nvidia/cublas/lib/libcublasLt.so.12"),
    *("nvidia/cuda_nvrtc/lib/libnvrtc.so.12", "nvidia/cu13/lib/libnvrtc.so.13"),
    *("libcudnn.so.9", "libcudnn_graph.so.9", "libcuda.so.1", "libnvrtc.so.12", "libcublasLt.so.12"),
)
TRAP = """
#include <stdio.h>
__attribute__((constructor)) static void mark(void) {
    FILE *file = fopen(MARK, "a");
    if (file) { fputs("a library\\n", file); fclose(file); }
}
"""


@pytest.fixture(scope="module")
def trap_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder of files named like modules and libraries; each file writes ``../mark`` when it is loaded."""
    folder = tmp_path_factory.mktemp("trap") / "folder"
    folder.mkdir()
    mark = folder.parent / "mark"
    text = f'with open({str(mark)!r}, "a") as mark: mark.write(__name__ + " " + __file__ + "\\n")\n'
    for name in sys.stdlib_module_names:
        (folder / f"{name}.py").write_text(text)
    for name in MODULES:
        (folder / name).mkdir()
        for file in ("__init__", "__main__", "cli", "child", "console"):
            (folder / name / f"{file}.py").write_text(text)
    (folder.parent / "trap.c").write_text(TRAP)
    made = folder.parent / "trap.so"
    source = str(folder.parent / "trap.c")
    subprocess.run(["cc", "-shared", "-fPIC", f'-DMARK="{mark}"', "-o", str(made), source], check=True)
    for name in LIBRARIES:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(made.read_bytes())
    return folder


@pytest.fixture(scope="module")
def input_files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("inputs")
    save_graph(flash_forward.graph(), folder / "good.json")
    save_graph(forum_two_matmul.graph(), folder / "bad.json")
    (folder / "check.toml").write_text(
        'schema = "cudnn-backend-py/check"\nversion = 1\ntargets = ["sm90"]\n'
        f'versions = ["{OLDER_VERSION}"]\npin = ["cause"]\n[graphs]\ngood = "good.json"\n'
    )
    (folder / "empty.log").write_text("")
    return {
        "GOOD": str(folder / "good.json"),
        "BAD": str(folder / "bad.json"),
        "CHECK": str(folder / "check.toml"),
        "LOG": str(folder / "empty.log"),
        "OUT": str(folder),
        "TABLE": str(ROOT / "tests/library/diagnose/data/attention-support-9.19.0.json"),
        "OLDER": OLDER_VERSION,
    }


COMMANDS = {
    "--version": 0,
    "doctor": 0,
    "explain GOOD --target sm90": 0,
    "explain GOOD --target sm90 --build": 0,
    "explain GOOD --target sm90 --here": 0,
    "explain BAD --target sm90": 1,
    "explain BAD --target sm90 --cudnn OLDER": 0,
    "--cudnn OLDER explain BAD --target sm90 --format json": 0,
    "--cudnn OLDER doctor": 0,
    "explain GOOD --target sm90 --format html --output OUT/page.html": 0,
    "explain BAD --target sm90 --output OUT/archive.zip": 0,
    "explain BAD --target sm90 --cudnn OLDER --output OUT/older.zip": 0,
    "log LOG": 2,
    "graph lint GOOD": 0,
    "explain --whatif BAD --target sm90 --no-build": 0,
    "explain --whatif BAD --target sm90 --no-build --cudnn OLDER": 0,
    "matrix GOOD --target sm90": 0,
    "matrix --since GOOD --target sm90": 0,
    "check CHECK --update": 0,
    "attention-table --target sm90 --row nothing": 2,
    "attention-page TABLE": 0,
    "plan build GOOD --target sm90 --output OUT/plan.json": 0,
    "plan build GOOD --target sm90 --output OUT/older.json --cudnn OLDER": 0,
    "plan tune GOOD": 2,
    "record OUT/record --pytest-arguments --version": 0,
    "target list": 0,
    "target show sm90": 0,
    "target read": 2,
    "cache list": 0,
    "cache clear": 0,
    "cudnn list": 0,
    "cudnn install 9.99.99": 2,
    "cudnn remove 9.99.99": 2,
}


def test_commands_use_no_file_of_the_working_folder(
    trap_folder: Path, input_files: dict[str, str], tmp_path: Path
) -> None:
    environment = {
        **os.environ,
        "XDG_CACHE_HOME": str(tmp_path),
        "CUDNN_BACKEND_CACHE": str(get_default_root()),
        "PIP_INDEX_URL": "file:///nowhere",
        "LD_LIBRARY_PATH": "",
    }
    script = str(Path(sys.executable).with_name("cudnn-backend"))

    def run_command(command: str) -> tuple[str, FinishedChild]:
        arguments = command
        for name, value in input_files.items():
            arguments = arguments.replace(name, value)
        done = subprocess.run(
            [script, *arguments.split()], cwd=trap_folder, env=environment, capture_output=True, text=True, check=False
        )
        return command, FinishedChild(done.returncode, done.stdout, done.stderr)

    with ThreadPoolExecutor(2) as pool:
        finished = dict(pool.map(run_command, COMMANDS))
    strange = {command: done for command, done in finished.items() if done.code != COMMANDS[command]}
    assert strange == {}
    assert not [done for done in finished.values() if "Traceback" in done.stderr]
    assert not (trap_folder.parent / "mark").exists(), (trap_folder.parent / "mark").read_text()


def test_libraries_are_not_searched_in_the_working_folder(trap_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(trap_folder)
    for entry in ("", ".", "../folder"):
        monkeypatch.syspath_prepend(entry)
        sys.path[0] = entry
    for name in ("LD_LIBRARY_PATH", "CUDNN_HOME", "CUDA_PATH"):
        monkeypatch.setenv(name, ":.:nvidia/cudnn/lib:")
    found = [
        str(place.path) for search in (find_cudnn_places(), find_nvrtc_places(12)) for place in search if place.path
    ]
    assert found
    assert not [path for path in found if str(trap_folder) in path]
    assert all(folder.is_absolute() for folder in list_library_folders())
    program = "from cudnn_backend_py.native.environment import list_loader_folders; print(*list_loader_folders())"
    done = run_code(program, environment={**os.environ, "LD_LIBRARY_PATH": ":"}, cwd=trap_folder.parent)
    assert (
        done.stdout.split() == [str(trap_folder.parent)] * 2
    )  # the loader looks there all the same, of which 'info' warns


WHERE = "from cudnn_backend_py.native.find import find_cudnn_places; print([str(p.path) for p in find_cudnn_places()])"


def test_running_a_module_does_not_add_its_folder_to_the_library_search(trap_folder: Path, tmp_path: Path) -> None:
    (tmp_path / "nvidia").symlink_to(trap_folder / "nvidia")
    (tmp_path / "program.py").write_text(WHERE)
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    for arguments in (["-m", "program"], ["-c", WHERE]):
        done = subprocess.run(
            [sys.executable, *arguments], cwd=tmp_path, env=environment, capture_output=True, text=True, check=True
        )
        assert str(trap_folder) not in done.stdout
    named = {**environment, "PYTHONPATH": os.pathsep.join([str(ROOT), str(tmp_path)])}  # the user's choice
    assert str(trap_folder) in run_code(WHERE, environment=named, cwd=tmp_path).stdout


# an installed package, in the folder of a checkout

TELLS = "\nimport os\nwith open(os.environ['TOLD'], 'a') as told: print(os.getpid(), __file__, file=told)\n"


@pytest.fixture(scope="module")
def installed_environment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make an environment with a copy of the package that records each process loading it; return its folder."""
    folder = tmp_path_factory.mktemp("installed") / "environment"
    venv.create(folder, symlinks=True)
    [site] = folder.glob("lib/python*/site-packages")
    package = Path(cudnn_backend_py.__path__[0])
    copytree(package, site / "cudnn_backend_py", ignore=ignore_patterns("__pycache__"))
    with (site / "cudnn_backend_py" / "__init__.py").open("a") as stream:
        stream.write(TELLS)
    others = [entry for entry in sys.path if entry.endswith("site-packages")]
    (site / "others.pth").write_text("\n".join(others) + "\n")  # without reading its own .pth files
    script = folder / "bin" / "cudnn-backend"
    script.write_text(
        f"#!{folder}/bin/python\nimport sys\nfrom cudnn_backend_py.cli.commands import main\nsys.exit(main())\n"
    )
    script.chmod(0o755)
    return folder


@pytest.mark.parametrize("options", [[], ["--cudnn", OLDER_VERSION]], ids=["own", "another"])
def test_an_installed_command_loads_the_installed_package_in_a_checkout(
    options: list[str], installed_environment: Path, input_files: dict[str, str], tmp_path: Path
) -> None:
    told = tmp_path / "told"
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | {"TOLD": str(told)}
    command = [
        str(installed_environment / "bin" / "cudnn-backend"),
        "explain",
        input_files["GOOD"],
        "--target",
        "sm90",
        *options,
    ]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    loads = [line.split(maxsplit=1) for line in told.read_text().splitlines()]
    assert len({pid for pid, _ in loads}) == len(loads) == (3 if options else 2)  # the command, and who asks
    assert all(Path(file).is_relative_to(installed_environment) for _, file in loads)
