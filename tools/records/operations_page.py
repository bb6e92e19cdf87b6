"""The tables of docs/operations.md, written by ``make regen``."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from cudnn_backend_py import DescriptorType
from cudnn_backend_py.interpreter import OPERATIONS as INTERPRETED
from cudnn_backend_py.plans.refusals import find_deepest_reason_among_configs, read_refusals
from tests.support.typical_graphs import (
    BLOCK_SCALED_ENGINES,
    FRONTEND_METHODS,
    KINDS_FOR_OTHER_GPUS,
    KINDS_WRITTEN_AS_SEVERAL_OPERATIONS,
    OPERATION_KINDS,
    TYPICAL_GRAPHS,
)
from tools.records.operation_support import NOT_MEASURED, describe_supporting_versions, read_support_table
from tools.repository import ROOT

__all__ = [
    "AGREES",
    "PAGE_PATH",
    "RECORD_PATHS",
    "REFUSED",
    "UNMEASURED",
    "describe_gpu_run_outcome",
    "make_operations_page",
    "read_gpu_and_version",
    "read_gpu_run_outcomes",
]

D = DescriptorType

PAGE_PATH = ROOT / "docs" / "operations.md"
RECORD_PATHS = sorted(ROOT.glob("logs/operations-*.json"))  # written by built_runs.py
AGREES, REFUSED, UNMEASURED = "agrees", "refused", NOT_MEASURED
ESCAPED_BAR = "\\|"  # in a cell of a table

# Graphs of a kind that the interpreter refuses with the code interpret-operation.
_GRAPHS_THE_INTERPRETER_REFUSES = {
    D.OPERATION_CONVOLUTION_FORWARD: "a beta",
    D.OPERATION_CONVOLUTION_BACKWARD_DATA: "a beta",
    D.OPERATION_CONVOLUTION_BACKWARD_FILTER: "a beta",
    D.OPERATION_RESAMPLE_FWD: "a beta; NEAREST",
    D.OPERATION_RESAMPLE_BWD: "a beta; NEAREST",
    D.OPERATION_NORM_FORWARD: "`peer_stat`",
    D.OPERATION_NORM_BACKWARD: "`peer_stat`",
    D.OPERATION_EXPAND_BAND_MATRIX: "`kv_token_offset`, `speculative_mask`, axes other than the last",
    D.OPERATION_CONTRACT_BAND_MATRIX: "`max_token_value`, axes other than the last",
}


def _describe_supported_gpus(kind: DescriptorType) -> str:
    """Return the described GPUs on which cuDNN supports an operation, or the reason why there are none."""
    cases = [case for case in TYPICAL_GRAPHS.values() if case.kind is kind]
    found = sorted({target for case in cases for target in case.supported})
    notes = dict.fromkeys(case.note for case in cases if case.note)
    return "; ".join([*([", ".join(found)] if found else ["none"]), *notes])


def read_gpu_run_outcomes() -> dict[str, dict[str, dict[str, Any]]]:
    """Return the outcome of each graph in the GPU records, by GPU and cuDNN version."""
    found = {}
    for path in RECORD_PATHS:
        record = json.loads(path.read_text(encoding="utf-8"))
        found[read_gpu_and_version(record["environment"])] = record["graphs"]
    return found


def read_gpu_and_version(facts: Mapping[str, Any]) -> str:
    """Return the GPU and the cuDNN version in the facts of :func:`cudnn_backend_py.info.collect_info`."""
    return f"{facts['gpus'][0].removeprefix('NVIDIA ')}, {facts['cudnn']}"


_NEEDED_VERSION_PATTERN = re.compile(r"needs (cuDNN [0-9.]+[0-9])")


def describe_gpu_run_outcome(found: Mapping[str, Any]) -> str:
    """Return a recorded outcome as short text: `agrees`, the reason of a refusal, or that there is no record."""
    if not found:
        return UNMEASURED
    if found["said"] != REFUSED:
        return str(found["said"])
    needs = _NEEDED_VERSION_PATTERN.search(found["words"])
    if needs:
        return f"needs {needs[1]}"
    reason = find_deepest_reason_among_configs(read_refusals(found["words"]))
    words = (found["words"] if reason is None else reason.statement).splitlines()[0]
    return f"refused: `{words.removeprefix('cudnn-status: ')}`"


def _describe_gpu_runs(kind: DescriptorType, graphs: Mapping[str, Any]) -> str:
    """Return the number of graphs of an operation that agree with the interpreter on a GPU, and other outcomes."""
    names = [name for name, case in TYPICAL_GRAPHS.items() if case.kind is kind]
    said = [describe_gpu_run_outcome(graphs.get(name, {})) for name in names]
    others = dict.fromkeys(words for words in said if words != AGREES)
    needed = [f"needs {KINDS_FOR_OTHER_GPUS[kind]}"] if kind in KINDS_FOR_OTHER_GPUS else []
    return "; ".join([f"{said.count(AGREES)} of {len(names)}", *needed, *others])


def make_operations_table() -> str:
    found = {case.kind for case in TYPICAL_GRAPHS.values()}
    supported = {case.kind for case in TYPICAL_GRAPHS.values() if case.supported}
    records = read_gpu_run_outcomes()
    ran = {
        TYPICAL_GRAPHS[name].kind
        for graphs in records.values()
        for name, item in graphs.items()
        if item["said"] == AGREES
    }
    lines = [
        f"{len(OPERATION_KINDS)} kinds: {len(found)} with a method, {len(INTERPRETED)} in the interpreter, "
        f"{len(FRONTEND_METHODS)} with",
        f"a name in cudnn-frontend, {len(supported)} supported, {len(ran)} run on a GPU.",
        "",
        f"| operation | builder | interpreter | {' | '.join(('cudnn-frontend', 'described GPUs', *records))} |",
        "|---" * (5 + len(records)) + "|",
    ]
    for kind in sorted(OPERATION_KINDS):
        methods = dict.fromkeys(case.method for case in TYPICAL_GRAPHS.values() if case.kind is kind)
        runs = "yes" if kind in INTERPRETED else "no"
        cells = (
            kind.name.removeprefix("OPERATION_"),
            ", ".join(f"`{name}`" for name in methods),
            f"{runs}, except {_GRAPHS_THE_INTERPRETER_REFUSES[kind]}"
            if kind in _GRAPHS_THE_INTERPRETER_REFUSES
            else runs,
            (", ".join(f"`{name}`" for name in FRONTEND_METHODS.get(kind, ())) or "none")
            + (", in parts" if kind in KINDS_WRITTEN_AS_SEVERAL_OPERATIONS else ""),
            _describe_supported_gpus(kind),
            *(_describe_gpu_runs(kind, graphs) for graphs in records.values()),
        )
        lines.append(_format_table_row(*cells))
    return "\n".join(lines)


def _format_table_row(*cells: str) -> str:
    """Return a table row, with escaped ``|`` in cells."""
    return f"| {' | '.join(cell.replace('|', ESCAPED_BAR) for cell in cells)} |"


def make_graphs_table() -> str:
    """Return the table of the typical graphs in tests/support/typical_graphs.py."""
    records = read_gpu_run_outcomes()
    lines = [
        f"| graph | operation | {' | '.join(('described GPUs', 'reason of a refusal', *records))} |",
        "|---" * (4 + len(records)) + "|",
    ]
    for name, case in TYPICAL_GRAPHS.items():
        kind, words = case.kind.name.removeprefix("OPERATION_"), case.refused and f"`{case.refused}`"
        ran = (_describe_largest_error(graphs.get(name, {})) for graphs in records.values())
        lines.append(_format_table_row(name, kind, ", ".join(case.supported) or "none", words, *ran))
    return "\n".join(lines)


def make_support_table() -> str:
    """Return the table of operations by architecture, with the cuDNN versions that support them."""
    found = read_support_table()
    lines = [
        f"cuDNN {', '.join(found.versions)} for CUDA 12, full wheels.",
        "",
        f"| operation | {' | '.join(target.replace('sm', 'sm_') for target in found.targets)} |",
        "|---" * (1 + len(found.targets)) + "|",
    ]
    for kind in sorted(OPERATION_KINDS):
        graphs = [name for name, case in TYPICAL_GRAPHS.items() if case.kind is kind]
        cells = (describe_supporting_versions(found, graphs, target) for target in found.targets)
        lines.append(_format_table_row(kind.name.removeprefix("OPERATION_"), *cells))
    return "\n".join(lines)


def make_block_scales_table() -> str:
    """Return the table of graphs with block scales."""
    lines = ["| graph | engine configs on b200 |", "|---|---|"]
    for name, (count, engines) in BLOCK_SCALED_ENGINES.items():
        many = f"{count} of engine{'s' if len(engines) > 1 else ''} {', '.join(map(str, engines))}"
        lines.append(f"| {name} | {many} |")
    return "\n".join(lines)


def _describe_largest_error(found: Mapping[str, Any]) -> str:
    """Return the largest relative error of a graph that agrees with the interpreter, or another outcome."""
    said = describe_gpu_run_outcome(found)
    return f"{max(item['relative'] for item in found['outputs'].values()):.0e}" if said == AGREES else said


def make_operations_page() -> str:
    """Return docs/operations.md with its tables up to date."""
    page = PAGE_PATH.read_text(encoding="utf-8")
    tables = {
        "kinds": make_operations_table,
        "support": make_support_table,
        "graphs": make_graphs_table,
        "blocks": make_block_scales_table,
    }
    for mark, table in tables.items():
        start, end = f"<!-- {mark} -->\n", f"\n<!-- end of {mark} -->"
        before, _, rest = page.partition(start)
        page = f"{before}{start}{table()}{end}{rest.partition(end)[2]}"
    return page
