"""A self-contained HTML page of verdicts, matrix and remedies, and fragments for notebooks.

The page requests nothing from outside: its style and script are inside and named by hash in its content security
policy, so nothing a graph is called can run. Everything is escaped by the template engine.
"""

from __future__ import annotations

import base64
import difflib
import hashlib
import os
import re
from collections import Counter
from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, TypeVar

from ...errors import UsageError
from ..surveys.matrix import Cell, Matrix
from ..verdict import Candidate, Outcome, Verdict
from .drawing import draw_graph, find_named_tensors, list_nested_graphs

if TYPE_CHECKING:
    from jinja2 import Environment
    from rich.table import Table

    from ...graph.ir import Graph
    from ...plans.plan import Plan
    from ...rewrite.changes import Change
    from ..remedy import Remedy

__all__ = [
    "render_change_html",
    "render_page",
    "render_plan_html",
    "render_remedies_html",
    "render_tables_html",
    "render_verdict_html",
    "render_verdict_matrix_html",
]

_T = TypeVar("_T")
_VerdictEntry = tuple[Verdict, "Graph | None", Sequence["Remedy"]]

_OUTCOME_KINDS = {Outcome.SUPPORTED: "ok", Outcome.NOT_SUPPORTED: "bad", Outcome.NOT_JUDGED: "unknown"}
_STATE_MARKS = {
    "passed": ("ok", "✓"),
    "supported": ("ok", "✓"),
    "built": ("ok", "✓"),
    "refused": ("bad", "✕"),
    "build failed": ("bad", "✕"),
    "crashed": ("crash", "!"),
    "timed out": ("crash", "!"),
}
_EFFECT_KINDS = {"exact": "ok", "changes numerics": "bad"}
_LEGEND_LINES = (
    ("ok", "S", "supported"),
    ("bad", "-", "not supported"),
    ("unknown", "?", "could not be judged"),
    ("crash", "!", "crashed or timed out"),
    ("none", "·", "not judged"),
)
# What neither HTML nor UTF-8 can carry.
_UNPRINTABLE = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\ud800-\udfff\ufffe\uffff]")


def render_page(
    verdicts: Sequence[Verdict],
    *,
    matrix: Matrix | None = None,
    remedies: Sequence[Sequence[Remedy]] | None = None,
    graphs: Sequence[Graph] | None = None,
    title: str = "cuDNN verdicts",
) -> str:
    """Return an HTML page that needs no network.

    Parameters
    ----------
    verdicts
        In the order they are shown; those of one graph stand together.
    matrix
        Shown as one grid for each graph, which can be filtered.
    remedies
        One sequence for each verdict, in their order.
    graphs
        One for each verdict, in their order, to be drawn and compared with those of the remedies.
    title
        The heading.

    Raises
    ------
    UsageError
        ``report-lengths`` if there are not as many graphs or remedies as verdicts.
    """
    drawn = _check_one_item_per_verdict("graphs", graphs, verdicts)
    found = _check_one_item_per_verdict("remedies", remedies, verdicts)
    asked = [(verdict, graph, cures or ()) for verdict, graph, cures in zip(verdicts, drawn, found, strict=True)]
    return _render_template(
        "report.html.j2",
        title=title,
        subtitle=_format_subtitle(verdicts, matrix),
        counts=_count_outcomes(verdicts, matrix),
        groups=_make_graph_sections(asked),
        matrix=matrix,
        choices=_list_filter_choices(matrix) if matrix is not None else (),
    )


def _check_one_item_per_verdict(
    name: str, given: Sequence[_T] | None, verdicts: Sequence[Verdict]
) -> Sequence[_T | None]:
    if given is None:
        return [None] * len(verdicts)
    if len(given) != len(verdicts):
        raise UsageError(
            f"{len(given)} {name} were given for {len(verdicts)} verdicts, but each verdict needs one",
            code="report-lengths",
        )
    return given


def render_verdict_html(verdict: Verdict) -> str:
    """Return the verdict as an HTML fragment, for notebooks."""
    return _render_fragment(verdict=verdict)


def render_verdict_matrix_html(matrix: Matrix) -> str:
    """Return the matrix as an HTML fragment of coloured grids, for notebooks."""
    return _render_fragment(matrix=matrix)


def render_plan_html(plan: Plan) -> str:
    """Render a plan and its graph as an HTML fragment."""
    target = plan.target
    facts = [("engine config", plan.tag), ("target", f"{target.profile.title} (sm_{target.sm})")]
    facts.append(("cuDNN", target.library.build_text))
    if plan.descriptor.closed:
        facts.append(("state", "closed"))
    else:
        facts.append(("workspace", f"{plan.workspace_bytes} bytes"))
        facts += [("kernel", str(kernel)) for kernel in plan.kernels() or ()]
    return _render_fragment(
        card={"title": plan.graph.name, "what": "Plan", "facts": facts}, **_make_drawing_template_values(plan.graph, ())
    )


def render_change_html(change: Change) -> str:
    """Return a change with its resulting graph as an HTML fragment."""
    facts = [("kind", change.kind), ("effect", change.effect)]
    return _render_fragment(
        card={"title": change.title, "what": "Change", "facts": facts},
        **_make_drawing_template_values(change.graph, change.tensors),
    )


def render_remedies_html(remedies: Sequence[Remedy], before: Graph | None = None) -> str:
    """Return remedies as an HTML fragment, each with a diff from the graph `before` if it is given."""
    shown = [_make_remedy_template_values(item, None, before) for item in remedies]
    drawn = (
        _make_drawing_template_values(remedies[0].graph, remedies[0].tensors)
        if before is None
        else _make_drawing_template_values(before, ())
    )
    return _render_fragment(remedies=shown, unfinished=_explain_unfinished_search(remedies), **drawn)


def render_tables_html(tables: Sequence[Table]) -> str:
    """Return tables as an HTML fragment."""
    return _render_fragment(tables=[_make_plain_table(table) for table in tables])


def _make_plain_table(table: Table) -> dict[str, Any]:
    from rich.text import Text

    def make_plain_text(cell: Any) -> str:
        return cell.plain if isinstance(cell, Text) else Text.from_markup(str(cell)).plain

    columns = [[make_plain_text(cell) for cell in column.cells] for column in table.columns]
    return {
        "title": make_plain_text(table.title or ""),
        "heads": [(make_plain_text(column.header), column.justify) for column in table.columns],
        "rows": list(zip(*columns, strict=True)),
    }


def _render_fragment(**shown: Any) -> str:
    parts = dict.fromkeys(("verdict", "matrix", "card", "remedies", "tables", "drawings"))
    return _render_template("fragment.html.j2", **{**parts, "named": (), "unfinished": "", **shown})


def _make_drawing_template_values(graph: Graph, named: Sequence[str]) -> dict[str, Any]:
    _make_environment()  # of jinja2, which drawings are marked up for
    return {"drawings": _draw_graphs(graph, named), "named": named}


def _render_template(template: str, **values: Any) -> str:
    return _UNPRINTABLE.sub("\ufffd", _make_environment().get_template(template).render(values)).strip() + "\n"


@cache
def _make_environment() -> Environment:
    from jinja2 import Environment, PackageLoader, StrictUndefined  # only pages need it
    from markupsafe import Markup

    environment = Environment(
        loader=PackageLoader(__package__),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=StrictUndefined,
    )
    environment.filters.update(
        kind=lambda outcome: _OUTCOME_KINDS[outcome],
        state_kind=lambda state: _STATE_MARKS.get(state, ("none", ""))[0],
        state_mark=lambda state: _STATE_MARKS.get(state, ("none", "–"))[1],
        effect_kind=lambda effect: _EFFECT_KINDS.get(effect, "unknown"),
        cell_kind=lambda cell: "crash" if cell.crashed else _OUTCOME_KINDS[cell.outcome],
        cell_line=_format_cell,
        knob=lambda name: name.removeprefix("CUDNN_KNOB_TYPE_"),
        headline=_make_headline,
        file_name=os.path.basename,
        where=_format_target_title,
        sorted_candidates=_group_candidates_by_state,
        csp_hash=_hash_for_csp,
    )
    loader = environment.loader
    assert loader is not None
    for name in ("css", "js"):
        environment.globals[name] = Markup(loader.get_source(environment, f"report.{name}")[0])
    environment.globals["legend_lines"] = _LEGEND_LINES
    return environment


def _hash_for_csp(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"


def _format_target_title(verdict: Verdict) -> str:
    return f"{verdict.target_title} (sm_{verdict.sm})" if verdict.sm else verdict.target_title


def _make_headline(verdict: Verdict) -> str:
    if verdict.cause is not None:
        return verdict.cause.headline
    if not verdict.supported:
        return "cuDNN gave no reason"
    taken = [item for item in verdict.candidates if item.state in ("supported", "built")]
    first = next((item for item in taken if item.state == "built"), taken[0] if taken else None)
    if first is None:
        return "cuDNN supports it"
    word = "builds" if first.state == "built" else "comes first"
    note = f"{verdict.outcome}{verdict.support_note}; " if verdict.support_note else ""
    count = f"{len(taken)} of {len(verdict.candidates)} engine configs supported"
    return f"{note}{count}; {first.tag or 'an engine without a name'} {word}"


def _format_cell(cell: Cell) -> str:
    """Return the full text of a cell: cause or engines, then known issues and remarks."""
    first = cell.headline or (f"engine {', '.join(map(str, cell.engines))}" if cell.engines else str(cell.outcome))
    return "; ".join([first, *(f"known issue: {hazard}" for hazard in cell.hazards), *cell.remarks])


def _group_candidates_by_state(verdict: Verdict) -> list[tuple[str, list[Candidate]]]:
    """Return (title, engine configs) for the refused and for the supported ones."""
    taken = [item for item in verdict.candidates if item.state in ("supported", "built")]
    refused = [item for item in verdict.candidates if item not in taken]
    count = len(verdict.candidates)
    parts = [
        (f"{len(refused)} of {count} candidate engine configs refused, with cuDNN's message", refused),
        (f"{len(taken)} of {count} candidate engine configs supported", taken),
    ]
    return [(title, items) for title, items in parts if items]


def _format_subtitle(verdicts: Sequence[Verdict], matrix: Matrix | None) -> str:
    versions = dict.fromkeys([*(item.cudnn for item in verdicts), *(matrix.versions if matrix is not None else ())])
    graphs = {item.graph_text for item in verdicts} or set(matrix.graphs if matrix is not None else ())
    if not graphs:
        return "nothing was queried"
    few = f"cuDNN {', '.join(versions)}" if len(versions) <= 3 else f"{len(versions)} cuDNN versions"
    return f"cuDNN's verdicts and their causes: {len(graphs)} graph{'s' if len(graphs) > 1 else ''}, {few}"


def _count_outcomes(verdicts: Sequence[Verdict], matrix: Matrix | None) -> list[tuple[str, int, str]]:
    """Return (kind, count, outcome) for each outcome of the verdicts, or of the matrix if there are no verdicts."""
    outcomes = [item.outcome for item in verdicts]
    if not outcomes and matrix is not None:
        outcomes = [cell.outcome for cell in matrix.cells.values()]
    number = Counter(outcomes)
    return [(_OUTCOME_KINDS[outcome], number[outcome], outcome.value) for outcome in Outcome if number[outcome]]


def _list_filter_choices(matrix: Matrix) -> list[tuple[str, Sequence[str]]]:
    outcomes = [outcome.value for outcome in Outcome]
    return [
        ("graph", matrix.graphs),
        ("target", matrix.targets),
        ("version", matrix.versions),
        ("outcome", outcomes),
    ]


def _make_graph_sections(asked: Sequence[_VerdictEntry]) -> list[dict[str, Any]]:
    """Return the sections of the page: a drawing and verdicts with remedies for each graph."""
    together: dict[object, list[tuple[int, _VerdictEntry]]] = {}
    for number, item in enumerate(asked, 1):
        verdict, graph, _ = item
        together.setdefault((verdict.graph_text, graph), []).append((number, item))
    return [_make_graph_section(f"g{number}", mine) for number, mine in enumerate(together.values(), 1)]


def _make_graph_section(anchor: str, mine: Sequence[tuple[int, _VerdictEntry]]) -> dict[str, Any]:
    _, (first, graph, _) = mine[0]
    causes = [verdict.cause for _, (verdict, _, _) in mine if verdict.cause is not None]
    said = [line for cause in causes for line in (cause.headline, cause.detail, cause.versions)]
    named = sorted(find_named_tensors(said, graph)) if graph is not None else []
    return {
        "id": anchor,
        "name": first.graph,
        "text": first.graph_text,
        "named": named,
        "drawings": _draw_graphs(graph, named) if graph is not None else [],
        "entries": [
            {
                "id": f"v{number}",
                "verdict": verdict,
                "remedies": [_make_remedy_template_values(item, verdict, graph) for item in found],
                "unfinished": _explain_unfinished_search(found),
            }
            for number, (verdict, _, found) in mine
        ],
    }


def _explain_unfinished_search(remedies: Sequence[Remedy]) -> str:
    """Return why a search for remedies was incomplete and how far it got; empty if it was complete."""
    from ..remedy import Remedies

    if not isinstance(remedies, Remedies) or remedies.extent.finished:
        return ""
    return f"{remedies.extent.stopped}; {remedies.extent}"


def _draw_graphs(graph: Graph, named: Sequence[str]) -> list[dict[str, Any]]:
    from markupsafe import Markup

    drawings = []
    for item in list_nested_graphs(graph):
        if svg := draw_graph(item, named):
            caption = "" if item is graph else f"inside an operation: {item.name}"
            drawings.append({"caption": caption, "svg": Markup(svg)})
    return drawings


def _make_remedy_template_values(remedy: Remedy, verdict: Verdict | None, graph: Graph | None) -> dict[str, Any]:
    """Return the template values of a remedy; with a diff if the original graph or its verdict is known."""
    text = str if graph is None else _format_graph
    after = "\n".join(text(part) for part in remedy.graphs or (remedy.graph,))
    known = None if verdict is None else verdict.graph_text
    before = known if graph is None else _format_graph(graph)
    return {
        "title": remedy.title,
        "effect": remedy.effect,
        "claim": remedy.effect_with_check,
        "steps": remedy.steps,
        "verified": remedy.verified,
        "answer": _format_remedy_verdict(remedy),
        "diff": None if before is None else _make_diff(before, after),
    }


def _format_remedy_verdict(remedy: Remedy) -> str:
    version = f", cuDNN {remedy.version}" if remedy.version else ""
    if remedy.verdict is None:
        return f"for {remedy.target}{version}; not judged by cuDNN"
    verdict = remedy.verdict
    return f"{_format_target_title(verdict)}, cuDNN {verdict.cudnn}: {verdict.outcome}, {_make_headline(verdict)}"


def _format_graph(graph: Graph) -> str:
    """Return the graph's text with all tensors, including virtual ones."""
    return "\n".join([f"graph {graph.name}", *(f"  {item}" for item in (*graph.tensors, *graph.ops))])


def _make_diff(before: str, after: str) -> list[tuple[str, str]]:
    """Return (kind, line) of a unified diff; empty if there is no difference."""
    kinds = {"+": "add", "-": "drop", "@": "hunk", " ": "same"}
    lines = difflib.unified_diff(before.splitlines(), after.splitlines(), "before", "after", n=2, lineterm="")
    return [("hunk" if line[:3] in ("---", "+++") else kinds[line[0]], line) for line in lines]
