"""Read randomly damaged files of every kind that the package reads without cuDNN.

Reading must return a value or raise an error of the package, in bounded time. Printed parts of a file must contain no
control characters and no line breaks that forge output. A file that violates this is kept in the temporary folder.
"""

from __future__ import annotations

import gzip
import io
import json
import random
import re
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from cudnn_backend_py import load_graph
from cudnn_backend_py.audit.case import Case, load_case
from cudnn_backend_py.cli.compare.comparison import format_text, read_record
from cudnn_backend_py.cli.run import _format_trial
from cudnn_backend_py.diagnose import Outcome, SupportTable, Verdict, render_text
from cudnn_backend_py.diagnose.breakdown import break_down_log
from cudnn_backend_py.diagnose.logs import report_log
from cudnn_backend_py.diagnose.report.attention_page import render_page
from cudnn_backend_py.diagnose.report.tables import render_as_text, render_verdict_matrix
from cudnn_backend_py.diagnose.surveys.baseline import _update_expected_verdict_tables, read_baseline
from cudnn_backend_py.diagnose.surveys.matrix import Matrix
from cudnn_backend_py.errors import CudnnBackendError
from cudnn_backend_py.frontend.notebooks import read_cells
from cudnn_backend_py.graph import graph_to_json
from cudnn_backend_py.graph.encoded import decode_graph, encode_graph
from cudnn_backend_py.importers.cudnn_json import graph_from_log_json
from cudnn_backend_py.importers.files import open_graph_file, read_graphs_or_errors_from_file
from cudnn_backend_py.importers.frontend_json import graph_from_frontend_json
from cudnn_backend_py.importers.records import read_log
from cudnn_backend_py.interpreter.data import load_npz_arrays
from cudnn_backend_py.plans.record import add_hash, load_record
from cudnn_backend_py.printable import make_lines_printable
from cudnn_backend_py.system.untrusted_files import read_json
from cudnn_backend_py.target import list_profiles, load_profile
from cudnn_backend_py.tuning.trial import Trial
from tests.support.damaged_texts import HOSTILE_TEXTS, assert_safe_to_print, mutate_json, mutate_text
from tests.support.logs import LOG_FOLDER, read_log_text
from tests.support.reporting import make_support_matrix, make_two_matmuls, make_verdict
from tests.support.varied_graphs import VARIED_GRAPHS
from tests.torture.harness import BrokenGuarantee

FILES_PER_ROUND = 120
CPU_LIMIT_S = 20.0  # CPU time of this process for one file
SUPPORT_TABLE_FOLDER = Path(__file__).parents[1] / "library" / "diagnose" / "data"

BASELINE_DATA: dict[str, Any] = {
    "schema": "cudnn-backend-py/check",
    "version": 1,
    "targets": ["sm80"],
    "versions": ["default"],
    "build": False,
    "pin": ["cause"],
    "graphs": {"g": "g.json"},
    "expected": [{"graph": "g", "target": "sm80", "version": "default", "outcome": "supported", "cause": "x"}],
}
FRONTEND_GRAPH_DATA: dict[str, Any] = {
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


def run_random_round(seed: int, folder: Path) -> Counter[str]:
    """Write damaged files, and read each with the function that commands use."""
    rng = random.Random(seed)
    counts: Counter[str] = Counter()
    for number in range(FILES_PER_ROUND):
        name = rng.choice(list(FILE_KINDS))
        kind = FILE_KINDS[name]
        path = folder / f"{number}{rng.choice(kind.suffixes)}"
        path.write_bytes(kind.make_damaged_file(rng))
        began = time.process_time()
        try:
            shown = kind.read(path)
        except CudnnBackendError as error:
            shown = error.render() + "\n" + str(error)
            counts[f"{name}: refused"] += 1
        except BaseException as error:
            kept = path.rename(Path(tempfile.gettempdir()) / f"broken-{seed}-{path.name}")
            raise BrokenGuarantee(f"{name}, {kept}: {type(error).__name__}: {error}") from error
        else:
            counts[f"{name}: read"] += 1
        assert_safe_to_print(shown)
        if time.process_time() - began > CPU_LIMIT_S:
            raise BrokenGuarantee(
                f"{name}, file {number}: {time.process_time() - began:.1f} s for {path.stat().st_size} bytes"
            )
        path.unlink()
    return counts


# Reading and printing


def _read_graph(path: Path) -> str:
    graph = load_graph(path)
    json.dumps(graph_to_json(graph)).encode()
    return str(graph)


def _read_target(path: Path) -> str:
    profile = load_profile(path)
    json.loads(profile.json())
    return f"sm_{profile.sm}"


def _read_baseline(path: Path) -> str:
    found = read_baseline(path)
    _update_expected_verdict_tables(path.read_text(encoding="utf-8"), {})
    return str(len(found.list_cell_keys()))


def _read_plan(path: Path) -> str:
    return str(load_record(path).sm)


def _read_frontend_graph(path: Path) -> str:
    return str(graph_from_frontend_json(read_json(path, code="frontend-json")))


def _read_log_report(path: Path) -> str:
    report = report_log(path)
    json.dumps(report.to_dict(), allow_nan=False).encode()
    return str(report)


def _read_support_table(path: Path) -> str:
    return render_page([SupportTable.from_json(path.read_text(encoding="utf-8", errors="replace"))], files=["f"])


def _read_any_graph(path: Path) -> str:
    return "\n".join(str(graph) for graph in read_graphs_or_errors_from_file(str(path)))


def _read_log_breakdown(path: Path) -> str:
    return str(break_down_log(open_graph_file(str(path))))


def _read_log_records(path: Path) -> str:
    records = list(read_log(path))
    json.dumps([[record.json(), record.reasons(), record.version, record.time] for record in records])
    return str(len(records))


def _read_cudnn_json(path: Path) -> str:
    return str(graph_from_log_json(read_json(path, code="log-graph")))


def _read_verdict(path: Path) -> str:
    found = Verdict.from_dict(read_json(path, code="verdict-schema"))
    json.dumps(found.to_dict())
    return render_text(found)


def _read_matrix(path: Path) -> str:
    found = Matrix.from_dict(read_json(path, code="matrix-schema"))
    json.dumps(found.to_dict())
    return render_as_text(render_verdict_matrix(found))


def _read_trial(path: Path) -> str:
    found = Trial.from_dict(read_json(path, code="trial-record"))
    json.dumps(found.to_dict(), allow_nan=False)
    return make_lines_printable(_format_trial(found))


def _read_comparison(path: Path) -> str:
    record = read_record(path)
    return make_lines_printable(format_text({**COMPARISON_DATA, "rows": record["rows"]}))


def _read_audit_case(path: Path) -> str:
    found = load_case(path)
    return make_lines_printable(str(found)) + str(len(found.results() if found.graph is not None else ()))


def _read_arrays(path: Path) -> str:
    return str(len(load_npz_arrays(path, SAVED_GRAPH)))


def _read_notebook(path: Path) -> str:
    return str(len(read_cells(path)))


def _read_encoded_graph(path: Path) -> str:
    return str(decode_graph(path.read_text(encoding="utf-8", errors="replace")))


def _make_graph_data(rng: random.Random) -> Any:
    return graph_to_json(VARIED_GRAPHS[rng.choice(list(VARIED_GRAPHS))]())


def _make_target_data(rng: random.Random) -> Any:
    profile = rng.choice(list_profiles())
    bare = dict(profile.properties)
    whole = {"name": "n", "title": "t", "aliases": ["a"], "properties": bare, "sources": {}, "citations": {"c": "d"}}
    return rng.choice([bare, whole])


def _make_plan_data(rng: random.Random) -> Any:
    record = {"schema": "cudnn-backend-py/plan", "version": 1, "cudnn": "9.28.0", "target": "h100", "sm": 90}
    return {**record, "tag": "eng0", "graph": _make_graph_data(rng), "plan": "{}", "sha256": ""}


def _load_support_table_data(rng: random.Random) -> Any:
    return json.loads(
        rng.choice(sorted(SUPPORT_TABLE_FOLDER.glob("attention-support-*.json"))).read_text(encoding="utf-8")
    )


# Damage

MakeDamagedFile = Callable[[random.Random], bytes]


def _make_damaged_json_maker(
    data: Callable[[random.Random], Any], write: Callable[[Any], str] | None = None
) -> MakeDamagedFile:
    """Return a function that makes a damaged JSON or TOML file: parts of its data, then of its text, are replaced."""

    def make_damaged_file(rng: random.Random) -> bytes:
        value = data(rng)
        value = mutate_json(rng, value) if rng.random() < 0.9 else value
        if isinstance(value, dict) and "sha256" in value and rng.random() < 0.8:
            value = add_hash(value)
        return _damage_text(rng, json.dumps(value, indent=rng.choice([None, 1])) if write is None else write(value))

    return make_damaged_file


def _make_damaged_log(rng: random.Random) -> bytes:
    text = mutate_text(rng, _choose_log_text(rng))
    for hostile in rng.sample(HOSTILE_TEXTS, 3):
        at = rng.randrange(len(text) + 1)
        text = text[:at] + hostile + text[at:]
    return text.encode("utf-8", "surrogatepass")


def _make_damaged_bytes_maker(data: Callable[[random.Random], bytes]) -> MakeDamagedFile:
    """Return a function that makes a damaged binary file: some bytes are changed, removed or inserted."""

    def make_damaged_file(rng: random.Random) -> bytes:
        made = bytearray(data(rng))
        for _ in range(rng.randrange(4)):
            at, what = rng.randrange(len(made)), rng.random()
            if what < 0.6:
                made[at] = rng.randrange(256)
            elif what < 0.8:
                del made[at : at + rng.randrange(1, 9)]
            else:
                made[at:at] = rng.choice([b"\xff" * 8, b"PK\x01\x02", bytes(8), b"{", bytes(rng.randrange(60))])
        return bytes(made[: rng.randrange(len(made))] if rng.random() < 0.05 else made)

    return make_damaged_file


def _choose_log_text(rng: random.Random) -> str:
    return read_log_text(rng.choice(sorted(LOG_FOLDER.iterdir())).name)


def _choose_cudnn_json(rng: random.Random) -> Any:
    return json.loads(rng.choice(_list_cudnn_graph_texts()))


@cache
def _list_cudnn_graph_texts() -> list[str]:
    texts = [read_log_text(path.name) for path in LOG_FOLDER.iterdir()]
    return sorted({one for text in texts for one in re.findall(r'val=(\{"cudnnVersion".*\});?$', text, re.MULTILINE)})


def _make_verdict_data(rng: random.Random) -> Any:
    return json.loads(json.dumps(make_verdict(make_two_matmuls(), rng.choice(list(Outcome))).to_dict()))


def _make_matrix_data(_rng: random.Random) -> Any:
    return json.loads(json.dumps(make_support_matrix("g", "h").to_dict()))


COMPARISON_DATA: dict[str, Any] = {
    "rows": [
        {
            "shape": "b1",
            "direction": "forward",
            "plans": {"cuDNN 9.28.0": "eng0"},
            "notes": ["n"],
            "flops": 1.0,
            "gpu": {"a": {"median_us": 1.0, "low_us": 1.0, "high_us": 2.0, "samples": 3}},
            "host": {"a": {"median_us": 1.0, "low_us": 1.0, "high_us": 2.0, "samples": 3}},
            "fastest": ["a"],
        }
    ],
    "seconds": 1.0,
    "command": "cudnn-backend plan compare --grid=little",
    "cases": 2,
    "gpu_name": "H100",
    "versions": ["9.28.0"],
    "torch": None,
    "date": "2026-01-01",
    "environment": {"cudnn": "9.28.0", "python": "3.11"},
}
TRIAL_DATA: dict[str, Any] = {
    "graph": "g",
    "target": "h100",
    "sm": 90,
    "cudnn": "9.28.0",
    "data": "uniform",
    "seed": 0,
    "state": "wrong",
    "words": "w",
    "configs": [
        {
            "tag": "eng0",
            "mode": "A",
            "state": "wrong",
            "words": "w",
            "comparisons": [
                {
                    "output": "y",
                    "largest": "inf",
                    "where": [0, 1],
                    "got": "nan",
                    "wanted": 1.0,
                    "bound": 0.1,
                    "drift": None,
                    "beyond": 1,
                    "compared": 2,
                    "elements": 2,
                    "factor": 2.0,
                }
            ],
            "notes": ["TENSOR_CORE"],
            "build_s": 1.0,
            "workspace_bytes": 0,
            "cold": {"median_us": 1.0, "low_us": 1.0, "high_us": 2.0, "samples": 3},
            "warm": {"median_us": 1.0, "low_us": 1.0, "high_us": 2.0, "samples": 3},
            "reproduce": "cudnn-backend run g.json",
        }
    ],
    "outputs": [{"name": "y", "type": "f16[2]", "elements": 2, "compared": 2, "median_bound": 0.1, "largest_bound": 1}],
    "inputs": [["x", "f16[2]"]],
    "reproduce": "cudnn-backend run g.json",
    "seconds": 1.0,
    "described": False,
    "lost": "",
}
SAVED_GRAPH = make_two_matmuls()


def _make_audit_case_bytes(rng: random.Random) -> bytes:
    case = Case(
        entry_point="frontend",
        place="p",
        found=("f",),
        wrong=("o",),
        graph=SAVED_GRAPH,
        tag="eng1",
        cudnn="9.28.0",
        library="l",
        gpu="H100",
        sm=90,
        versions={"torch": "2"},
        images={tensor.name: np.zeros(tensor.span_bytes, np.uint8) for tensor in SAVED_GRAPH.variant_pack_tensors},
        numbers={"s": 1.0},
        at=(0, 1),
    )
    whole = case.to_bytes()
    if rng.random() < 0.5:
        return whole
    with np.load(io.BytesIO(whole)) as held:
        arrays = {name: held[name] for name in held.files}
    about = mutate_json(rng, json.loads(arrays["about"].tobytes()))
    arrays["about"] = np.frombuffer(json.dumps(about).encode("utf-8", "surrogatepass"), np.uint8)
    if rng.random() < 0.3:
        arrays[rng.choice(list(arrays))] = np.zeros((3, 1), rng.choice(["u1", "f8", "U3", "?"]))
    file = io.BytesIO()
    np.savez(file, **arrays)
    return file.getvalue()


def _make_array_bytes(rng: random.Random) -> bytes:
    file = io.BytesIO()
    save = rng.choice([np.savez, np.savez_compressed])
    save(file, **{rng.choice(["q", "k", "x"]): np.zeros((1, 10, 64), rng.choice(["f4", "i8", "c8", "S2"]))})
    return file.getvalue()


def _make_notebook_data(_rng: random.Random) -> Any:
    cells = [{"cell_type": "code", "source": ["%time x = 1\n", "!ls\n"]}, {"cell_type": "markdown", "source": "words"}]
    return {"cells": cells, "worksheets": [{"cells": [{"cell_type": "code", "input": "y = 2"}]}]}


def _make_any_graph_data(rng: random.Random) -> Any:
    return rng.choice([_make_graph_data, _make_plan_data, _choose_cudnn_json, lambda _: FRONTEND_GRAPH_DATA])(rng)


def _damage_text(rng: random.Random, text: str) -> bytes:
    """Return a text unchanged, or with an addition that may make it invalid JSON or exceed limits of the parser."""
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
            *HOSTILE_TEXTS,
        ]
    )
    data = (text[:at] + new + text[at:]).encode("utf-8", "surrogatepass")
    if rng.random() < 0.1:
        data = bytearray(data)
        for _ in range(rng.randrange(1, 8)):
            data[rng.randrange(len(data))] = rng.randrange(256)
    return bytes(data[: rng.randrange(len(data))] if rng.random() < 0.1 else data)


def _format_toml(data: Any) -> str:
    """Return plain data as a TOML file, or as JSON if TOML has no form for it."""
    if not isinstance(data, dict):
        return json.dumps(data)
    return "\n".join(f"{json.dumps(key)} = {_format_toml_value(value)}" for key, value in data.items()) + "\n"


def _format_toml_value(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(key)} = {_format_toml_value(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list):
        return f"[{', '.join(map(_format_toml_value, value))}]"
    return "inf" if value == float("inf") else "''" if value is None else json.dumps(value)


@dataclass(frozen=True)
class FileKind:
    """A kind of file: functions that write a damaged one and read it, and its possible file names."""

    make_damaged_file: MakeDamagedFile
    read: Callable[[Path], str]
    suffixes: tuple[str, ...] = (".json",)


_GRAPH_SUFFIXES = (".json", ".plan", ".txt", ".log", ".JSON", "", ".1")
FILE_KINDS: dict[str, FileKind] = {
    "graph": FileKind(_make_damaged_json_maker(_make_graph_data), _read_graph),
    "any graph": FileKind(_make_damaged_json_maker(_make_any_graph_data), _read_any_graph, _GRAPH_SUFFIXES),
    "graph in a log": FileKind(_make_damaged_log, _read_any_graph, (".log", ".txt", "")),
    "packed log": FileKind(
        _make_damaged_bytes_maker(lambda rng: gzip.compress(_choose_log_text(rng).encode()[:20_000])),
        _read_any_graph,
        (".gz",),
    ),
    "cudnn json": FileKind(_make_damaged_json_maker(_choose_cudnn_json), _read_cudnn_json),
    "target": FileKind(_make_damaged_json_maker(_make_target_data), _read_target),
    "baseline": FileKind(_make_damaged_json_maker(lambda _: BASELINE_DATA, _format_toml), _read_baseline),
    "plan": FileKind(_make_damaged_json_maker(_make_plan_data), _read_plan),
    "frontend": FileKind(_make_damaged_json_maker(lambda _: FRONTEND_GRAPH_DATA), _read_frontend_graph),
    "log": FileKind(_make_damaged_log, _read_log_report),
    "breakdown": FileKind(_make_damaged_log, _read_log_breakdown, (".log",)),
    "records": FileKind(_make_damaged_log, _read_log_records),
    "table": FileKind(_make_damaged_json_maker(_load_support_table_data), _read_support_table),
    "verdict": FileKind(_make_damaged_json_maker(_make_verdict_data), _read_verdict),
    "matrix": FileKind(_make_damaged_json_maker(_make_matrix_data), _read_matrix),
    "trial": FileKind(_make_damaged_json_maker(lambda _: TRIAL_DATA), _read_trial),
    "comparison": FileKind(_make_damaged_json_maker(lambda _: COMPARISON_DATA), _read_comparison),
    "case": FileKind(_make_damaged_bytes_maker(_make_audit_case_bytes), _read_audit_case, (".npz",)),
    "arrays": FileKind(_make_damaged_bytes_maker(_make_array_bytes), _read_arrays, (".npz",)),
    "notebook": FileKind(_make_damaged_json_maker(_make_notebook_data), _read_notebook, (".ipynb",)),
    "word": FileKind(
        _make_damaged_bytes_maker(lambda rng: encode_graph(VARIED_GRAPHS[rng.choice(list(VARIED_GRAPHS))]()).encode()),
        _read_encoded_graph,
    ),
}
