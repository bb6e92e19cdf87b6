"""The support table: cuDNN's verdict on every option of attention, by architecture."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from ...errors import GraphError, UsageError
from ...generated.enums import DataType
from ...graph import Graph
from ...graph.attention import Attention, Implementation, SoftCap, sdpa_backward, sdpa_forward
from ...graph.attention.builder import SINGLE_OPS_SINCE
from ...native import library
from ...plans.refusals import find_deepest_reason_among_configs
from ...printable import format_in_angle_brackets
from ...system.typed_data import read_fields
from ...system.untrusted_files import parse_json
from ...system.version import VersionTuple
from ...target import Profile, find_profile
from ...versions.judging_environment import JudgingEnvironment, read_judging_environment
from ..judges import Judge, Query
from ..verdict import CRASH_CODE, Outcome, Verdict

__all__ = [
    "BASE_OPTIONS",
    "GRAPH_FORMS",
    "TARGETS",
    "AttentionRow",
    "SupportCell",
    "SupportTable",
    "attention_rows",
    "support_table",
]

SCHEMA = "cudnn-backend-py/attention-support"
SCHEMA_VERSION = 1

TARGETS = ("sm80", "sm86", "sm89", "sm90", "sm100", "sm103", "sm120")
GRAPH_FORMS = ("composite", "single operations", "unified")

SupportAnswer = Literal["yes", "no", "?", "-", "crash"]
PassDirection = Literal["forward", "backward"]


@dataclass(frozen=True, slots=True)
class AttentionRow:
    """One row of the support table: ``BASE_OPTIONS`` plus some `options` of :class:`Attention`, forward or backward."""

    direction: PassDirection
    options: Mapping[str, Any]

    @property
    def problem(self) -> Attention:
        """The attention problem that is judged."""
        return Attention(**{**BASE_OPTIONS, **self.options})

    def make_graph(self, form: str, version: VersionTuple) -> Graph:
        """Return the graph in one of ``GRAPH_FORMS`` for a cuDNN version, ignoring known issues."""
        make = sdpa_forward if self.direction == "forward" else sdpa_backward
        implementation: Implementation = "unified" if form == "unified" else "composite"
        wanted = None if form == "composite" else version
        return make(self.problem, implementation=implementation, version=wanted, allow_hazards=True)

    def options_to_json(self) -> dict[str, Any]:
        """Return the options in JSON form."""
        return {name: _format_option(value) for name, value in self.options.items()}


def _format_option(value: Any) -> Any:
    if isinstance(value, DataType):
        return value.name
    if isinstance(value, Mapping):
        return {key: _format_option(item) for key, item in value.items()}
    if isinstance(value, tuple):
        return list(value)
    return value if isinstance(value, str | int | float) else repr(value)


# rows

BASE_OPTIONS: dict[str, Any] = {"batch": 2, "heads": 4, "seq_q": 256, "head_dim": 64, "stats": True}

_CAUSAL_OPTIONS = {"causal": True}
_PADDING_OPTIONS = {"padding": True}
_BOTTOM_RIGHT_OPTIONS = {"alignment": "bottom_right", "seq_q": 128, "seq_kv": 256}
_WINDOW_OPTIONS = {"causal": True, "left_bound": 64}
_GQA_OPTIONS = {"kv_heads": 2}
_PAGED_OPTIONS = {"padding": True, "page_size": 64, "stats": False}
_SOFT_CAP_OPTIONS = {"score_modifier": SoftCap(30.0)}
_FULL_BIAS_OPTIONS = {"bias": (2, 4, 256, 256)}
_HEAD_BIAS_OPTIONS = {"bias": (1, 4, 256, 256)}
_MAX_TOTAL_OPTIONS = {"max_total_seq_q": 400, "max_total_seq_kv": 400}
_E4M3_OPTIONS = {"data_type": DataType.FP8_E4M3}
_MXFP8_OPTIONS = {"data_type": DataType.FP8_E4M3, "output_type": DataType.BFLOAT16, "mx": True, "head_dim": 128}

_SHARED_ROWS: dict[str, dict[str, Any]] = {
    "plain": {},
    "bfloat16": {"data_type": DataType.BFLOAT16},
    "grouped heads": _GQA_OPTIONS,
    "one K/V head": {"kv_heads": 1},
    "V heads of its own": {"kv_heads": 2, "v_heads": 1},
    "head dim 40": {"head_dim": 40},
    "head dim 96": {"head_dim": 96},
    "head dim 100": {"head_dim": 100},
    "head dim 128": {"head_dim": 128},
    "head dim 192, of V 128": {"head_dim": 192, "head_dim_v": 128},
    "head dim 256": {"head_dim": 256},
    "s_q 1": {"seq_q": 1, "seq_kv": 256},
    "s 200": {"seq_q": 200},
    "layout bhsd": {"layout": "bhsd"},
    "layout sbhd": {"layout": "sbhd"},
    "layout packed": {"layout": "packed"},
    "scale in a tensor": {"scale": "tensor"},
    "no scale": {"scale": "none"},
    "causal": _CAUSAL_OPTIONS,
    "causal, bottom right": _CAUSAL_OPTIONS | _BOTTOM_RIGHT_OPTIONS,
    "right bound": {"right_bound": 64},
    "left bound": {"left_bound": 64},
    "window": _WINDOW_OPTIONS,
    "window, bottom right": _WINDOW_OPTIONS | _BOTTOM_RIGHT_OPTIONS,
    "padding": _PADDING_OPTIONS,
    "padding, causal": _PADDING_OPTIONS | _CAUSAL_OPTIONS,
    "padding, window, bottom right": _PADDING_OPTIONS | _WINDOW_OPTIONS | _BOTTOM_RIGHT_OPTIONS,
    "ragged": {"ragged": True},
    "ragged stats": {"ragged": True, "ragged_stats": True},
    "ragged, int64 offsets": {"ragged": True, "ragged_stats": True, "offset_type": DataType.INT64},
    "ragged, causal, grouped heads": {"ragged": True, "ragged_stats": True} | _CAUSAL_OPTIONS | _GQA_OPTIONS,
    "bias": _FULL_BIAS_OPTIONS,
    "bias of heads": _HEAD_BIAS_OPTIONS,
    "bias of all": {"bias": (1, 1, 256, 256)},
    "alibi, causal": {"alibi": True} | _CAUSAL_OPTIONS,
    "soft cap": _SOFT_CAP_OPTIONS,
    "dropout": {"dropout": 0.1},
    "dropout, int32 seed": {"dropout": 0.1, "seed_type": DataType.INT32},
    "sink": {"sink": True},
}

_FORWARD_ROWS: dict[str, dict[str, Any]] = {
    "paged": _PAGED_OPTIONS,
    "paged, pages of 1": _PAGED_OPTIONS | {"page_size": 1},
    "paged, pages of 16": _PAGED_OPTIONS | {"page_size": 16},
    "paged, spare pages": _PAGED_OPTIONS | {"pages_k": 20, "pages_v": 24},
    "paged, causal": _PAGED_OPTIONS | _CAUSAL_OPTIONS,
    "paged, s_q 1": _PAGED_OPTIONS | {"seq_q": 1, "seq_kv": 256},
    "dropout, mask written": {"dropout": 0.1, "rng_dump": True},
    "dropout by a given mask": {"dropout_mask": True},
    "no statistics": {"stats": False},
    "row maximum": {"stats": False, "max": True},
    "row maximum and sum": {"stats": False, "max": True, "sum_exp": True},
    "row maximum, sum and stats": {"max": True, "sum_exp": True},
    "block mask": {"block_mask": True},
    "fp8 e4m3": _E4M3_OPTIONS,
    "fp8 e5m2": {"data_type": DataType.FP8_E5M2},
    "fp8, float16 output": _E4M3_OPTIONS | {"output_type": DataType.HALF},
    "fp8, head dim 128": _E4M3_OPTIONS | {"head_dim": 128},
    "fp8, grouped heads": _E4M3_OPTIONS | _GQA_OPTIONS,
    "fp8, causal": _E4M3_OPTIONS | _CAUSAL_OPTIONS,
    "fp8, padding": _E4M3_OPTIONS | _PADDING_OPTIONS,
    "fp8, ragged": _E4M3_OPTIONS | {"ragged": True},
    "fp8, paged": _E4M3_OPTIONS | _PAGED_OPTIONS,
    "fp8, bias": _E4M3_OPTIONS | _HEAD_BIAS_OPTIONS,
    "fp8, dropout": _E4M3_OPTIONS | {"dropout": 0.1},
    "mxfp8 e4m3, bfloat16 output": _MXFP8_OPTIONS,
    "mxfp8 e5m2, float16 output": _MXFP8_OPTIONS | {"data_type": DataType.FP8_E5M2, "output_type": DataType.HALF},
    "mxfp8, causal": _MXFP8_OPTIONS | _CAUSAL_OPTIONS,
    "mxfp8, grouped heads": _MXFP8_OPTIONS | _GQA_OPTIONS,
}

_FP8_BACKWARD_OPTIONS = _E4M3_OPTIONS | {"head_dim": 128}
_BACKWARD_ROWS: dict[str, dict[str, Any]] = {
    "ragged, bounded totals": {"ragged": True, "ragged_stats": True} | _MAX_TOTAL_OPTIONS,
    "ragged, bounded totals, grouped heads": {"ragged": True, "ragged_stats": True} | _MAX_TOTAL_OPTIONS | _GQA_OPTIONS,
    "bias gradient": _FULL_BIAS_OPTIONS | {"dbias": True},
    "bias gradient of heads": _HEAD_BIAS_OPTIONS | {"dbias": True},
    "sink gradient": {"sink": True, "dsink": True},
    "deterministic": {"deterministic": True},
    "deterministic, causal": {"deterministic": True} | _CAUSAL_OPTIONS,
    "fp8 e4m3": _FP8_BACKWARD_OPTIONS,
    "fp8 e5m2": {"data_type": DataType.FP8_E5M2, "head_dim": 128},
    "fp8, float16 output": _FP8_BACKWARD_OPTIONS | {"output_type": DataType.HALF},
    "fp8, head dim 64": _E4M3_OPTIONS,
    "fp8, grouped heads": _FP8_BACKWARD_OPTIONS | _GQA_OPTIONS,
    "fp8, causal": _FP8_BACKWARD_OPTIONS | _CAUSAL_OPTIONS,
    "fp8, padding": _FP8_BACKWARD_OPTIONS | _PADDING_OPTIONS,
    "fp8, ragged": _FP8_BACKWARD_OPTIONS | {"ragged": True},
    "fp8, dropout": _FP8_BACKWARD_OPTIONS | {"dropout": 0.1},
    "mxfp8 e4m3, bfloat16 output": _MXFP8_OPTIONS,
    "mxfp8, causal": _MXFP8_OPTIONS | _CAUSAL_OPTIONS,
    "mxfp8, grouped heads": _MXFP8_OPTIONS | _GQA_OPTIONS,
}


def attention_rows() -> dict[str, AttentionRow]:
    """Return the rows of the table by name, such as ``forward: causal``, in order."""
    lines: tuple[tuple[PassDirection, dict[str, dict[str, Any]]], ...] = (
        ("forward", _SHARED_ROWS | _FORWARD_ROWS),
        ("backward", _SHARED_ROWS | _BACKWARD_ROWS),
    )
    return {f"{direction}: {name}": AttentionRow(direction, o) for direction, rows in lines for name, o in rows.items()}


# verdicts


@dataclass(frozen=True, slots=True)
class SupportCell:
    """cuDNN's verdict on one attention graph for one GPU.

    ``answer`` is one of

    * ``yes``, with the ``engines`` that support the graph, best first;
    * ``no``, with cuDNN's innermost ``reason``, ``STATUS: words``;
    * ``-``: there is no such graph, since this package writes none or that cuDNN lacks an operation or attribute; the
      reason is this package's ``code: headline``;
    * ``?``: could not be judged, and why;
    * ``crash``: cuDNN ended the process that asked; the reason is the signal and what came on standard error.
    """

    answer: SupportAnswer
    engines: tuple[int, ...] = ()
    reason: str = ""


@dataclass(frozen=True, repr=False)
class SupportTable:
    """The verdicts of one cuDNN version: row -> form -> target -> cell."""

    cudnn: str
    targets: tuple[str, ...]
    cells: Mapping[str, Mapping[str, Mapping[str, SupportCell]]]

    def __repr__(self) -> str:
        return format_in_angle_brackets(
            f"SupportTable of cuDNN {self.cudnn}: {len(self.cells)} rows on {', '.join(self.targets)}"
        )

    @property
    def forms(self) -> tuple[str, ...]:
        """The forms of attention graphs that were judged."""
        return tuple(form for form in GRAPH_FORMS if any(form in row for row in self.cells.values()))

    def all_cells(self) -> Iterable[SupportCell]:
        """Yield every cell."""
        return (cell for row in self.cells.values() for form in row.values() for cell in form.values())

    def to_json(self) -> str:
        """Return the table as JSON with a line for each row and form; reasons are indices into the list ``reasons``."""
        reasons = list(dict.fromkeys(cell.reason for cell in self.all_cells() if cell.reason))
        number = {reason: index for index, reason in enumerate(reasons)}
        rows = attention_rows()
        head = {"schema": SCHEMA, "version": SCHEMA_VERSION, "cudnn": self.cudnn, "targets": self.targets}
        lines = [f"{json.dumps(key)}: {json.dumps(value)}" for key, value in head.items()]
        lines.append(f'"base": {json.dumps(BASE_OPTIONS)}')
        lines.append('"reasons": [\n' + ",\n".join(f"  {json.dumps(reason)}" for reason in reasons) + "\n ]")
        parts = []
        for name, forms in self.cells.items():
            fields = {"options": rows[name].options_to_json()} if name in rows else {}
            fields |= {
                form: {on: _pack_support_cell(cell, number) for on, cell in cells.items()}
                for form, cells in forms.items()
            }
            inner = ",\n".join(f"   {json.dumps(key)}: {_dump_compact_json(value)}" for key, value in fields.items())
            parts.append(f"  {json.dumps(name)}: {{\n{inner}\n  }}")
        lines.append('"rows": {\n' + ",\n".join(parts) + "\n }")
        return "{\n " + ",\n ".join(lines) + "\n}\n"

    @classmethod
    def from_json(cls, text: str) -> SupportTable:
        """Return the table that :meth:`to_json` wrote.

        Raises
        ------
        UsageError
            ``support-table-file``.
        """
        try:
            return cls._from_data(parse_json(text, "the table", code="support-table-file"))
        except (GraphError, UsageError) as error:
            raise UsageError(
                f"this is not a support table: {error.headline}",
                code="support-table-file",
                fix="write one with cudnn-backend attention-table --format json --output FILE",
            ) from error

    @classmethod
    def _from_data(cls, data: Any) -> SupportTable:
        parts = read_fields(_TABLE_FIELDS, data, "the table", code="support-table-file")
        if (parts["schema"], parts["version"]) != (SCHEMA, SCHEMA_VERSION):
            raise UsageError(
                f"its schema is {parts['schema']!r} and its version {parts['version']}, "
                f"{SCHEMA!r} and {SCHEMA_VERSION} are needed",
                code="support-table-file",
            )
        if not re.fullmatch(r"\d{1,3}\.\d{1,3}\.\d{1,3}", parts["cudnn"], re.ASCII):
            raise UsageError(
                f"its cuDNN version is {parts['cudnn']!r}, three numbers such as 9.19.0 are needed",
                code="support-table-file",
            )
        for target in parts["targets"]:
            find_profile(target)
        reasons = parts["reasons"]
        cells = {}
        for name, row in parts["rows"].items():
            kinds = {form: Mapping[str, _PackedSupportCell] for form in GRAPH_FORMS if form in row}
            forms = read_fields(kinds, row, f"row {name!r}", code="support-table-file")
            cells[name] = {
                form: {target: _unpack_support_cell(packed, reasons) for target, packed in cells_of.items()}
                for form, cells_of in forms.items()
            }
        return cls(parts["cudnn"], parts["targets"], cells)


def _dump_compact_json(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"))


def _pack_support_cell(cell: SupportCell, number: Mapping[str, int]) -> dict[str, Any]:
    packed: dict[str, Any] = {"verdict": cell.answer}
    if cell.engines:
        packed["engines"] = cell.engines
    if cell.reason:
        packed["reason"] = number[cell.reason]
    return packed


@dataclass(frozen=True, slots=True)
class _PackedSupportCell:
    """A cell of the JSON file; ``reason`` is an index into the file's list of reasons."""

    verdict: SupportAnswer
    engines: tuple[int, ...] = ()
    reason: int | None = None


_TABLE_FIELDS: dict[str, Any] = {
    "schema": str,
    "version": int,
    "cudnn": str,
    "reasons": tuple[str, ...],
    "targets": tuple[str, ...],
    "rows": Mapping[str, Mapping[str, Any]],
}


def _unpack_support_cell(packed: _PackedSupportCell, reasons: Sequence[str]) -> SupportCell:
    if packed.reason is not None and not 0 <= packed.reason < len(reasons):
        raise UsageError(
            f"a cell refers to reason {packed.reason}, but the table has only {len(reasons)}, counted from 0",
            code="support-table-file",
        )
    return SupportCell(packed.verdict, packed.engines, "" if packed.reason is None else reasons[packed.reason])


def support_table(targets: Iterable[str] = TARGETS, *, rows: Iterable[str] | None = None) -> SupportTable:
    """Judge every attention option for every target, in every form of graph that the cuDNN version has.

    Parameters
    ----------
    targets
        Names of described GPUs.
    rows
        Names of :func:`attention_rows`, all if not given.

    Raises
    ------
    EnvironmentNotReady
        Without a libcudnn.
    UsageError
        ``unknown-target``.

    Notes
    -----
    Loads cuDNN: yes, and in a child process that does the asking, since some of these graphs crash some versions. The
    child finds cuDNN as this process did if that was by the environment. Some 15 ms for each verdict.
    """
    lib = library()
    version = lib.version
    forms = [form for form in GRAPH_FORMS if form != "single operations" or version >= SINGLE_OPS_SINCE]
    profiles = {name: find_profile(name) for name in targets}
    setup = read_judging_environment(None)
    lines = attention_rows()
    wanted = lines if rows is None else {name: lines[name] for name in rows}
    with Judge() as judge:
        cells = {
            name: {
                form: {
                    target: _judge_attention_row(judge, row, form, version, profile, setup)
                    for target, profile in profiles.items()
                }
                for form in forms
            }
            for name, row in wanted.items()
        }
    return SupportTable(lib.version_text, tuple(profiles), cells)


def _judge_attention_row(
    judge: Judge, row: AttentionRow, form: str, version: VersionTuple, profile: Profile, setup: JudgingEnvironment
) -> SupportCell:
    try:
        graph = row.make_graph(form, version)
    except GraphError as error:
        return SupportCell("-", reason=str(error))
    verdict = judge.run_query(Query(graph, profile, setup))
    cause = verdict.cause
    if verdict.supported:
        taken = (item.engine for item in verdict.candidates if item.state in ("supported", "built"))
        return SupportCell("yes", tuple(engine for engine in dict.fromkeys(taken) if engine is not None))
    if cause is not None and cause.code == CRASH_CODE:
        return SupportCell("crash", reason="; ".join([cause.headline, *map(str.strip, cause.detail.splitlines())]))
    if verdict.outcome is Outcome.NOT_JUDGED:
        return SupportCell("?", reason=_describe_refusal_cause(verdict))
    if cause is not None and cause.code.endswith("-newer-than-library"):
        return SupportCell("-", reason=_describe_refusal_cause(verdict))
    return SupportCell("no", reason=_find_innermost_reason(verdict))


def _find_innermost_reason(verdict: Verdict) -> str:
    """Return the innermost reason of the engine config that passed most checks."""
    furthest = find_deepest_reason_among_configs(verdict.candidates)
    if furthest is not None:
        return str(furthest)
    return str(verdict.reasons[0]) if verdict.reasons else _describe_refusal_cause(verdict)


def _describe_refusal_cause(verdict: Verdict) -> str:
    return f"{verdict.cause.code}: {verdict.cause.headline}" if verdict.cause else "cuDNN gave no reason"
