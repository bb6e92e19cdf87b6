"""The JSON schemas in docs/schema compared with the verdicts and support matrices that the package writes."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator, ValidationError

from cudnn_backend_py.diagnose import Basis, Candidate, Cause, Control, Outcome, Reason, Verdict
from cudnn_backend_py.diagnose import verdict as verdicts
from cudnn_backend_py.diagnose.surveys.matrix import SCHEMA as MATRIX_SCHEMA
from cudnn_backend_py.diagnose.surveys.matrix import SCHEMA_VERSION as MATRIX_VERSION
from cudnn_backend_py.diagnose.surveys.matrix import Cell, Matrix
from cudnn_backend_py.diagnose.verdict import STAGE_NAMES, Stage
from tests.support.reporting import make_support_matrix, make_two_matmuls, make_verdict

SCHEMA_FOLDER = Path(__file__).parents[3] / "docs" / "schema"
VERDICT, MATRIX = (
    json.loads((SCHEMA_FOLDER / f"{name}.schema.json").read_text(encoding="utf-8")) for name in ("verdict", "matrix")
)
EMPTY_FIELDS = {"control": None, "cause": None, "candidates": (), "stages": (), "sm": 0}


def convert_to_json_data(value: Verdict | Matrix) -> Any:
    return json.loads(json.dumps(value.to_dict(), allow_nan=False))


@pytest.mark.parametrize("schema", [VERDICT, MATRIX], ids=["verdict", "matrix"])
def test_schema_file_is_a_valid_json_schema(schema: Any) -> None:
    Draft202012Validator.check_schema(schema)


@pytest.mark.parametrize("outcome", Outcome)
@pytest.mark.parametrize("changes", [{}, {"hazards": ("one",)}, EMPTY_FIELDS], ids=["whole", "hazard", "blank"])
def test_a_verdict_fits_its_schema_and_is_read_unchanged(outcome: Outcome, changes: dict[str, Any]) -> None:
    value = make_verdict(make_two_matmuls(), outcome, **changes)
    Draft202012Validator(VERDICT).validate(convert_to_json_data(value))
    assert Verdict.from_dict(convert_to_json_data(value)) == value


def test_a_support_matrix_fits_its_schema_and_is_read_unchanged() -> None:
    value = make_support_matrix("a", "b")
    Draft202012Validator(MATRIX).validate(convert_to_json_data(value))
    assert Matrix.from_dict(convert_to_json_data(value)) == value


@pytest.mark.parametrize(
    "spoil",
    [
        lambda data: data.update(version=2),
        lambda data: data.update(outcome="yes"),
        lambda data: data.pop("hazards"),
        lambda data: data["stages"][0].update(state="fine"),
        lambda data: data["stages"][0].update(name="prayer"),
        lambda data: data["candidates"][0].update(state="lost"),
        lambda data: data["candidates"][0]["knobs"].update(TILE="large"),
        lambda data: data["cause"].update(code="Not A Code"),
        lambda data: data["cause"].update(basis="hope"),
    ],
)
def test_schema_refuses_an_invalid_verdict(spoil: Callable[[Any], None]) -> None:
    data = convert_to_json_data(make_verdict(make_two_matmuls()))
    spoil(data)
    with pytest.raises(ValidationError):
        Draft202012Validator(VERDICT).validate(data)


@pytest.mark.parametrize(
    "spoil",
    [
        lambda data: data.update(schema="cudnn-backend-py/verdict"),
        lambda data: data.update(targets=["sm90", "sm90"]),
        lambda data: data["cells"][0].pop("engines"),
        lambda data: data["cells"][0].update(outcome="S"),
        lambda data: data["cells"][0].update(engines=["8"]),
    ],
)
def test_schema_refuses_an_invalid_support_matrix(spoil: Callable[[Any], None]) -> None:
    data = convert_to_json_data(make_support_matrix("a"))
    spoil(data)
    with pytest.raises(ValidationError):
        Draft202012Validator(MATRIX).validate(data)


@pytest.mark.parametrize(
    ("schema", "part", "kind", "more"),
    [
        (VERDICT, "verdict", Verdict, {"schema", "version"}),
        (VERDICT, "stage", Stage, set()),
        (VERDICT, "candidate", Candidate, set()),
        (VERDICT, "reason", Reason, set()),
        (VERDICT, "cause", Cause, set()),
        (VERDICT, "control", Control, set()),
        (MATRIX, "cell", Cell, {"graph", "target", "version"}),
    ],
)
def test_schema_requires_all_fields_of_the_classes(schema: Any, part: str, kind: type, more: set[str]) -> None:
    wanted = {item.name for item in fields(kind) if item.name != "summary"} | more  # of text output only
    assert set(schema["$defs"][part]["properties"]) == wanted
    assert set(schema["$defs"][part]["required"]) == wanted


def test_support_matrix_schema_has_the_keys_that_are_written() -> None:
    assert set(MATRIX["$defs"]["matrix"]["properties"]) == {*make_support_matrix("a").to_dict(), "profiles"}


def test_schemas_have_the_versions_and_enum_values_of_the_code() -> None:
    parts = VERDICT["$defs"]
    assert parts["verdict"]["properties"]["schema"]["const"] == verdicts.SCHEMA
    assert parts["verdict"]["properties"]["version"]["const"] == verdicts.SCHEMA_VERSION
    assert MATRIX["$defs"]["matrix"]["properties"]["schema"]["const"] == MATRIX_SCHEMA
    assert MATRIX["$defs"]["matrix"]["properties"]["version"]["const"] == MATRIX_VERSION
    outcomes = [outcome.value for outcome in Outcome]
    assert parts["outcome"]["enum"] == MATRIX["$defs"]["cell"]["properties"]["outcome"]["enum"] == outcomes
    assert parts["cause"]["properties"]["basis"]["enum"] == [basis.value for basis in Basis]
    assert parts["stage_name"]["enum"] == list(STAGE_NAMES)
    assert MATRIX["$defs"]["cell"]["properties"]["stage"]["enum"] == ["", *STAGE_NAMES]
