"""Files of graphs, plans and devices: invalid JSON and invalid fields are refused, with an error code."""

from __future__ import annotations

import json
import random
import string
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from cudnn_backend_py import GraphError, load_graph, load_plan
from cudnn_backend_py.diagnose import SupportTable
from cudnn_backend_py.errors import UsageError
from cudnn_backend_py.graph import graph_from_json, graph_to_json
from cudnn_backend_py.plans.record import add_hash, load_record
from cudnn_backend_py.plans.refusals import read_refusals
from cudnn_backend_py.system.untrusted_files import MAX_BYTES, MAX_DEPTH, MAX_NUMBER, parse_json, read_json
from cudnn_backend_py.target import load_profile
from tests.support.reporting import make_two_matmuls

GRAPH_JSON = json.dumps(graph_to_json(make_two_matmuls()))

INVALID_JSON_TEXTS: dict[str, tuple[str, str]] = {
    "deep list": ("[" * 100_000, "lists and objects inside each other"),
    "deep object": ('{"a":' * 900 + "1" + "}" * 900, "lists and objects inside each other"),
    "just too deep": ("[" * (MAX_DEPTH + 1) + "]" * (MAX_DEPTH + 1), "lists and objects inside each other"),
    "long number": ("9" * 5000, "a number has 5000 characters"),
    "long fraction": ("0." + "9" * 5000, "a number has 5002 characters"),
    "large number": ("1e999", "the number 1e999 is larger than a float64"),
    "NaN": ("NaN", "JSON has no number NaN"),
    "Infinity": ("[-Infinity]", "JSON has no number -Infinity"),
    "key twice": ('{"a": 1, "b": 2, "a": 3}', "an object has the key 'a' twice"),
    "half a pair": ('["a\\ud800"]', "half a surrogate pair"),
    "half a pair in a key": ('{"a\\udfff": 1}', "half a surrogate pair"),
    "byte order mark": ("\ufeff{}", "BOM"),
    "nothing": ("", "Expecting value"),
    "two values": ("{} {}", "Extra data"),
}


@pytest.mark.parametrize("name", INVALID_JSON_TEXTS)
def test_every_reader_refuses_invalid_json(name: str, tmp_path: Path) -> None:
    text, what = INVALID_JSON_TEXTS[name]
    path = tmp_path / "file.json"
    path.write_text(text, encoding="utf-8")
    readers: dict[str, Callable[[], Any]] = {
        "graph-json": lambda: load_graph(path),
        "device-json": lambda: load_profile(path),
        "plan-file": lambda: load_plan(path),
        "x": lambda: parse_json(text, "it", code="x"),
    }
    for code, read in readers.items():
        with pytest.raises(GraphError, match=f"^{code}: ") as caught:
            read()
        assert what in caught.value.headline
    with pytest.raises(UsageError, match=r"^support-table-file: ") as refused:
        SupportTable.from_json(text)
    assert what in refused.value.headline


def test_strict_reader_reads_valid_json() -> None:
    deepest = "[" * MAX_DEPTH + "]" * MAX_DEPTH
    assert parse_json(deepest, "it", code="x") == json.loads(deepest)
    longest = "1" * MAX_NUMBER
    assert parse_json(longest, "it", code="x") == int(longest)
    assert parse_json('{"a": "\\ud83d\\ude00", "b": [1.5e3, null, true]}', "it", code="x") == {
        "a": "😀",
        "b": [1500.0, None, True],
    }


@pytest.mark.parametrize("kind", ["missing", "folder", "no UTF-8", "too large", "null character"])
def test_an_unreadable_file_raises_a_graph_error(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "file.json"
    if kind == "folder":
        path.mkdir()
    elif kind == "no UTF-8":
        path.write_bytes(b'"\xff"')
    elif kind == "too large":
        path.write_bytes(b" " * ((64 << 20) + 1))
    elif kind == "null character":
        path = tmp_path / "a\0b.json"
    for code, read in {"graph-json": load_graph, "device-json": load_profile, "plan-file": load_plan}.items():
        with pytest.raises(GraphError, match=f"^{code}: "):
            read(path)
    with pytest.raises(GraphError, match=r"^x: "):
        read_json(path, code="x", max_bytes=MAX_BYTES)


@pytest.mark.parametrize("version", [True, 1.0, "1", None, [1]])
def test_a_schema_version_that_is_not_an_integer_is_refused(version: object, tmp_path: Path) -> None:
    with pytest.raises(GraphError, match=r"^graph-json: graph JSON has version "):
        graph_from_json({**json.loads(GRAPH_JSON), "version": version})
    record = {"schema": "cudnn-backend-py/plan", "version": version}
    path = tmp_path / "plan.json"
    path.write_text(json.dumps(add_hash(record)), encoding="utf-8")
    with pytest.raises(GraphError, match=r"^plan-file: .* is not a plan file of version 1"):
        load_plan(path)


@pytest.mark.parametrize("key", ["cudnn", "target", "sm", "tag", "graph", "plan"])
@pytest.mark.parametrize("value", [None, [], 1.5, True])
def test_fields_of_a_plan_file_with_a_valid_hash_are_checked(key: str, value: object, tmp_path: Path) -> None:
    record: dict[str, Any] = {
        "schema": "cudnn-backend-py/plan",
        "version": 1,
        "cudnn": "9.28.0",
        "target": "h100",
        "sm": 90,
        "tag": "eng0",
        "graph": json.loads(GRAPH_JSON),
        "plan": "{}",
    }
    path = tmp_path / "plan.json"

    def write_plan_file(changed: dict[str, Any]) -> Path:
        path.write_text(json.dumps(add_hash(changed)), encoding="utf-8")
        return path

    assert load_record(write_plan_file(record)).sm == 90
    with pytest.raises(GraphError, match=f"^plan-file: .* is not a plan file: '{key}' is of type "):
        load_plan(write_plan_file({**record, key: value}))
    with pytest.raises(GraphError, match=f"^plan-file: .* is not a plan file: it has no '{key}'"):
        load_plan(write_plan_file({name: item for name, item in record.items() if name != key}))
    with pytest.raises(GraphError, match=r"^plan-file: .* it has the unknown fields more"):
        load_plan(write_plan_file({**record, "more": 1}))


def test_a_long_chain_of_ragged_offsets_is_refused() -> None:
    data = json.loads(GRAPH_JSON)
    first = data["tensors"][0]
    chain = [{**first, "name": f"t{index}", "uid": 100 + index} for index in range(2000)]
    for tensor, following in pairwise(chain):
        tensor["ragged_offset"] = following["name"]
    with pytest.raises(GraphError, match=r"^ragged-offset-chain: "):
        graph_from_json({**data, "tensors": [*data["tensors"], *chain]})


def test_deeply_nested_python_values_are_refused() -> None:
    data = json.loads(GRAPH_JSON)
    value: Any = 1
    for _ in range(5000):
        value = [value]
    data["operations"][0]["compute_type"] = value
    with pytest.raises(GraphError, match=r"^graph-json: "):
        graph_from_json(data)


@pytest.mark.parametrize(
    ("value", "what"),
    [
        ({"tensor": "q", "name": "k"}, "has the unknown keys 'name'; allowed: 'tensor'"),
        ({"tensor": "q", "enum": "DataType"}, "has the unknown keys 'enum'; allowed: 'tensor'"),
        ({"enum": "DataType", "value": "HALF", "x": 1}, "has the unknown keys 'x'; allowed: 'enum', 'value'"),
    ],
)
def test_a_json_value_with_additional_keys_is_refused(value: object, what: str) -> None:
    data = json.loads(GRAPH_JSON)
    data["operations"][0]["a"] = value
    with pytest.raises(GraphError, match=r"^graph-json: ") as caught:
        graph_from_json(data)
    assert what in caught.value.headline
    with pytest.raises(GraphError, match=r"^graph-json: .*has the unknown keys 'more'"):
        graph_from_json({**json.loads(GRAPH_JSON), "more": 1})


@pytest.mark.parametrize("text", ['{"engineId":' + "[" * 5000, '{"engineId": 1e999}', '{"engineId": NaN}'])
def test_an_invalid_engine_config_in_a_log_is_kept_as_a_reason(text: str) -> None:
    (refusal,) = read_refusals(text)
    assert refusal.engine is None
    assert refusal.reasons


def test_random_text_is_refused_or_read_as_by_the_json_module() -> None:
    chance = random.Random(3)
    for _ in range(2000):
        text = "".join(chance.choices('{}[]":,.0123456789eE-+ntfaulrse \\u' + string.hexdigits, k=chance.randrange(30)))
        try:
            value = parse_json(text, "it", code="x")
        except GraphError:
            continue
        assert value == json.loads(text)
