"""``Contribution``: the results of verifying one GPU, as counts small enough to be submitted in a form.

A contribution comes from anyone, so every field is checked: names are known ones, texts are short and have no line
ends, and numbers fit each other.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import date
from typing import Any, Self

from ..errors import UsageError
from ..printable import format_in_angle_brackets, printable
from ..system.typed_data import convert_to_type
from ..system.version import __version__, parse_version_numbers
from ..tuning.trial.trial import STATES
from .compare import ASPECTS
from .graphs import FAMILIES, hash_verification_graphs
from .verify import RunOutcome, Verification

__all__ = ["SCHEMA", "Contribution"]

SCHEMA, SCHEMA_VERSION = "cudnn-backend-py/hardware-evidence", 1
_COUNTS = ("graphs", "agree", "built", *ASPECTS)
_GPU = re.compile(r"[A-Za-z0-9][A-Za-z0-9 ()/.+-]{0,79}", re.ASCII)
_CODE = re.compile(r"[a-z0-9-]{1,60}", re.ASCII)
_VERSION = re.compile(r"[0-9]{1,3}(\.[0-9]{1,4}){1,3}", re.ASCII)
_SHA256 = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Contribution:
    """The counted results of a verification, for one GPU with one cuDNN version.

    Attributes
    ----------
    gpu, sm
        The name of the GPU, as the driver says it, and its architecture, 90 for sm_90.
    cudnn, cuda
        The version, and the major version of CUDA that cuDNN was built for.
    graphs_sha256
        Of the graphs: counts of other graphs cannot be compared.
    families
        For each family how many graphs it has, how many agree, and how many differ in each aspect.
    runs
        For each family how many graphs were run next to the interpreter, by the state of their trial.
    known_issues
        The state of the trial of each known issue that was tried.
    """

    schema: str = SCHEMA
    version: int = SCHEMA_VERSION
    cudnn_backend_py: str
    date: str
    gpu: str
    sm: int
    cudnn: str
    cuda: int
    driver: int
    graphs_sha256: str
    families: Mapping[str, Mapping[str, int]]
    runs: Mapping[str, Mapping[str, int]]
    known_issues: Mapping[str, str]

    @classmethod
    def from_verification(cls, found: Verification) -> Self:
        """Make a contribution from a verification, without data that identifies the machine.

        Raises
        ------
        UsageError
            ``no-evidence`` if there is no GPU in it, or the time did not suffice for all graphs.
        """
        live = found.sides.get("live")
        if live is None or live.driver is None or not found.is_complete:
            raise UsageError(
                "only a complete verification on a real GPU can be contributed",
                code="no-evidence",
                fix="run it where the GPU is, without --target and with more time",
            )
        data = found.to_dict()
        return cls(
            cudnn_backend_py=__version__,
            date=data["date"],
            gpu=str(live.device["deviceName"]),
            sm=live.sm,
            cudnn=live.cudnn,
            cuda=live.cuda // 1000,
            driver=live.driver,
            graphs_sha256=hash_verification_graphs([row.case for row in found.rows]),
            families=found.families(),
            runs=_count_run_states(found.compared),
            known_issues={item.name: item.state for item in found.known_issues},
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the contribution as plain data for JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls, data: Any) -> Contribution:
        """Read a contribution from the data of :meth:`to_dict`, which is not trusted.

        Raises
        ------
        UsageError
            ``evidence-damaged``, with the field that is wrong.
        """
        found = convert_to_type(cls, data, "the evidence", code="evidence-damaged")
        for field, is_right in found._check_each_field().items():
            if not is_right:
                value = getattr(found, field, None)
                shown = (
                    "impossible"
                    if value is None
                    else f"{format_in_angle_brackets(printable(str(value)))}, which no verification writes"
                )
                raise UsageError(
                    f"the evidence is damaged: {field} {'are' if value is None else 'is'} {shown}",
                    code="evidence-damaged",
                    fix="copy the file again, as 'cudnn-backend target verify --contribute' wrote it",
                )
        return found

    def _check_each_field(self) -> dict[str, bool]:
        graphs = {family: count for family, (count, _) in FAMILIES.items()}
        counts = self.families.values()
        states = [state for family in self.runs.values() for state in family]
        return {
            "schema": (self.schema, self.version) == (SCHEMA, SCHEMA_VERSION),
            "cudnn_backend_py": _VERSION.fullmatch(self.cudnn_backend_py) is not None,
            "date": _is_date(self.date),
            "gpu": _GPU.fullmatch(self.gpu) is not None,
            "sm": 50 <= self.sm < 1000,
            "cudnn": _VERSION.fullmatch(self.cudnn) is not None and parse_version_numbers(self.cudnn) >= (9, 8),
            "cuda": 12 <= self.cuda < 100,
            "driver": 12000 <= self.driver < 100000,
            "graphs_sha256": _SHA256.fullmatch(self.graphs_sha256) is not None,
            "families": self.families.keys() == graphs.keys(),
            "counts of families": all(
                sorted(one) == sorted(_COUNTS) and all(0 <= number <= one["graphs"] for number in one.values())
                for one in counts
            ),
            "graphs of families": {family: one.get("graphs") for family, one in self.families.items()} == graphs,
            "runs": self.runs.keys() <= graphs.keys() and all(map(_is_run_state_or_error_code, states)),
            "counts of runs": all(0 < number <= 1000 for one in self.runs.values() for number in one.values()),
            "known_issues": all(
                _CODE.fullmatch(code) is not None and _is_run_state_or_error_code(state)
                for code, state in self.known_issues.items()
            ),
        }


def _count_run_states(compared: list[RunOutcome]) -> dict[str, dict[str, int]]:
    counts: dict[str, Counter[str]] = {}
    for item in compared:
        counts.setdefault(item.name.rpartition(" ")[0], Counter())[item.state] += 1
    return {family: dict(states) for family, states in counts.items()}


def _is_run_state_or_error_code(state: str) -> bool:
    return state in STATES or _CODE.fullmatch(state) is not None


def _is_date(text: str) -> bool:
    try:
        return date.fromisoformat(text).isoformat() == text
    except ValueError:
        return False
