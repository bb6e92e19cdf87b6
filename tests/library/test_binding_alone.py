"""The binding, copied to an empty folder with NumPy as its only dependency, works with cuDNN."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from tests.pure.test_layering import LAYERS, PACKAGE
from tests.support.child import run_python

# Only the standard library, NumPy and the copy can be imported.
ALONE = """
import json, sys

class Refuse:
    @staticmethod
    def find_spec(name, path=None, target=None):
        top = name.partition(".")[0]
        if top not in sys.stdlib_module_names and top not in ("numpy", "cudnn_backend_py"):
            raise ModuleNotFoundError(f"{name} is not for the binding", name=name)

usual = ("BuiltinImporter", "FrozenImporter", "PathFinder")  # an editable installation adds another
sys.meta_path[:] = [Refuse, *(one for one in sys.meta_path if getattr(one, "__name__", "") in usual)]
sys.path.insert(0, FOLDER)
"""

LEVEL_0 = """
from cudnn_backend_py import Attr, DataType, Descriptor, DescriptorType
with Descriptor(DescriptorType.TENSOR) as tensor:
    tensor.set(Attr.TENSOR_DATA_TYPE, DataType.HALF)
    tensor.set(Attr.TENSOR_DIMENSIONS, (1, 8, 8))
    tensor.set(Attr.TENSOR_STRIDES, (64, 8, 1))
    tensor.set(Attr.TENSOR_UNIQUE_ID, 1)
    tensor.set(Attr.TENSOR_BYTE_ALIGNMENT, 16)
    tensor.finalize()
    found = [tensor.get(Attr.TENSOR_DIMENSIONS)]
"""

JUDGE_AND_BUILD = """
from cudnn_backend_py import DataType, GraphBuilder, OperationGraph, attention, build, open_target
target = open_target(TARGET)
if KIND == "matmul":
    g = GraphBuilder("mm", io_type=DataType.HALF)
    g.matmul(g.tensor("a", (1, 64, 64)), g.tensor("b", (1, 64, 64)), name="c", virtual=False)
    graph = g.graph()
else:
    graph = attention.sdpa_forward(batch=1, heads=2, seq_q=128, head_dim=64, causal=True, stats=True)
question = OperationGraph(graph, target)
found = [len(question.heuristics(mode).configs) for mode in ("A", "FALLBACK")]
found.append(build(graph, target, cache=False).target.sm)
"""

HAZARD = """
from cudnn_backend_py import GraphError, attention
try:
    attention.sdpa_forward(batch=1, heads=1, seq_q=8, head_dim=64, layout={"q": (1024, 1024, 128, 2)})
except GraphError as error:
    found = [error.code]
"""

SAY = """
others = {name.partition(".")[0] for name in sys.modules} - set(sys.stdlib_module_names)
print(json.dumps([found, sorted(name for name in others if name in ("numpy", "cudnn_backend_py", "rich", "click"))]))
"""


@pytest.fixture(scope="module")
def binding_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the modules of the binding, including its compiled C, and no others."""
    home = tmp_path_factory.mktemp("alone")
    (home / PACKAGE.name).mkdir()
    for room in (*LAYERS[0], "__init__.py"):
        source, copy = PACKAGE / room, home / PACKAGE.name / room
        if room.endswith("/"):
            shutil.copytree(source, copy, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, copy)
    return home


def run_program_with_copied_binding(binding_folder: Path, program: str, **names: str) -> tuple[list[object], list[str]]:
    head = "".join(f"{name} = {value!r}\n" for name, value in {"FOLDER": str(binding_folder), **names}.items())
    done = run_python(["-I", "-c", head + ALONE + program + SAY], cwd=binding_folder, check=True)
    found, modules = json.loads(done.stdout.splitlines()[-1])
    return found, modules


def test_descriptors_can_be_set_and_read(binding_folder: Path) -> None:
    assert run_program_with_copied_binding(binding_folder, LEVEL_0)[0] == [[1, 8, 8]]


@pytest.mark.parametrize(("target", "sm"), [("h100", 90), ("a100", 80)])
@pytest.mark.parametrize("kind", ["matmul", "attention"])
def test_graphs_are_judged_and_built_for_described_gpus(binding_folder: Path, kind: str, target: str, sm: int) -> None:
    (preferred, fallback, built), modules = run_program_with_copied_binding(
        binding_folder, JUDGE_AND_BUILD, KIND=kind, TARGET=target
    )
    assert isinstance(preferred, int)
    assert isinstance(fallback, int)
    assert preferred > 0
    assert preferred + fallback > 1
    assert built == sm
    assert set(modules) <= {"cudnn_backend_py", "numpy"}


def test_attention_with_a_known_issue_is_refused(binding_folder: Path) -> None:
    assert run_program_with_copied_binding(binding_folder, HAZARD)[0] == ["attention-hazard"]
