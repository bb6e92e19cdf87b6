"""The exceptions: message format, conversion to plain data, pickling, list of error codes. Loads no library."""

from __future__ import annotations

import ast
import copy
import json
import pickle
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

import cudnn_backend_py
from cudnn_backend_py import errors
from cudnn_backend_py.errors import (
    CudnnBackendError,
    CudnnStatusError,
    EnvironmentNotReady,
    GraphError,
    NotSupported,
    NotSupportedStatus,
    UsageError,
    format_status,
)
from cudnn_backend_py.generated.enums import AttributeName, DescriptorType, Status

PACKAGE = Path(cudnn_backend_py.__path__[0])
GOLDEN_CODES = Path(__file__).parent / "golden" / "codes.txt"

SECTIONS = {
    "more": "cudnn-backend doctor",
    "fix": "give one stride per dim",
    "cause": "[rule] ranks differ",
    "cudnn": "was not asked",
    "where": "tensor 'k'\ndims    (2, 4)\nstrides (4,)",
}
WHOLE = """\
strides-rank-mismatch: tensor 'k' has 2 dims but 1 strides
  where:  tensor 'k'
          dims    (2, 4)
          strides (4,)
  cudnn:  was not asked
  cause:  [rule] ranks differ
  fix:    give one stride per dim
  more:   cudnn-backend doctor"""
HEADLINE, BODY = WHOLE.split("\n", 1)
PLAIN = [CudnnBackendError, EnvironmentNotReady, GraphError, NotSupported, UsageError]


def make_error(kind: type[CudnnBackendError]) -> CudnnBackendError:
    return kind("tensor 'k' has 2 dims but 1 strides", code="strides-rank-mismatch", **SECTIONS)


def make_status_error(
    kind: type[CudnnStatusError], status: Status | int = Status.NOT_SUPPORTED_SHAPE
) -> CudnnStatusError:
    return kind(
        "finalize was refused",
        code="plan-refused",
        status=status,
        function="cudnnBackendFinalize",
        last_error="Warning: first\nWarning: second\n",
        descriptor=DescriptorType.ENGINECFG,
        attribute=AttributeName.ENGINECFG_ENGINE,
        where="engine 3",
    )


def make_an_error_of_every_class() -> Iterator[CudnnBackendError]:
    for kind in PLAIN:
        yield make_error(kind)
        yield kind("no sections", code="bare")
    for status_kind in (CudnnStatusError, NotSupportedStatus):
        yield make_status_error(status_kind)
        yield make_status_error(status_kind, 3999)
        yield status_kind("silent", status=Status.BAD_PARAM, function="cudnnCreate")


def test_every_public_exception_class_is_tested() -> None:
    assert {type(error).__name__ for error in make_an_error_of_every_class()} == set(errors.__all__)


@pytest.mark.parametrize("kind", PLAIN)
def test_message_is_headline_then_sections_in_order(kind: type[CudnnBackendError]) -> None:
    error = make_error(kind)
    assert str(error) == HEADLINE
    assert error.__notes__ == [BODY]
    assert error.render() == WHOLE


def test_message_contains_the_first_reason_of_cudnn() -> None:
    words = "Warning: CUDNN_STATUS_NOT_SUPPORTED; Reason: {}\n"
    error = NotSupportedStatus(
        "finalize was refused",
        status=Status.NOT_SUPPORTED_SHAPE,
        function="cudnnBackendFinalize",
        last_error=words.format("d is odd at: d % 2 != 0") + words.format("ptr->isSupported()"),
    )
    assert error.reason == "d is odd at: d % 2 != 0"
    assert str(error) == "cudnn-status: finalize was refused; cuDNN: d is odd at: d % 2 != 0"
    assert error.render().startswith("cudnn-status: finalize was refused\n  cudnn:")
    assert error.headline == "finalize was refused"
    long = NotSupported("none", code="nothing-selected", cudnn=words.format("x" * 5000))
    assert len(str(long)) < 400
    assert make_status_error(NotSupportedStatus).reason == "", "a text without reasons"


def test_empty_sections_are_omitted() -> None:
    error = GraphError("nothing to add", code="bare", where="", fix=None)
    assert error.sections == {}
    assert not hasattr(error, "__notes__")
    assert error.render() == str(error) == "bare: nothing to add"


@pytest.mark.parametrize("kind", [GraphError, EnvironmentNotReady])
def test_unknown_section_is_refused(kind: type[CudnnBackendError]) -> None:
    with pytest.raises(TypeError, match=r"unknown message sections \['hint'\], known are \['where', 'cudnn'"):
        kind("x", code="bare", hint="turn it off and on")


def test_to_dict_of_an_error_is_complete() -> None:
    assert make_error(GraphError).to_dict() == {
        "type": "GraphError",
        "code": "strides-rank-mismatch",
        "headline": "tensor 'k' has 2 dims but 1 strides",
        **SECTIONS,
    }


def test_status_error_quotes_the_message_of_cudnn() -> None:
    error = make_status_error(NotSupportedStatus)
    assert error.render() == (
        "plan-refused: finalize was refused\n"
        "  where:  engine 3\n"
        "  cudnn:  CUDNN_STATUS_NOT_SUPPORTED_SHAPE (3002), cudnnBackendFinalize\n"
        "          Warning: first\n"
        "          Warning: second"
    )
    assert error.to_dict() == {
        "type": "NotSupportedStatus",
        "code": "plan-refused",
        "headline": "finalize was refused",
        "where": "engine 3",
        "cudnn": "CUDNN_STATUS_NOT_SUPPORTED_SHAPE (3002), cudnnBackendFinalize\nWarning: first\nWarning: second",
        "status": 3002,
        "status_name": "CUDNN_STATUS_NOT_SUPPORTED_SHAPE",
        "function": "cudnnBackendFinalize",
        "last_error": "Warning: first\nWarning: second\n",
        "descriptor": "CUDNN_BACKEND_ENGINECFG_DESCRIPTOR",
        "attribute": "CUDNN_ATTR_ENGINECFG_ENGINE",
    }


def test_a_missing_message_of_cudnn_is_reported() -> None:
    error = CudnnStatusError("refused", status=Status.BAD_PARAM, function="cudnnCreate")
    assert error.code == "cudnn-status"
    assert error.sections == {"cudnn": "CUDNN_STATUS_BAD_PARAM (2000), cudnnCreate\nno last-error text"}
    fields = error.to_dict()
    assert (fields["last_error"], fields["descriptor"], fields["attribute"]) == ("", None, None)


@pytest.mark.parametrize(
    ("status", "text"),
    [(Status.SUCCESS, "CUDNN_STATUS_SUCCESS (0)"), (3999, "status unknown to this package (3999)")],
)
def test_status_text_has_name_and_number(status: Status | int, text: str) -> None:
    assert format_status(status) == text


@pytest.mark.parametrize(
    "error", list(make_an_error_of_every_class()), ids=lambda error: f"{type(error).__name__}-{error.code}"
)
@pytest.mark.parametrize("twin_of", [lambda e: pickle.loads(pickle.dumps(e)), copy.copy, copy.deepcopy])
def test_errors_are_copied_and_pickled_completely(error: CudnnBackendError, twin_of: object) -> None:
    assert callable(twin_of)
    error.add_note("a note of the caller")
    twin = twin_of(error)
    assert type(twin) is type(error)
    assert twin.__dict__ == error.__dict__
    assert (str(twin), twin.render(), twin.to_dict()) == (str(error), error.render(), error.to_dict())
    assert twin.__notes__ == error.__notes__
    json.dumps(twin.to_dict(), allow_nan=False)


def test_not_supported_keeps_its_verdict_when_pickled() -> None:
    error = make_status_error(NotSupportedStatus)
    assert isinstance(error, NotSupported)
    assert error.verdict is None
    error.verdict = {"outcome": "not supported"}
    assert pickle.loads(pickle.dumps(error)).verdict == {"outcome": "not supported"}


@pytest.mark.parametrize(
    ("kind", "base"),
    [
        (EnvironmentNotReady, OSError),
        (GraphError, ValueError),
        (UsageError, ValueError),
        (NotSupported, CudnnBackendError),
        (NotSupportedStatus, CudnnStatusError),
        (NotSupportedStatus, NotSupported),
        (CudnnStatusError, CudnnBackendError),
    ],
)
def test_exception_classes_have_the_documented_bases(kind: type[Exception], base: type[Exception]) -> None:
    assert issubclass(kind, base)
    assert issubclass(kind, CudnnBackendError)


# ------------------------------------------------------------------------------------------------ status errors


def _find_functions_that_create_status_errors() -> set[tuple[str, str]]:
    """Return file and function of every call that creates an exception with a ``status`` argument."""
    found = set()
    for path in PACKAGE.rglob("*.py"):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        for function in ast.walk(tree):
            if not isinstance(function, ast.FunctionDef):
                continue
            for node in ast.walk(function):
                if isinstance(node, ast.Call) and any(item.arg == "status" for item in node.keywords):
                    found.add((path.relative_to(PACKAGE).as_posix(), function.name))
    return found


def test_only_two_functions_create_status_errors() -> None:
    """One function makes the error from cuDNN's status; the other adds the descriptor to its message."""
    assert _find_functions_that_create_status_errors() == {
        ("native/libcudnn.py", "make_status_error"),
        ("native/descriptor.py", "_add_descriptor_to_message"),
    }


def test_only_not_supported_status_derives_from_status_errors() -> None:
    """Other exception classes must not imply that cuDNN returned a status."""
    heirs = set()
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef):
                bases = {base.id for base in node.bases if isinstance(base, ast.Name)}
                heirs |= {node.name} if bases & {"CudnnStatusError", "NotSupportedStatus"} else set()
    assert heirs == {"NotSupportedStatus"}


# ------------------------------------------------------------------------------------------------ codes


def _find_positions_of_error_code_parameter(tree: ast.Module) -> dict[str, int]:
    """Return the position of the parameter ``code`` in each function of a module that has it, by function name."""
    places = {"Cause": 0, "Rule": 0}
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef):
            names = [item.arg for item in node.args.args if item.arg not in ("self", "cls")]
            if "code" in names:
                places[node.name] = names.index("code")
    return places


@cache
def _find_public_error_code_positions() -> dict[str, int]:
    """Return the position of the parameter ``code`` in each public function of the package that has it, by name."""
    found: dict[str, int] = {}
    for path in PACKAGE.rglob("*.py"):
        places = _find_positions_of_error_code_parameter(ast.parse(path.read_text(encoding="utf-8")))
        found |= {name: place for name, place in places.items() if not name.startswith("_")}
    return found


def _find_error_codes(path: Path) -> Iterator[str]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    places = _find_public_error_code_positions() | _find_positions_of_error_code_parameter(tree)
    for node in ast.walk(tree):
        given: list[ast.expr | None] = []
        if isinstance(node, ast.Call):
            given += [item.value for item in node.keywords if item.arg == "code"]
            name = node.func.id if isinstance(node.func, ast.Name) else getattr(node.func, "attr", "")
            if name in places and len(node.args) > places[name]:
                given.append(node.args[places[name]])
        elif isinstance(node, ast.FunctionDef):
            given += [
                default
                for item, default in zip(node.args.kwonlyargs, node.args.kw_defaults, strict=True)
                if item.arg == "code"
            ]
        for value in given:
            for part in ast.walk(value) if value is not None else ():
                if isinstance(part, ast.Constant) and isinstance(part.value, str) and part.value:  # "" is none
                    yield part.value


def find_all_error_codes() -> set[str]:
    paths = (path for path in PACKAGE.rglob("*.py") if "generated" not in path.parts)
    return {code for path in paths for code in _find_error_codes(path)}


def test_error_codes_are_kebab_case() -> None:
    assert [code for code in sorted(find_all_error_codes()) if not re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", code)] == []


def test_error_codes_equal_the_golden_list() -> None:
    """Codes must not be renamed or reused; new codes are added to golden/codes.txt by hand."""
    assert sorted(find_all_error_codes()) == GOLDEN_CODES.read_text(encoding="utf-8").split()
