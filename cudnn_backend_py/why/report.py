"""Reports on a watched program: each kind of call, what excluded cuDNN, and the remedy, as text, JSON and HTML."""

from __future__ import annotations

import html
import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from ..printable import printable
from .calls import CallSite, Machine, TorchBackendChoice, TorchCall
from .conditions import Blocker, find_torch_issues
from .query_cudnn import CallVerdict

__all__ = ["Finding", "WhyReport"]

SCHEMA = "cudnn-backend-py/why"
SCHEMA_VERSION = 1
NO_BACKEND_ERROR = "No available kernel. Aborting execution."  # torch's, of the dispatch of the attention


@dataclass(frozen=True, kw_only=True)
class Finding:
    """Attention calls with equal arguments at one line of a program, and why cuDNN did or did not compute them.

    ``blocker`` is the first thing that kept cuDNN out, None where cuDNN was chosen (or would be, on a described GPU);
    ``also`` are gates after it that would not have let the call pass either. ``side`` is what cuDNN says itself of
    the call with the remedy, ``cured`` what that changes. ``times`` are milliseconds by backend.
    """

    call: TorchCall
    place: CallSite
    count: int
    threads: tuple[str, ...]
    compiled: bool
    answer: TorchBackendChoice
    blocker: Blocker | None
    also: tuple[Blocker, ...] = ()
    side: CallVerdict | None = None
    cured: str = ""
    times: Mapping[str, Mapping[str, float]] = field(default_factory=dict)

    @property
    def uses_cudnn(self) -> bool:
        """Whether cuDNN computes the call, by torch's own answer if available."""
        return self.blocker is None

    @property
    def fails(self) -> bool:
        """Whether torch would end the call with an error on a GPU: only cuDNN is allowed, or nothing."""
        allowed = self.call.switches
        is_only_cudnn_allowed = not (allowed.flash or allowed.efficient or allowed.math)
        is_answered = self.answer.choice is not None or bool(self.answer.error)
        is_sure = self.blocker is not None and self.blocker.sure
        return is_sure and is_only_cudnn_allowed and not is_answered and self.call.kind == "sdpa"

    def to_dict(self) -> dict[str, Any]:
        """Return the finding as plain data."""
        data = asdict(self)
        faults = list(find_torch_issues(self.call)) if self.uses_cudnn else []
        return {
            "uses_cudnn": self.uses_cudnn,
            **data,
            "torch_faults": faults,
            "place": {**asdict(self.place), "text": str(self.place)},
        }


@dataclass(kw_only=True)
class WhyReport:
    """The result of ``why_not_cudnn``, complete when its block ends; ``str`` gives the text report.

    ``unseen`` says what it could not see, each a sentence.
    """

    machine: Machine
    findings: tuple[Finding, ...]
    unseen: tuple[str, ...] = ()
    target: str = ""

    @property
    def blocked(self) -> tuple[Finding, ...]:
        """The calls that cuDNN does not compute, most frequent first."""
        return tuple(one for one in self.findings if not one.uses_cudnn)

    def to_dict(self) -> dict[str, Any]:
        """Return the report as plain data."""
        return {
            "schema": SCHEMA,
            "version": SCHEMA_VERSION,
            "machine": asdict(self.machine),
            "target": self.target,
            "findings": [one.to_dict() for one in self.findings],
            "unseen": list(self.unseen),
        }

    def to_json(self) -> str:
        """Return the report as JSON."""
        return json.dumps(_to_strict_json(self.to_dict()), indent=2, allow_nan=False) + "\n"

    def __str__(self) -> str:
        lines = [*_format_heading(self)]
        for number, one in enumerate(self.findings, 1):
            lines += ["", *_format_finding(number, one)]
        lines += ["", *(f"not observed: {one}" for one in self.unseen)] if self.unseen else []
        return "\n".join(printable(line) for line in lines) + "\n"

    def to_html(self) -> str:
        """Return the report as an HTML page that loads nothing from the network."""
        return _render_page(self)


def _to_strict_json(value: Any) -> Any:
    """Replace numbers that JSON does not allow, such as a scale of nan, by texts in plain data."""
    if isinstance(value, Mapping):
        return {name: _to_strict_json(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_to_strict_json(item) for item in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def _format_version(numbers: Sequence[int] | None) -> str:
    return "none" if numbers is None else ".".join(map(str, numbers))


def _format_machine(machine: Machine) -> str:
    torch = _format_version(machine.torch) if any(machine.torch) else "not imported"
    said = [f"torch {torch}", f"cuDNN {_format_version(machine.cudnn)}"]
    said += [f"CUDA {_format_version(machine.cuda)}"] if machine.cuda else []
    said.append(f"{machine.gpu or 'no GPU'}" + (f" (sm_{machine.sm})" if machine.sm else ""))
    said += [f"{name}={value}" for name, value in machine.environment.items()]
    return ", ".join(said)


def _format_heading(report: WhyReport) -> list[str]:
    calls, taken = (
        sum(one.count for one in report.findings),
        sum(one.count for one in report.findings if one.uses_cudnn),
    )
    if not report.findings:
        first = "no attention call was observed"
    else:
        verb = "would be computed" if report.target else "computed"
        first = f"{calls} call{'s' * (calls != 1)} of attention, {taken} of them {verb} by cuDNN"
        gates = Counter[str]()
        for one in report.blocked:
            gates[one.blocker.gate if one.blocker else ""] += one.count
        first += f"; excluded by: {', '.join(f'{gate} {count}' for gate, count in gates.most_common())}" * bool(gates)
    where = f"judged for {report.target}: " if report.target else ""
    return [f"why not cuDNN? {first}", f"{where}{_format_machine(report.machine)}"]


def _format_title(one: Finding) -> str:
    how = "compiled, " if one.compiled else ""
    threads = f" in {len(one.threads)} threads" if len(one.threads) > 1 else ""
    times = "1 time" if one.count == 1 else f"{one.count} times"
    return f"{'cuDNN' if one.uses_cudnn else 'not cuDNN'}: {one.place}, {how}{times}{threads}"


def _list_labels_and_texts_of_finding(one: Finding) -> list[tuple[str, str]]:
    """Return a finding as pairs of label and text."""
    facts = [("called from", one.place.program)] if one.place.program else []
    facts.append((one.call.kind, str(one.call)))
    if one.answer.choice is not None:
        facts.append(("torch chose", one.answer.choice))
    elif one.answer.error:
        facts.append(("torch's error", one.answer.error))
    if one.blocker is not None:
        facts.append((f"excluded by ({one.blocker.gate})", str(one.blocker)))
        facts += [("torch's message", word) for word in one.blocker.words]
        facts += [("remedy", one.blocker.cure)] if one.blocker.cure else []
        facts.append(("source", one.blocker.source))
    if one.fails:
        facts.append(("fails on this GPU", f"no other backend is allowed, so torch raises {NO_BACKEND_ERROR!r}"))
    facts += [(f"also excluded by ({gate.gate})", f"{gate}; {gate.cure}") for gate in one.also]
    facts += [("known issue of torch", fault) for fault in find_torch_issues(one.call)] if one.uses_cudnn else []
    if one.side is not None:
        facts += _list_labels_and_texts_of_verdict(one.side, one.cured)
    facts += _format_times(one)
    return facts


def _list_labels_and_texts_of_verdict(side: CallVerdict, cured: str) -> list[tuple[str, str]]:
    said = side.outcome + (f" on {side.target}, cuDNN {side.cudnn}" if side.cudnn else "")
    facts = [("cuDNN itself", f"{said}{f', {cured}' if cured else ''}")]
    facts += [("cause", side.why)] * bool(side.why) + [("fix", side.cure)] * bool(side.cure)
    facts += [("known issue", fault) for fault in side.faults]
    if side.plan_s is not None:
        facts.append(
            ("first call", f"judging it and building its plan took {side.plan_s:.2f} s here, once for each shape")
        )
    return facts


def _format_times(one: Finding) -> list[tuple[str, str]]:
    facts = []
    what = "forward and backward" if one.call.training else "forward"
    for name, figures in sorted(one.times.items(), key=lambda item: item[1]["ms"]):
        facts.append(
            (f"{name}", f"{figures['ms']:.3f} ms {what}, the first call of a new shape {figures['first_ms']:.1f} ms")
        )
    return facts


def _format_finding(number: int, one: Finding) -> list[str]:
    return [
        f"{number}. {_format_title(one)}",
        *(f"   {label}: {text}" for label, text in _list_labels_and_texts_of_finding(one)),
    ]


_STYLE = (
    "body{font:15px/1.5 system-ui,sans-serif;margin:2rem auto;max-width:70rem;padding:0 1rem;background:#fff}"
    "article{border-left:4px solid #b3261e;padding:.2rem 1rem;margin:1rem 0;background:#fafafa}"
    "article.ok{border-color:#1b7a3d}dt{font-weight:600}dd{margin:0 0 .3rem 0;overflow-wrap:anywhere}h2{font-size:1rem}"
)


def _render_page(report: WhyReport) -> str:
    say = html.escape
    parts = [
        "<!doctype html>",
        '<html lang="en"><head><meta charset="utf-8"><title>why not cuDNN?</title>',
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">",
        f"<style>{_STYLE}</style></head><body>",
        f"<h1>{say(printable(_format_heading(report)[0]))}</h1><p>{say(printable(_format_heading(report)[1]))}</p>",
    ]
    for number, one in enumerate(report.findings, 1):
        kind = ' class="ok"' if one.uses_cudnn else ""
        rows = "".join(
            f"<dt>{say(printable(label))}</dt><dd>{say(printable(text))}</dd>"
            for label, text in _list_labels_and_texts_of_finding(one)
        )
        parts.append(f"<article{kind}><h2>{number}. {say(printable(_format_title(one)))}</h2><dl>{rows}</dl></article>")
    parts += [f"<p>not observed: {say(printable(one))}</p>" for one in report.unseen]
    return "\n".join([*parts, "</body></html>", ""])
