"""Files written for a case: a standalone program that reproduces it, and a draft of its known issue."""

from __future__ import annotations

import base64
import io
import textwrap
from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np

from ..graph import Graph
from ..graph.encoded import encode_graph
from .case import Case

__all__ = ["MOST_EMBEDDED", "draft_known_issue", "make_reproduction_program"]

MOST_EMBEDDED = 1 << 20  # bytes of compressed buffers that a program holds
_PROGRAM = '''\
"""{title}

{words}

python {{this file}} runs it with the cuDNN of the environment and says what is right; exit code 1 if it is wrong.

{graph}
"""

import base64
import io

import numpy as np

from cudnn_backend_py import Graph
from cudnn_backend_py.tuning.trial import run_graph
from cudnn_backend_py.graph.encoded import decode_graph

GRAPH = (
{word}
)
DATA = {data}  # "uniform" and "integers" are made up from the seed
{given}

def graph() -> Graph:
    """Return the graph, for cudnn-backend run and explain too."""
    return decode_graph(GRAPH)


def main() -> int:
    trial = run_graph(graph(), data=DATA, configs={tag!r}, time=False, given=given())
    for config in trial.configs:
        print(f"cuDNN {{trial.cudnn}}, sm_{{trial.sm}}, {{config.tag}}: {{config.state}}; {{config.words}}")
    if not trial.configs:
        print(f"cuDNN {{trial.cudnn}}: {{trial.state}}; {{trial.words}}")
    return trial.exit_code


if __name__ == "__main__":
    raise SystemExit(main())
'''
_NOT_GIVEN = '''

def given() -> dict[str, np.ndarray]:
    """Return nothing: all data are made up."""
    return {}

'''
_GIVEN = '''BUFFERS = (
{lines}
)


def given() -> dict[str, np.ndarray]:
    """Return the numbers the program had."""
    with np.load(io.BytesIO(base64.b85decode(BUFFERS)), allow_pickle=False) as held:
        return {{name: held[name] for name in held.files}}

'''
_ELSEWHERE = '''

def given() -> dict[str, np.ndarray]:
    """Return the numbers the program had, from the case: they are too large for this file."""
    from cudnn_backend_py.audit import load_case

    return load_case({path!r}).given()

'''
_DRAFT = '''\
"""A known issue of cuDNN that the table has no row for yet: a draft of one.

What the condition is has to be found out: as it is it holds for this graph alone. Graphs that share its pattern:
{near}
"""

from cudnn_backend_py.graph.attention.known_issue import KnownIssue
from cudnn_backend_py.system.version import VersionRange
from cudnn_backend_py.graph.encoded import decode_graph

GRAPH = (
{word}
)

FAULT = KnownIssue(
    {row!r},
    what="a graph of {what}",
    effect={effect!r},
    fix={fix!r},
    source="an audit",
    evidence={evidence!r},
    versions=VersionRange({window}),
    sm=({sm},),
    engines=({engine},),
    depends_on={depends!r},
    graph=lambda graph: graph == decode_graph(GRAPH),
)
'''


class ReproductionFacts(Protocol):
    """The facts about a case that its reproduction needs: versions, engine and data."""

    since: str
    until: str
    engine: int | None
    data: str

    @property
    def versions_with_wrong_results(self) -> tuple[str, ...]: ...
    @property
    def versions_with_right_results(self) -> tuple[str, ...]: ...


def make_reproduction_program(
    graph: Graph, data: str, tag: str, given: Mapping[str, Any] | None, case: Case, words: str, path: str = ""
) -> str:
    """Return a program that runs a graph with an engine and compares it with the interpreter.

    Parameters
    ----------
    given
        Numbers by the names of tensors; None where all data are made up.
    path
        Where the case is, for what is larger than :data:`MOST_EMBEDDED`.
    """
    text = _NOT_GIVEN
    if given:
        file = io.BytesIO()
        np.savez_compressed(file, **{name: _convert_to_float32_if_exact(value) for name, value in given.items()})
        packed = base64.b85encode(file.getvalue()).decode()
        text = (
            _GIVEN.format(lines=_format_as_string_literals(packed))
            if len(packed) <= MOST_EMBEDDED
            else _ELSEWHERE.format(path=path or case.name)
        )
    title = f"cuDNN {case.cudnn} on sm_{case.sm}: {', '.join(case.wrong)} wrong by {tag}."
    return _PROGRAM.format(
        title=_escape_docstring(title),
        words="\n".join(textwrap.wrap(_escape_docstring(words), 110)),
        graph=_escape_docstring(str(graph)),
        word=_format_as_string_literals(encode_graph(graph)),
        data=repr(data),
        given=text,
        tag=tag,
    )


def _escape_docstring(text: str) -> str:
    """Return text that is safe inside a docstring."""
    return text.replace("\\", "/").replace('"""', "'''")


def _convert_to_float32_if_exact(value: Any) -> Any:
    """Return floating-point numbers as float32 where that is exact; others are unchanged."""
    numbers = np.asarray(value)
    if numbers.dtype.kind == "f":
        with np.errstate(over="ignore"):
            short = numbers.astype(np.float32)
        return short if np.array_equal(short.astype(np.float64), numbers, equal_nan=True) else numbers
    return numbers


def _format_as_string_literals(text: str) -> str:
    return "\n".join(f"    {text[start : start + 100]!r}" for start in range(0, len(text), 100))


def draft_known_issue(graph: Graph, case: Case, known: ReproductionFacts, words: str, near: list[str]) -> str:
    """Return the source of a Python module with a draft entry for the table of known issues."""
    window = []
    for name, version in (("since", known.since), ("until", known.until)):
        if version:
            window.append(f"{name}=({', '.join(version.split('.')[:3])})")
    evidence = f"measured with {', '.join(known.versions_with_wrong_results)} on sm_{case.sm}: wrong"
    if known.versions_with_right_results:
        evidence += f"; {', '.join(known.versions_with_right_results)} right"
    return _DRAFT.format(
        near=", ".join(near) or "none of the table",
        word=_format_as_string_literals(encode_graph(graph)),
        row=f"audited-{case.name[5:11]}",
        what=", ".join(dict.fromkeys(op.display_name() for op in graph.ops)),
        effect=words,
        fix=f"use {known.until} or later" if known.until else "take another engine",
        evidence=evidence,
        window=", ".join(window),
        sm=case.sm,
        engine=known.engine,
        depends="" if known.data else "what it computes with",
    )
