"""Verdicts for continuous integration: JUnit XML and GitHub annotations."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from ...printable import make_lines_printable
from ..surveys.matrix import Matrix
from ..verdict import Outcome, Verdict
from .text import render_text

__all__ = ["VerdictTestCase", "list_test_cases", "make_github_annotations", "make_junit_xml"]

# What XML 1.0 has no way to write.
_INVALID_XML_CHARACTERS = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


@dataclass(frozen=True, slots=True, kw_only=True)
class VerdictTestCase:
    """A verdict as a test case: a graph on a target with a cuDNN version.

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


_TestResults = Matrix | Iterable[Verdict | VerdictTestCase]
_CASE_STATES = {Outcome.SUPPORTED: "passed", Outcome.NOT_SUPPORTED: "failed", Outcome.NOT_JUDGED: "error"}


def list_test_cases(results: _TestResults) -> Iterator[VerdictTestCase]:
    """Yield one case for each result: supported passes, not supported fails, not judged is an error.

    :class:`VerdictTestCase` values are passed on unchanged, for callers that expect something else than "supported".
    """
    if isinstance(results, Matrix):
        for (graph, target, version), cell in results.cells.items():
            case = VerdictTestCase(
                graph=graph,
                target=target,
                version=version,
                state=_CASE_STATES[cell.outcome],
                warnings=cell.hazards,
                remarks=cell.remarks,
            )
            yield _add_failure_text(
                case, cell.outcome, cell.cause, cell.headline, f"last stage reached: {cell.stage!r}"
            )
        return
    for item in results:
        yield item if isinstance(item, VerdictTestCase) else _make_verdict_test_case(item)


def _make_verdict_test_case(verdict: Verdict) -> VerdictTestCase:
    outcome, cause = verdict.outcome, verdict.cause
    case = VerdictTestCase(
        graph=verdict.graph,
        target=verdict.target,
        version=verdict.cudnn,
        state=_CASE_STATES[outcome],
        warnings=verdict.hazards,
    )
    code, headline = ("", "") if cause is None else (cause.code, cause.headline)
    return _add_failure_text(case, outcome, code, headline, render_text(verdict))


def _add_failure_text(case: VerdictTestCase, outcome: Outcome, code: str, headline: str, text: str) -> VerdictTestCase:
    if case.state == "passed":
        return case
    code = code or outcome.replace(" ", "-")
    return replace(case, code=code, message=headline or "cuDNN gave no reason", text=text)


def make_junit_xml(results: _TestResults, *, suite: str = "cudnn-backend") -> str:
    """Return the results as a JUnit report: a suite per graph, a test case per target and version.

    There are no times in it, so equal results give equal text.
    """
    by_graph: dict[str, list[VerdictTestCase]] = {}
    for case in list_test_cases(results):
        by_graph.setdefault(case.graph, []).append(case)
    everything = [case for group in by_graph.values() for case in group]
    root = ET.Element("testsuites", _format_attributes(suite, everything))
    for graph, group in by_graph.items():
        part = ET.SubElement(root, "testsuite", _format_attributes(graph, group))
        for case in group:
            name = f"{case.target}, cuDNN {case.version}"
            element = ET.SubElement(
                part,
                "testcase",
                classname=_replace_invalid_characters(f"{suite}.{graph}"),
                name=_replace_invalid_characters(name),
            )
            if case.state != "passed":
                kind = "failure" if case.state == "failed" else "error"
                child = ET.SubElement(
                    element,
                    kind,
                    message=_replace_invalid_characters(case.message),
                    type=_replace_invalid_characters(case.code),
                )
                child.text = _replace_invalid_characters(case.text)
            if lines := (*case.warnings, *case.remarks):
                ET.SubElement(element, "system-out").text = _replace_invalid_characters("\n".join(lines))
    ET.indent(root)
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{ET.tostring(root, encoding="unicode")}\n'


def _format_attributes(name: str, group: list[VerdictTestCase]) -> dict[str, str]:
    return {
        "name": _replace_invalid_characters(name),
        "tests": str(len(group)),
        "failures": str(sum(case.state == "failed" for case in group)),
        "errors": str(sum(case.state == "error" for case in group)),
        "skipped": "0",
    }


def _replace_invalid_characters(text: str) -> str:
    return _INVALID_XML_CHARACTERS.sub("\ufffd", text)


def make_github_annotations(results: _TestResults, *, files: Mapping[str, str] | None = None) -> list[str]:
    """Return a workflow command for each case that did not pass (``::error``) and each known issue (``::warning``).

    Parameters
    ----------
    results
        As for :func:`make_junit_xml`.
    files
        The file an annotation belongs to, by graph name; without one it belongs to the run.

    Notes
    -----
    Source of form and escapes: GitHub, "Workflow commands for GitHub Actions", and the toolkit's ``command.ts``.
    """
    lines = []
    for case in list_test_cases(results):
        file = (files or {}).get(case.graph, "")
        where = f"{case.graph} on {case.target}, cuDNN {case.version}"
        if case.state != "passed":
            code = f" [{case.code}]" if case.code else ""
            lines.append(_format_workflow_command("error", file, where, f"{case.message or case.state}{code}"))
        lines += [
            _format_workflow_command("warning", file, f"known issue: {where}", warning) for warning in case.warnings
        ]
    return lines


def _format_workflow_command(kind: str, file: str, title: str, message: str) -> str:
    given = {"file": file, "title": title}
    properties = ",".join(f"{name}={_escape_property(value)}" for name, value in given.items() if value)
    return f"::{kind} {properties}::{_escape_message(message)}"


def _escape_message(text: str) -> str:
    return make_lines_printable(text).replace("%", "%25").replace("\n", "%0A")


def _escape_property(text: str) -> str:
    return _escape_message(text).replace(":", "%3A").replace(",", "%2C")
