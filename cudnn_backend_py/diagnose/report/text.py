"""Render a verdict as text with every candidate and all of cuDNN's messages.

What a text holds that is not ours, a name or cuDNN's message, is shown as :mod:`cudnn_backend_py.printable` has it.
"""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.text import Text

from ...printable import make_lines_printable, printable
from ...terminal import render_as_text
from ..verdict import Candidate, Outcome, Verdict

__all__ = ["make_indented_lines", "make_line", "render_text", "render_verdict"]

OUTCOME_STYLES = {
    Outcome.SUPPORTED: "bold green",
    Outcome.NOT_SUPPORTED: "bold red",
    Outcome.NOT_JUDGED: "bold yellow",
}
_STATE_STYLES = {"supported": "green", "built": "green"} | dict.fromkeys(
    ("refused", "build failed", "cannot load", "crashed"), "red"
)


def make_line(text: str, style: str = "") -> Text:
    """Return a text as one line for rich, with a style."""
    return Text(make_lines_printable(printable(text)), style)


def make_indented_lines(text: str, columns: int = 0, style: str = "") -> Text:
    """Return a text as indented lines for rich, with a style."""
    return Text("\n".join(" " * columns + one for one in make_lines_printable(text).splitlines()), style)


def _format_label(label: str, text: str) -> Text:
    return Text.assemble((f"{label + ':':<13}", "bold"), make_line(text))


def _format_candidate(candidate: Candidate) -> list[RenderableType]:
    knobs = " ".join(f"{key.removeprefix('CUDNN_KNOB_TYPE_')}={value}" for key, value in candidate.knobs.items())
    head = make_line(f"{candidate.mode:<9}")
    head.append(candidate.tag or "engine not named", "bold").append(make_line(f" ({knobs}) " if knobs else " "))
    head.append(make_line(candidate.state, _STATE_STYLES.get(candidate.state, "")))
    notes = [*candidate.behavior_notes, *candidate.numerical_notes]
    if candidate.workspace_bytes is not None:
        shared = candidate.shared_memory_bytes
        notes[:0] = [f"shared memory {shared} bytes per block"] if shared is not None else []
        notes.insert(0, f"workspace {candidate.workspace_bytes} bytes")
    if notes:
        head.append(make_line(f" ({', '.join(notes)})", "dim"))
    parts: list[RenderableType] = [head, *(make_indented_lines(str(one), 4, "dim") for one in candidate.kernels or ())]
    for depth, reason in enumerate(candidate.reasons):
        parts.append(make_indented_lines(str(reason), 4 if depth == 0 else 6, "" if depth == 0 else "dim"))
    return parts


def render_verdict(verdict: Verdict) -> Group:
    """Return the verdict for rich: outcome, cause, then every candidate with cuDNN's message."""
    where = f"{verdict.target_title} (sm_{verdict.sm})" if verdict.sm else verdict.target_title
    parts: list[RenderableType] = [
        Text.assemble(
            (verdict.outcome.value.upper(), OUTCOME_STYLES[verdict.outcome]),
            make_line(
                f"{verdict.support_note}{verdict.build_note}: graph {verdict.graph!r} on {where}, cuDNN {verdict.cudnn}"
            ),
        )
    ]
    if verdict.cause is not None:
        cause = verdict.cause
        parts.append(_format_label("cause", f"[{cause.basis.value}] {cause.headline}"))
        if cause.detail:
            parts.append(make_indented_lines(cause.detail, 13))
        if cause.remedy:
            parts.append(_format_label(cause.label, cause.advice.replace("\n", " ")))
        if cause.versions:
            parts.append(_format_label("versions", cause.versions.replace("\n", " ")))
        parts.append(_format_label("rule", cause.code))
    if verdict.only_fallback is not None and verdict.only_fallback.remedy:
        parts.append(_format_label("other modes", verdict.only_fallback.advice.replace("\n", " ")))
    parts.append(_format_label("heuristics", f"{', '.join(verdict.modes)}; last stage reached: {verdict.stage}"))
    if told := [str(stage) for stage in verdict.stages if stage.detail]:
        parts.append(_format_label("stages", "; ".join(told)))
    if verdict.first is not None:
        parts.append(_format_label("config", f"{verdict.first.tag}, a config {verdict.first.origin}"))
    if verdict.every_engine:
        parts.append(_format_label("engines", verdict.every_engine))
        parts += [make_indented_lines(str(check), 13) for check in verdict.engines]
    if verdict.shapes:
        parts.append(_format_label("shapes", verdict.shapes))
    if verdict.seen:
        parts.append(_format_label("seen on", verdict.seen))
    parts += [_format_label("known issue", hazard) for hazard in verdict.hazards]
    parts += [_format_label("lint", danger) for danger in verdict.lint]
    parts += [_format_label("frameworks", f"{name} {does}") for name, does in verdict.frameworks.items()]
    parts.append(_format_label("judged by", f"{verdict.library or 'no library'}, driver: {verdict.driver}"))
    if verdict.control is not None:
        state = "supported" if verdict.control.supported else "REFUSED"
        parts.append(
            _format_label(
                "control",
                f"graph {verdict.control.graph!r} is {state} here: the environment "
                + ("can judge" if verdict.control.supported else "cannot judge"),
            )
        )
        parts += [make_indented_lines(str(reason), 13, "dim") for reason in verdict.control.reasons]
    parts += [_format_label("environment", note) for note in verdict.environment]
    parts += [_format_label("limits", note) for note in verdict.limits]
    parts.append(Text(""))
    parts.append(make_indented_lines(verdict.graph_text))
    if verdict.candidates:
        taken = sum(candidate.state in ("supported", "built") for candidate in verdict.candidates)
        parts.append(
            Text(
                f"\n{taken} of {len(verdict.candidates)} engine configs supported. cuDNN's messages, innermost first:",
                "bold",
            )
        )
        for candidate in verdict.candidates:
            parts += _format_candidate(candidate)
    elif verdict.stage == "heuristics":
        silence = "" if verdict.reasons else " and gave no reason"
        parts.append(Text(f"\ncuDNN offered no engine config{silence}", "bold"))
    if verdict.reasons:
        parts.append(Text("\ncuDNN's messages that name no engine config", "bold"))
        parts += [make_indented_lines(str(reason), 4) for reason in verdict.reasons]
    return Group(*parts)


def render_text(verdict: Verdict, width: int = 160) -> str:
    """Return the verdict as plain text."""
    return render_as_text(render_verdict(verdict), width=width)
