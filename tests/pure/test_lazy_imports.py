"""``import cudnn_backend_py`` loads no library, no NumPy and no other module of the package."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

import cudnn_backend_py

LOOK = """
import json, sys
{statement}
maps = [line.split(maxsplit=5)[-1].strip() for line in open("/proc/self/maps")]
names = [path.rsplit("/", 1)[-1] for path in maps if path.startswith("/")]
stems = ("libcudnn", "libcuda", "libnvrtc", "_driver_stub", "libcublas")
heavy = {{"numpy", "rich", "click", "ctypes"}}
print(json.dumps({{
    "libraries": sorted(name for name in set(names) if name.startswith(stems)),
    "ours": sorted(name for name in sys.modules if name.split(".")[0] == "cudnn_backend_py"),
    "heavy": sorted({{name.split(".")[0] for name in sys.modules}} & heavy),
}}))
"""

ALL_NAMES = "import cudnn_backend_py; [getattr(cudnn_backend_py, name) for name in cudnn_backend_py.__all__]"
LOAD_THE_STUB = """
import ctypes
from cudnn_backend_py.native.driver import find_driver_stub
ctypes.CDLL(find_driver_stub())
"""


def run_and_list_loaded_modules(statement: str) -> dict[str, Any]:
    """Run a statement in a fresh interpreter, and return its loaded libraries and modules."""
    code = LOOK.format(statement=statement)
    run = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, check=True)
    found: dict[str, Any] = json.loads(run.stdout)
    return found


def test_importing_the_package_loads_no_library_and_no_submodule() -> None:
    assert run_and_list_loaded_modules("import cudnn_backend_py") == {
        "libraries": [],
        "ours": ["cudnn_backend_py"],
        "heavy": [],
    }


def test_dir_loads_no_module() -> None:
    assert run_and_list_loaded_modules("import cudnn_backend_py; dir(cudnn_backend_py)")["ours"] == ["cudnn_backend_py"]


def test_every_public_name_resolves_without_a_library() -> None:
    assert run_and_list_loaded_modules(ALL_NAMES)["libraries"] == []


@pytest.mark.parametrize("package", ["native", "graph", "diagnose", "tuning", "testing", "torch_ops"])
def test_every_name_of_a_subpackage_resolves_when_imported_alone(package: str) -> None:
    """A fresh interpreter is needed: a submodule that is already imported would hide a missing lazy name."""
    run_and_list_loaded_modules(
        f"import cudnn_backend_py.{package} as one; [getattr(one, name) for name in one.__all__]"
    )


def test_building_a_graph_loads_neither_library_nor_numpy() -> None:
    found = run_and_list_loaded_modules(
        "from cudnn_backend_py import attention; attention.sdpa_forward(batch=1, heads=1, seq_q=8, head_dim=8)"
    )
    assert (found["libraries"], found["heavy"]) == ([], [])
    assert not [name for name in found["ours"] if name.startswith("cudnn_backend_py.diagnose")]


def test_list_of_loaded_libraries_contains_the_cuda_driver_stub() -> None:
    from cudnn_backend_py.native.driver import find_driver_stub

    stub = find_driver_stub()
    assert stub is not None, "the driver stub was not built: tests need a C compiler"
    assert run_and_list_loaded_modules(LOAD_THE_STUB)["libraries"] == [stub.name]


def test_dir_of_the_package_lists_exactly_dunder_all() -> None:
    assert dir(cudnn_backend_py) == sorted(cudnn_backend_py.__all__)
    assert len(set(cudnn_backend_py.__all__)) == len(cudnn_backend_py.__all__)


def test_the_error_for_an_enum_names_the_module_that_has_it() -> None:
    with pytest.raises(ImportError, match=r"import ConvolutionMode from cudnn_backend_py\.generated\.enums"):
        from cudnn_backend_py import ConvolutionMode  # type: ignore[attr-defined]  # noqa: F401
    assert not hasattr(cudnn_backend_py, "Convolution")


def test_imports_for_type_checkers_equal_the_lazy_import_table() -> None:
    """Type checkers read the imports under TYPE_CHECKING; at run time the lazy table is used."""
    block = next(
        node
        for node in ast.parse(Path(cudnn_backend_py.__file__).read_text(encoding="utf-8")).body
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
    )
    seen: dict[str, str] = {}
    private: dict[str, str] = {}  # an import is public only by 'as'
    for node in block.body:
        if isinstance(node, ast.ImportFrom):
            assert node.level == 1
            start = f"{node.module}." if node.module else ""
            for alias in node.names:
                assert alias.asname in (None, alias.name)
                (seen if alias.asname else private)[alias.name] = start + alias.name
        else:
            assert isinstance(node, ast.Assign), ast.unparse(node)
            (name,), value = node.targets, node.value
            assert isinstance(name, ast.Name)
            assert isinstance(value, ast.Name)
            seen[name.id] = private[value.id]
    assert seen == {name: ".".join(filter(None, place)) for name, place in cudnn_backend_py._PUBLIC.items()}


def test_unknown_name_raises_attribute_error() -> None:
    assert not hasattr(cudnn_backend_py, "no_such_name")


def test_reference_page_lists_every_public_name_with_its_module() -> None:
    page = (Path(cudnn_backend_py.__file__).parents[1] / "docs/reference/index.md").read_text(encoding="utf-8")
    at_the_top: set[str] = set()
    rows = [row.split("|") for row in page.splitlines() if row.startswith("| [") and row.count("|") == 4]
    for _, _, top, modules, _ in rows:
        at_the_top |= set(re.findall(r"`(\w+)`", top))
        for module, names in re.findall(r"`([\w.]+)`: ((?:`\w+`(?:, )?)+)", modules):
            known = import_module(f"cudnn_backend_py.{module}")
            assert all(hasattr(known, name) for name in re.findall(r"`(\w+)`", names)), module
    assert at_the_top == set(cudnn_backend_py.__all__) - {"__version__"}
