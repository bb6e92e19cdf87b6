"""Files of others: logs, graphs, targets, baselines, plans, cuDNN's frontend, support tables; damaged from a seed.

Whatever is in a file, reading it gives a value or one of our errors, soon, and nothing of it that is printed holds a
control character or a line that somebody made up.
"""

from __future__ import annotations

import json
import random
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from cudnn_backend_py import graph_to_json, load_graph
from cudnn_backend_py.diagnose import SupportTable
from cudnn_backend_py.diagnose.logs import report_log
from cudnn_backend_py.diagnose.report.attention_page import render_page
from cudnn_backend_py.diagnose.surveys.baseline import read_baseline
from cudnn_backend_py.errors import CudnnBackendError
from cudnn_backend_py.importers.frontend_json import graph_from_frontend_json
from cudnn_backend_py.plans.record import load_record, seal
from cudnn_backend_py.system.strict import read_json
from cudnn_backend_py.target import list_profiles, load_profile
from tests.support.logs import LOGS, log_text
from tests.support.mutations import HOSTILE, check_printed, mutated_json, mutated_text
from tests.support.zoo import ZOO
from tests.torture.harness import Broken

FILES = 60  # of a round
LIMIT_S = 20.0  # of this process' time for one file
TABLES = Path(__file__).parents[1] / "library" / "diagnose" / "data"

BASELINE: dict[str, Any] = {
    "schema": "cudnn-backend-py/check",
    "version": 1,
    "targets": ["sm80"],
    "versions": ["default"],
    "build": False,
    "pin": ["cause"],
    "graphs": {"g": "g.json"},
    "expected": [{"graph": "g", "target": "sm80", "version": "default", "outcome": "supported", "cause": "x"}],
}
FRONTEND: dict[str, Any] = {
    "context": {"io_data_type": "HALF", "intermediate_data_type": "FLOAT", "compute_data_type": "FLOAT", "name": "f"},
    "nodes": [
        {"tag": "MATMUL", "name": "mm", "inputs": {"A": "a", "B": "b"}, "outputs": {"C": "c"}},
        {"tag": "POINTWISE", "name": "r", "mode": "RELU_FWD", "inputs": {"IN_0": "c"}, "outputs": {"OUT_0": "d"}},
        {"tag": "REDUCTION", "name": "max", "mode": "MAX", "inputs": {"X": "d"}, "outputs": {"Y": "y"}},
    ],
    "tensors": {
        "a": {"name": "a", "uid": 1, "uid_assigned": True, "dim": [2, 8, 64], "stride": [512, 64, 1]},
        "b": {"name": "b", "uid": 2, "uid_assigned": True, "dim": [2, 64, 16], "stride": [1024, 1, 64]},
        "c": {"name": "c", "dim": [], "stride": [], "is_virtual": True, "data_type": None},
        "d": {"name": "d", "dim": [], "stride": [], "is_virtual": True, "reordering_type": "NONE"},
        "y": {"name": "y", "dim": [2, 8, 1], "stride": [8, 1, 1], "data_type": "FLOAT", "is_pass_by_value": False},
    },
}


def attack(seed: int, folder: Path) -> Counter[str]:
    """Write damaged files and read each as a command does."""
    rng = random.Random(seed)
    counts: Counter[str] = Counter()
    for number in range(FILES):
        kind = rng.choice(list(KINDS))
        path = folder / f"{number}.json"
        path.write_bytes(_damaged(rng, kind))
        began = time.process_time()
        try:
            shown = KINDS[kind][1](path)
        except CudnnBackendError as error:
            shown = error.render() + "\n" + str(error)
            counts[f"{kind}: refused"] += 1
        except BaseException as error:
            raise Broken(f"{kind}, file {number}: {type(error).__name__}: {error}") from error
        else:
            counts[f"{kind}: read"] += 1
        check_printed(shown)
        if time.process_time() - began > LIMIT_S:
            raise Broken(f"{kind}, file {number}: {time.process_time() - began:.1f} s for {path.stat().st_size} bytes")
        path.unlink()
    return counts


# Reading, and what would be printed


def _graph(path: Path) -> str:
    graph = load_graph(path)
    json.dumps(graph_to_json(graph)).encode()
    return str(graph)


def _target(path: Path) -> str:
    profile = load_profile(path)
    json.loads(profile.json())
    return f"sm_{profile.sm}"


def _baseline(path: Path) -> str:
    return str(len(read_baseline(path).triples()))


def _plan(path: Path) -> str:
    return str(load_record(path).sm)


def _frontend(path: Path) -> str:
    return str(graph_from_frontend_json(read_json(path, code="frontend-json")))


def _log(path: Path) -> str:
    report = report_log(path)
    json.dumps(report.to_dict(), allow_nan=False).encode()
    return str(report)


def _table(path: Path) -> str:
    return render_page([SupportTable.from_json(path.read_text(encoding="utf-8", errors="replace"))], files=["f"])


def _graph_data(rng: random.Random) -> Any:
    return graph_to_json(ZOO[rng.choice(list(ZOO))]())


def _target_data(rng: random.Random) -> Any:
    profile = rng.choice(list_profiles())
    bare = dict(profile.properties)
    whole = {"name": "n", "title": "t", "aliases": ["a"], "properties": bare, "sources": {}, "citations": {"c": "d"}}
    return rng.choice([bare, whole])


def _plan_data(rng: random.Random) -> Any:
    record = {"schema": "cudnn-backend-py/plan", "version": 1, "cudnn": "9.28.0", "target": "h100", "sm": 90}
    return {**record, "tag": "eng0", "graph": _graph_data(rng), "plan": "{}"}


def _table_data(rng: random.Random) -> Any:
    return json.loads(rng.choice(sorted(TABLES.glob("attention-support-*.json"))).read_text(encoding="utf-8"))


KINDS: dict[str, tuple[Callable[[random.Random], Any], Callable[[Path], str]]] = {
    "graph": (_graph_data, _graph),
    "target": (_target_data, _target),
    "baseline": (lambda _: BASELINE, _baseline),
    "plan": (_plan_data, _plan),
    "frontend": (lambda _: FRONTEND, _frontend),
    "log": (lambda rng: log_text(rng.choice(sorted(LOGS.iterdir())).name), _log),
    "table": (_table_data, _table),
}


# Damage


def _damaged(rng: random.Random, kind: str) -> bytes:
    data = KINDS[kind][0](rng)
    if kind == "log":
        text = mutated_text(rng, data)
        for hostile in rng.sample(HOSTILE, 3):
            at = rng.randrange(len(text) + 1)
            text = text[:at] + hostile + text[at:]
        return text.encode("utf-8", "surrogatepass")
    data = mutated_json(rng, data) if rng.random() < 0.9 else data
    if kind == "plan" and isinstance(data, dict) and rng.random() < 0.8:
        data = seal(data)
    text = _toml(data) if kind == "baseline" else json.dumps(data, indent=rng.choice([None, 1]))
    return _spoilt(rng, text)


def _spoilt(rng: random.Random, text: str) -> bytes:
    """Return a text as it is, or with something that JSON, or reading it, may stumble over."""
    at = rng.randrange(len(text) + 1)
    new = rng.choice(
        [
            *[""] * 40,
            "[" * 100_000,
            '{"a":' * 900,
            "9" * 5000,
            "-" + "9" * 1000,
            "1e999",
            "NaN",
            "-Infinity",
            '"\\ud800"',
            '"name": "twice", "name": "twice",',
            '"version": true,',
            "\ufeff",
            *HOSTILE,
        ]
    )
    data = (text[:at] + new + text[at:]).encode("utf-8", "surrogatepass")
    if rng.random() < 0.1:
        data = bytearray(data)
        for _ in range(rng.randrange(1, 8)):
            data[rng.randrange(len(data))] = rng.randrange(256)
    return bytes(data[: rng.randrange(len(data))] if rng.random() < 0.1 else data)


def _toml(data: Any) -> str:
    """Return plain data as a TOML file, or as JSON where TOML has no form for it."""
    if not isinstance(data, dict):
        return json.dumps(data)
    return "\n".join(f"{json.dumps(key)} = {_toml_value(value)}" for key, value in data.items()) + "\n"


def _toml_value(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(key)} = {_toml_value(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list):
        return f"[{', '.join(map(_toml_value, value))}]"
    return "inf" if value == float("inf") else "''" if value is None else json.dumps(value)
