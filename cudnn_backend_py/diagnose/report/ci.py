"""Verdicts for continuous integration: JUnit XML and GitHub annotations."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from ...printable import printable_lines
from ..surveys.matrix import Matrix
from ..verdict import Outcome, Verdict
from .text import render_text

__all__ = ["Case", "cases", "github_annotations", "junit_xml"]

# What XML 1.0 has no way to write.
_NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One test case: a graph on a target with a cuDNN version.

    Attributes
    ----------
    graph, target, version
        What was queried.
    state
        ``passed``, ``failed`` (the answer is not the wanted one) or ``error`` (there is no answer).
    code, message, text
        Of a case that did not pass: name of the fault, one line, and everything there is to say.
    warnings
        Lines that are worth a look although the case passed: known issues.
    remarks
        Lines that JUnit shows next to those: of the environment, and of what was not asked. Of matrices only: the text
        of a verdict has them.
    """

    graph: str
    target: str
    version: str
    state: str
    code: str = ""
    message: str = ""
    text: str = ""
    warnings: tuple[str, ...] = ()
    remarks: tuple[str, ...] = ()


_Results = Matrix | Iterable[Verdict | Case]
_STATES = {Outcome.SUPPORTED: "passed", Outcome.NOT_SUPPORTED: "failed", Outcome.NOT_JUDGED: "error"}


def cases(results: _Results) -> Iterator[Case]:
    """Yield one case for each result: supported passes, not supported fails, not judged is an error.

    What was wanted may be something else than "supported": whoever knows gives :class:`Case` values, which stay as
    they are.
    """
    if isinstance(results, Matrix):
        for (graph, target, version), cell in results.cells.items():
            case = Case(
                graph=graph,
                target=target,
                version=version,
                state=_STATES[cell.outcome],
                warnings=cell.hazards,
                remarks=cell.remarks,
            )
            yield _explain(case, cell.outcome, cell.cause, cell.headline, f"came to stage {cell.stage!r}")
        return
    for item in results:
        yield item if isinstance(item, Case) else _make_case(item)


def _make_case(verdict: Verdict) -> Case:
    outcome, cause = verdict.outcome, verdict.cause
    case = Case(
        graph=verdict.graph,
        target=verdict.target,
        version=verdict.cudnn,
        state=_STATES[outcome],
        warnings=verdict.hazards,
    )
    code, headline = ("", "") if cause is None else (cause.code, cause.headline)
    return _explain(case, outcome, code, headline, render_text(verdict))


def _explain(case: Case, outcome: Outcome, code: str, headline: str, text: str) -> Case:
    if case.state == "passed":
        return case
    code = code or outcome.replace(" ", "-")
    return replace(case, code=code, message=headline or "cuDNN gave no reason", text=text)


def junit_xml(results: _Results, *, suite: str = "cudnn-backend") -> str:
    """Return the results as a JUnit report: a suite per graph, a test case per target and version.

    There are no times in it, so equal results give equal text.
    """
    by_graph: dict[str, list[Case]] = {}
    for case in cases(results):
        by_graph.setdefault(case.graph, []).append(case)
    everything = [case for group in by_graph.values() for case in group]
    root = ET.Element("testsuites", _format_attributes(suite, everything))
    for graph, group in by_graph.items():
        part = ET.SubElement(root, "testsuite", _format_attributes(graph, group))
        for case in group:
            name = f"{case.target}, cuDNN {case.version}"
            element = ET.SubElement(
                part, "testcase", classname=_strip_styles(f"{suite}.{graph}"), name=_strip_styles(name)
            )
            if case.state != "passed":
                kind = "failure" if case.state == "failed" else "error"
                child = ET.SubElement(element, kind, message=_strip_styles(case.message), type=_strip_styles(case.code))
                child.text = _strip_styles(case.text)
            if lines := (*case.warnings, *case.remarks):
                ET.SubElement(element, "system-out").text = _strip_styles("\n".join(lines))
    ET.indent(root)
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{ET.tostring(root, encoding="unicode")}\n'


def _format_attributes(name: str, group: list[Case]) -> dict[str, str]:
    return {
        "name": _strip_styles(name),
        "tests": str(len(group)),
        "failures": str(sum(case.state == "failed" for case in group)),
        "errors": str(sum(case.state == "error" for case in group)),
        "skipped": "0",
    }


def _strip_styles(text: str) -> str:
    return _NOT_XML.sub("\ufffd", text)


def github_annotations(results: _Results, *, files: Mapping[str, str] | None = None) -> list[str]:
    """Return a workflow command for each case that did not pass (``::error``) and each known issue (``::warning``).

    Parameters
    ----------
    results
        As for :func:`junit_xml`.
    files
        The file an annotation belongs to, by graph name; without one it belongs to the run.

    Notes
    -----
    Source of form and escapes: GitHub, "Workflow commands for GitHub Actions", and the toolkit's ``command.ts``.
    """
    lines = []
    for case in cases(results):
        file = (files or {}).get(case.graph, "")
        where = f"{case.graph} on {case.target}, cuDNN {case.version}"
        if case.state != "passed":
            code = f" [{case.code}]" if case.code else ""
            lines.append(_format_command("error", file, where, f"{case.message or case.state}{code}"))
        lines += [_format_command("warning", file, f"known issue: {where}", warning) for warning in case.warnings]
    return lines


def _format_command(kind: str, file: str, title: str, message: str) -> str:
    given = {"file": file, "title": title}
    properties = ",".join(f"{name}={_escape_property(value)}" for name, value in given.items() if value)
    return f"::{kind} {properties}::{_escape_message(message)}"


def _escape_message(text: str) -> str:
    return printable_lines(text).replace("%", "%25").replace("\n", "%0A")


def _escape_property(text: str) -> str:
    return _escape_message(text).replace(":", "%3A").replace(",", "%2C")
