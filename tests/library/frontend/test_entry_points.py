"""Every entry point of the frontend: ``str(error)`` must have the fix, and known issues must be reported."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import cudnn_backend_py.frontend as cudnn
from cudnn_backend_py.errors import CudnnBackendError
from cudnn_backend_py.frontend import as_cudnn, errors, handles
from cudnn_backend_py.frontend.handles import set_default_target
from cudnn_backend_py.frontend.kernels import KERNELS
from cudnn_backend_py.frontend.kernels import OPERATIONS as KERNEL_OPERATIONS
from cudnn_backend_py.frontend.recorded import OPERATIONS
from cudnn_backend_py.known_issues import FAULTS, KnownIssue, find
from cudnn_backend_py.system.version import VersionRange
from tests.support.issue_warnings import list_issue_warning_categories

A, FALLBACK = cudnn.heur_mode.A, cudnn.heur_mode.FALLBACK
HALF, FLOAT = cudnn.data_type.HALF, cudnn.data_type.FLOAT
FRONTEND_FOLDER = Path(cudnn.__file__).parent


@pytest.fixture(autouse=True)
def target_h100() -> Iterator[None]:
    set_default_target("h100")
    yield
    set_default_target(None)


def make_matmul_graph(**options: Any) -> cudnn.pygraph:
    """Return a matmul graph that cuDNN supports."""
    g = cudnn.pygraph(io_data_type=HALF, intermediate_data_type=FLOAT, compute_data_type=FLOAT, **options)
    a = g.tensor(name="a", dim=[1, 64, 64], stride=[4096, 64, 1])
    b = g.tensor(name="b", dim=[1, 64, 64], stride=[4096, 64, 1])
    g.matmul(A=a, B=b, name="mm").set_name("c").set_output(True)
    return g


def build_matmul(**options: Any) -> cudnn.pygraph:
    g = make_matmul_graph(**options)
    g.build([A, FALLBACK])
    return g


def make_matmul_with_plans() -> cudnn.pygraph:
    g = make_matmul_graph()
    g.validate()
    g.build_operation_graph()
    g.create_execution_plans([A, FALLBACK])
    return g


def make_graph_without_dims() -> cudnn.pygraph:
    g = cudnn.pygraph(io_data_type=HALF, compute_data_type=FLOAT)
    g.relu(g.tensor(name="x", dim=[], stride=[])).set_output(True)
    return g


def make_unsupported_attention() -> cudnn.pygraph:
    """Return attention with a head dim that no engine supports."""
    g = cudnn.pygraph(io_data_type=HALF, intermediate_data_type=FLOAT, compute_data_type=FLOAT)
    q, k, v = (g.tensor(name=name, dim=[1, 2, 128, 63], stride=[16128, 8064, 63, 1]) for name in "qkv")
    o, _ = g.sdpa(q=q, k=k, v=v, attn_scale=1.0, generate_stats=False)
    o.set_output(True).set_dim([1, 2, 128, 63]).set_stride([16128, 8064, 63, 1])
    g.validate()
    g.build_operation_graph()
    return g


def make_matmul_with_all_plans_deselected() -> cudnn.pygraph:
    """Return a graph and deselect all its plans."""
    g = make_matmul_with_plans()
    g.deselect_engines([f"eng{number}" for number in range(200)])
    return g


def corrupt_data(data: bytes) -> bytes:
    return data[:-2] + b"!!"


#: A rule names the value needed in its headline, as cudnn-frontend does, and the value found.
EXPECTED_VALUE_PATTERN = re.compile(r"should be .*, got ")
VARIANT_PACK = {1: 4096, 2: 4096, 3: 4096}
#: A call that fails, by the method of a graph.
FAILING_GRAPH_CALLS: dict[str, Callable[[], Any]] = {
    "autotune": lambda: make_matmul_graph().autotune(VARIANT_PACK, 0),
    "build": lambda: make_unsupported_attention().build([A]),
    "build_operation_graph": lambda: cudnn.pygraph().build_operation_graph(),
    "build_plan_at_index": lambda: make_matmul_with_plans().build_plan_at_index(10**6),
    "build_plans": lambda: make_matmul_with_all_plans_deselected().build_plans(),
    "check_support": lambda: make_matmul_with_all_plans_deselected().check_support(),
    "create_execution_plan": lambda: make_matmul_graph().create_execution_plan(0),
    "create_execution_plans": lambda: make_unsupported_attention().create_execution_plans([A]),
    "deserialize": lambda: make_matmul_graph().deserialize(corrupt_data(build_matmul().serialize(as_bytes=True))),
    "execute": lambda: build_matmul().execute(VARIANT_PACK, 0),
    "execute_plan_at_index": lambda: build_matmul().execute_plan_at_index(VARIANT_PACK, 0, 0),
    "find_tensor": lambda: _make_graph_with_duplicate_tensor_names().find_tensor("x"),
    "get_autotune_workspace_size": lambda: make_matmul_graph().get_autotune_workspace_size(),
    "get_behavior_notes": lambda: make_matmul_graph().get_behavior_notes(),
    "get_behavior_notes_for_plan_at_index": lambda: make_matmul_with_plans().get_behavior_notes_for_plan_at_index(
        10**6
    ),
    "get_engine_and_knobs_at_index": lambda: make_matmul_with_plans().get_engine_and_knobs_at_index(10**6),
    "get_engine_count": lambda: make_matmul_graph().get_engine_count(),
    "get_knobs_for_engine": lambda: make_matmul_with_plans().get_knobs_for_engine(10**6),
    "get_plan_name_at_index": lambda: make_matmul_with_plans().get_plan_name_at_index(10**6),
    "get_workspace_size": lambda: make_matmul_graph().get_workspace_size(),
    "get_workspace_size_plan_at_index": lambda: make_matmul_with_plans().get_workspace_size_plan_at_index(10**6),
    "graph": lambda: make_graph_without_dims().graph(),
    "operation_graph": lambda: make_matmul_graph().operation_graph,
    "populate_cuda_graph": lambda: build_matmul().populate_cuda_graph(None, VARIANT_PACK, 0, 0),
    "query_tensor_attributes_of_uid": lambda: make_matmul_graph().query_tensor_attributes_of_uid(10**6),
    "select_plan": lambda: make_matmul_graph().select_plan(0),
    "serialize": lambda: make_matmul_graph().serialize(),
    "tensor_like": lambda: make_matmul_graph().tensor_like(object()),
    "update_cuda_graph": lambda: build_matmul().update_cuda_graph(None, VARIANT_PACK, 0, 0),
    "validate": lambda: make_graph_without_dims().validate(),
}
#: Methods that only read a program's settings, or accept any argument.
GRAPH_METHODS_THAT_NEVER_FAIL = frozenset(
    (
        *("backend_plan_entries", "cache", "deselect_behavior_notes", "deselect_engines", "deselect_numeric_notes"),
        *(
            "deselect_shared_mem_greater_than",
            "deselect_workspace_greater_than",
            "infer_dims_and_strides",
            "get_cuda_graph_retention",
        ),
        *("get_execution_plan_count", "get_inputs", "get_node", "get_outputs", "inspect", "key", "nodes", "plans"),
        *("select_behavior_notes", "select_numeric_notes", "selected_engine", "tensor", "tensor_scalar", "tensors"),
        "to_json",
    )
)
OLD_OPERATION_NAMES = frozenset(
    ("scaled_dot_product_flash_attention", "scaled_dot_product_flash_attention_backward")
)  # operations
#: A call that fails, by the name in the module.
FAILING_MODULE_CALLS: dict[str, Callable[[], Any]] = {
    "Graph": lambda: _build_graph_with_unknown_output(),
    "create_device_properties": lambda: cudnn.create_device_properties('{"deviceVer": 900}'),
    "create_handle": lambda: _call_without_default_target(cudnn.create_handle),
    "install": lambda: cudnn.install("no-such-gpu"),
    "jit": lambda: cudnn.jit(A)(lambda: (make_unsupported_attention(), []))(),
    "kernel_cache": lambda: handles.create_kernel_cache().serialize(),
    "part": lambda: as_cudnn._SubmoduleFinder().find_spec("cudnn.no_such_part", None),
    "pygraph": lambda: _call_without_default_target(cudnn.pygraph),
    "tensor": lambda: cudnn.tensor().validate(),
    "tensor value": lambda: cudnn.tensor().set_alignment_value(0),
}


def _make_graph_with_duplicate_tensor_names() -> cudnn.pygraph:
    g = make_matmul_graph()
    for _ in range(2):
        g.tensor(name="x", dim=[1, 1, 1], stride=[1, 1, 1])
    return g


def _build_graph_with_unknown_output() -> None:
    with cudnn.Graph(io_data_type=HALF, compute_data_type=FLOAT, inputs=["nothing"], outputs=["none"]) as g:
        g.relu(g.tensor(name="x", dim=[1, 8, 8], stride=[64, 8, 1]), name="r").set_output(True)


def _call_without_default_target(call: Callable[[], Any]) -> Any:
    set_default_target(None)
    return call()


#: Functions that convert to one of ours at the entry point, or pass the fix on.
ERRORS_WITH_FIX_ELSEWHERE = frozenset(
    ("GraphError", "say.refuse_unset_attribute", "say.refuse_unsupported", "convert_errors", "convert_error")
)


def catch_exception(call: Callable[[], Any]) -> Exception:
    with pytest.raises(Exception) as caught:  # noqa: PT011 - which one is what is looked at
        call()
    return caught.value


def check_error_text(error: Exception) -> None:
    """Check that the text of the error has the headline, cuDNN's last reason and the fix."""
    assert isinstance(error, CudnnBackendError), repr(error)
    text = str(error)
    assert error.headline in text
    assert error.sections.get("fix") or EXPECTED_VALUE_PATTERN.search(text), (
        f"the error must have a fix: {error.render()}"
    )
    assert error.sections.get("fix", "") in text
    if words := error.sections.get("cudnn", "").strip():
        assert words.splitlines()[-1].strip() in text


@pytest.mark.parametrize("name", FAILING_GRAPH_CALLS)
def test_every_graph_method_raises_an_error_with_its_fix(name: str) -> None:
    check_error_text(catch_exception(FAILING_GRAPH_CALLS[name]))


@pytest.mark.parametrize("name", FAILING_MODULE_CALLS)
def test_every_module_function_raises_an_error_with_its_fix(name: str) -> None:
    check_error_text(catch_exception(FAILING_MODULE_CALLS[name]))


def test_every_graph_method_has_a_failing_call_or_never_fails() -> None:
    public = {name for name in dir(cudnn.pygraph) if not name.startswith("_")}
    assert public - set(OPERATIONS) - OLD_OPERATION_NAMES == {*FAILING_GRAPH_CALLS, *GRAPH_METHODS_THAT_NEVER_FAIL}


@pytest.mark.parametrize("name", sorted(OPERATIONS))
def test_errors_of_operations_say_which_argument_is_needed(name: str) -> None:
    """Every operation of cudnn-frontend 1.32 is called with an arbitrary object for each required argument."""
    g = make_matmul_graph()
    parameters = [
        item
        for item in inspect.signature(getattr(g, name)).parameters.values()
        if item.kind in (item.POSITIONAL_OR_KEYWORD, item.KEYWORD_ONLY) and item.name not in ("name", "out_dims")
    ]
    needed = {item.name: object() for item in parameters if item.default is item.empty}
    error = catch_exception(lambda: getattr(g, name)(**(needed or {parameters[0].name: object()})))
    if isinstance(error, CudnnBackendError):
        check_error_text(error)
    else:
        assert isinstance(error, (TypeError, ValueError))
        assert "needed" in str(error) or "needs" in str(error), repr(error)


@pytest.mark.parametrize("name", sorted(KERNELS))
def test_kernels_of_cudnn_frontend_are_refused_by_name(name: str) -> None:
    error = catch_exception(lambda: getattr(as_cudnn._make_module(), name))
    assert f"cudnn.{name} is a kernel of cudnn-frontend's own" in str(error)


@pytest.mark.parametrize("name", sorted(KERNEL_OPERATIONS))
def test_kernel_operations_of_cudnn_frontend_are_refused_by_name(name: str) -> None:
    error = catch_exception(lambda: getattr(make_matmul_graph(), name)())
    assert f"pygraph.{name}" in str(error)
    check_error_text(error)


def test_every_error_of_the_frontend_shows_its_fix() -> None:
    """Every exception that the frontend creates with a ``fix`` argument shows the fix in its text."""
    raised: dict[str, str] = {}
    for path in FRONTEND_FOLDER.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and any(item.arg == "fix" for item in node.keywords):
                raised[ast.unparse(node.func)] = f"{path.name}:{node.lineno}"
    assert len(raised) > 5
    assert {name: place for name, place in raised.items() if not _has_fix_in_text(name)} == {}


def _has_fix_in_text(name: str) -> bool:
    """Return whether the exception of a class, or of a function that creates it, shows its fix."""
    if name in ERRORS_WITH_FIX_ELSEWHERE:
        return True
    kind = getattr(errors, name, None) or getattr(as_cudnn, name, None)
    if inspect.isfunction(kind):
        return issubclass(
            getattr(errors, str(inspect.signature(kind).return_annotation), Exception), errors._DetailedError
        )
    return isinstance(kind, type) and issubclass(kind, errors._DetailedError)


# known issues

MADE_UP_ISSUE = KnownIssue(
    "made-up",
    what="64 rows",
    effect="nothing",
    fix="use another number",
    source="examples/none.py",
    evidence="not measured",
    versions=VersionRange((9, 0, 0)),
    graph=lambda graph: any(tensor.name == "c" for tensor in graph.tensors),
)


@pytest.fixture
def made_up_issue(monkeypatch: pytest.MonkeyPatch) -> KnownIssue:
    """Add a made-up known issue to the table."""
    monkeypatch.setattr(find, "FAULTS", (*FAULTS, MADE_UP_ISSUE))
    monkeypatch.setattr(find, "_warned", set())
    return MADE_UP_ISSUE


def _build_with_jit() -> Any:
    return cudnn.jit(A)(lambda: (make_matmul_graph(), []))()


def _build_with_graph_function() -> None:
    with cudnn.graph(None) as (g, _):
        a = g.tensor(name="a", dim=[1, 64, 64], stride=[4096, 64, 1])
        g.matmul(A=a, B=a).set_name("c").set_output(True)
    g.build([A, FALLBACK])


def _build_with_graph_class() -> None:
    with cudnn.Graph(io_data_type=HALF, compute_data_type=FLOAT, inputs=["a"], outputs=["c"]) as g:
        a = g.tensor(name="a", dim=[1, 64, 64], stride=[4096, 64, 1])
        g.matmul(A=a, B=a, name="mm").set_name("c").set_output(True)


def _build_from_json() -> None:
    g = cudnn.pygraph()
    g.deserialize(json.dumps(make_matmul_graph().to_json()))
    g.build([A, FALLBACK])


def make_deserialize_call(data: bytes) -> Callable[[], None]:
    def deserialize_data() -> None:
        cudnn.pygraph().deserialize(data)

    return deserialize_data


#: Ways to build a graph; each ends where cuDNN has it.
WAYS_TO_BUILD: dict[str, Callable[[], Any]] = {
    "build": lambda: build_matmul(),
    "step by step": lambda: make_matmul_with_plans(),
    "described properties": lambda: build_matmul(
        device_property=cudnn.create_device_properties(json.dumps(cudnn.create_handle().device._known_properties))
    ),
    "kernel cache": lambda: build_matmul(kernel_cache=cudnn.create_kernel_cache()),
    "override shapes": lambda: build_matmul(is_override_shape_enabled=True),
    "jit": _build_with_jit,
    "with cudnn.graph": _build_with_graph_function,
    "with cudnn.Graph": _build_with_graph_class,
    "JSON": _build_from_json,
}


@pytest.mark.parametrize("construction", WAYS_TO_BUILD)
def test_a_known_issue_is_reported_for_every_construction_of_a_graph(
    construction: str, made_up_issue: KnownIssue
) -> None:
    assert list_issue_warning_categories(WAYS_TO_BUILD[construction], made_up_issue.code) == [
        cudnn.FrontendKnownIssueWarning
    ]


def test_a_known_issue_is_reported_when_a_plan_is_deserialized(monkeypatch: pytest.MonkeyPatch) -> None:
    data = build_matmul().serialize(as_bytes=True)
    assert isinstance(data, bytes)
    monkeypatch.setattr(find, "FAULTS", (*FAULTS, dataclasses.replace(MADE_UP_ISSUE, code="made-up-2")))
    assert list_issue_warning_categories(make_deserialize_call(data), "made-up-2") == [cudnn.FrontendKnownIssueWarning]


def test_no_known_issue_is_reported_without_the_made_up_issue() -> None:
    assert not any(list_issue_warning_categories(call, MADE_UP_ISSUE.code) for call in WAYS_TO_BUILD.values())
