"""The HTML report and its fragments: one file, escaped text, drawings, equal output every time. Loads no library."""

from __future__ import annotations

import html
import re
from collections.abc import Iterator
from dataclasses import replace
from html.parser import HTMLParser
from xml.etree import ElementTree

import pytest

from cudnn_backend_py import Graph, GraphBuilder, PointwiseMode, UsageError, attention
from cudnn_backend_py.diagnose import Outcome
from cudnn_backend_py.diagnose.remedy import Remedy
from cudnn_backend_py.diagnose.report import html as page
from cudnn_backend_py.diagnose.report.drawing import (
    MAX_OPERATIONS,
    draw_graph,
    draw_svg_file,
    find_named_tensors,
    list_nested_graphs,
)
from cudnn_backend_py.diagnose.report.html import render_page, render_verdict_html, render_verdict_matrix_html
from tests.support.reporting import (
    HOSTILE_NAME,
    make_render_page_arguments,
    make_support_matrix,
    make_two_matmuls,
    make_verdict,
)
from tests.support.varied_graphs import VARIED_GRAPHS

VOID_ELEMENTS = {"meta", "link", "input"}
LOADING_ATTRIBUTES = ("src", "srcset", "action", "formaction", "data", "poster", "background", "ping", "style")


class ParsedPage(HTMLParser):
    """An HTML parser that collects elements and text, and fails on unmatched tags."""

    def __init__(self, page_text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.elements: list[tuple[str, dict[str, str]]] = []
        self.text = ""
        self.feed(page_text)
        self.close()
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, {name: value or "" for name, value in attrs}))
        if tag not in VOID_ELEMENTS:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, {name: value or "" for name, value in attrs}))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] not in ("style", "script"):
            self.text += data

    def find_elements_of_class(self, name: str) -> list[dict[str, str]]:
        return [given for _, given in self.elements if name in given.get("class", "").split()]


@pytest.fixture(scope="module")
def page_text() -> str:
    return render_page(**make_render_page_arguments())


@pytest.fixture(scope="module")
def parsed_page(page_text: str) -> ParsedPage:
    return ParsedPage(page_text)


def find_rectangles(svg: str) -> Iterator[tuple[float, float, float, float]]:
    """Yield (left, top, right, bottom) of each rectangle in a drawing."""
    for item in ElementTree.fromstring(svg).iter("{http://www.w3.org/2000/svg}rect"):
        x, y, width, height = (float(item.attrib[name]) for name in ("x", "y", "width", "height"))
        yield x, y, x + width, y + height


def test_equal_arguments_give_an_equal_page(page_text: str) -> None:
    assert render_page(**make_render_page_arguments()) == page_text


def test_page_refers_to_no_other_file(parsed_page: ParsedPage) -> None:
    for tag, given in parsed_page.elements:
        assert not any(
            name in given or name.startswith("on") for name in LOADING_ATTRIBUTES for name in (name,) if name in given
        )
        assert not [name for name in given if name.startswith("on")], (tag, given)
        if "href" in given:
            assert given["href"].startswith("#") or given["href"] == "data:,"
    [policy] = [
        given["content"] for _, given in parsed_page.elements if given.get("http-equiv") == "Content-Security-Policy"
    ]
    assert policy.startswith("default-src 'none';")
    assert "unsafe" not in policy


def test_style_and_script_load_no_other_file() -> None:
    for name in ("css", "js"):
        source = str(page._make_environment().globals[name])
        assert not re.search(r"url\(|@import|fetch\(|XMLHttp|innerHTML|eval\(|</", source)


def test_hostile_names_are_escaped(page_text: str, parsed_page: ParsedPage) -> None:
    assert [tag for tag, _ in parsed_page.elements].count("script") == 1
    assert "img" not in {tag for tag, _ in parsed_page.elements}
    shown = HOSTILE_NAME.replace("\x00", "\ufffd").replace("\ud800", "\ufffd")
    assert shown in parsed_page.text
    assert html.escape(HOSTILE_NAME[:20]) in page_text
    page_text.encode("utf-8")


@pytest.mark.parametrize("outcome", Outcome)
def test_a_verdict_html_fragment_is_complete_without_scripts(outcome: Outcome) -> None:
    for name in ("plain", HOSTILE_NAME):
        fragment = ParsedPage(render_verdict_html(make_verdict(make_two_matmuls(name), outcome, target_title=name)))
        assert fragment.elements[0] == ("div", {"class": "cbp fragment"})
        assert {"script", "img", "a"}.isdisjoint(tag for tag, _ in fragment.elements)
        assert outcome.value.upper() in fragment.text


def test_support_matrix_html_has_a_letter_for_every_result() -> None:
    matrix = make_support_matrix("a", HOSTILE_NAME)
    fragment = ParsedPage(render_verdict_matrix_html(matrix))
    legend = 5
    letters = [given for given in fragment.find_elements_of_class("cell") if "title" in given]
    assert len(letters) == 2 * 3 * 5
    assert len(fragment.find_elements_of_class("cell")) == len(letters) + legend
    assert [given["title"] for given in letters].count("not judged") == 1
    assert any("a multiple of 8 is needed" in given["title"] for given in letters)


def test_page_shows_the_cause_reasons_stages_and_known_issue(parsed_page: ParsedPage) -> None:
    assert "tensor 's' is in order F16x16, NONE is needed" in parsed_page.text
    assert "no <b>such</b> pattern at: a && b" in parsed_page.text
    assert "Known issue:" in parsed_page.text
    assert "SIGSEGV in eng7_k24=3" in parsed_page.text
    assert len(parsed_page.find_elements_of_class("stages")) == 4
    assert "2 not supported" in " ".join(parsed_page.text.split())


def test_page_shows_lint_evidence_and_frameworks() -> None:
    facts = {"lint": ("dangerous: short scales",), "seen": "on an H100 with 9.24", "frameworks": {"torch 2": "uses it"}}
    verdict = replace(make_verdict(make_two_matmuls("g"), Outcome.SUPPORTED), **facts)  # type: ignore[arg-type]
    text = ParsedPage(render_page([verdict])).text
    for words in ("Lint: dangerous: short scales", "seen onon an H100 with 9.24", "torch 2uses it"):
        assert words in text


def test_verdicts_of_one_graph_are_grouped(parsed_page: ParsedPage) -> None:
    assert [given["id"] for tag, given in parsed_page.elements if tag == "article"] == ["v1", "v3", "v2", "v4"]
    links = [given["href"] for tag, given in parsed_page.elements if tag == "a" and given["href"].startswith("#v")]
    assert links[1:] == ["#v1", "#v3", "#v2", "#v4"]


def test_a_remedy_shows_changes_of_virtual_tensors(parsed_page: ParsedPage) -> None:
    lines = parsed_page.text.splitlines()
    [before] = [line for line in lines if line.startswith("-  s :")]
    [after] = [line for line in lines if line.startswith("+  s :")]
    assert "F16x16" in before
    assert "F16x16" not in after
    assert "The graph stays as it is." in parsed_page.text


def test_a_remedy_without_the_graph_is_shown_as_a_text_diff() -> None:
    shown = ParsedPage(render_page(**{**make_render_page_arguments(), "graphs": None}))
    assert not shown.find_elements_of_class("graph")
    assert "-graph two_matmuls" not in shown.text
    assert "-graph " + HOSTILE_NAME[:9] in shown.text


def test_a_remedy_that_splits_a_graph_shows_both_graphs() -> None:
    first, second = make_two_matmuls("first"), make_two_matmuls("second")
    remedy = Remedy("split", "exact", (), first, "l40s", None, False, None, (first, second))
    shown = ParsedPage(render_page([make_verdict(first)], remedies=[[remedy]], graphs=[first])).text
    assert "+graph second" in shown
    assert "-graph first" not in shown


def test_unequal_numbers_of_remedies_and_verdicts_are_refused() -> None:
    with pytest.raises(UsageError, match="report-lengths: 1 remedies were given for 4 verdicts"):
        render_page(make_render_page_arguments()["verdicts"], remedies=[[]])


def test_a_page_may_have_no_verdicts_or_only_a_support_matrix() -> None:
    assert "nothing was queried" in ParsedPage(render_page([])).text
    alone = ParsedPage(render_page([], matrix=make_support_matrix("a")))
    assert "cuDNN's verdicts and their causes: 1 graph, 5 cuDNN versions" in alone.text
    assert len([tag for tag, given in alone.elements if tag == "button" and "cell" in given.get("class", "")]) == 14


def test_support_matrix_cells_have_a_label_and_no_tab_stop(parsed_page: ParsedPage) -> None:
    cells = [
        given for tag, given in parsed_page.elements if tag == "button" and "cell" in given.get("class", "").split()
    ]
    assert {given["tabindex"] for given in cells} == {"-1"}
    assert {given["aria-label"] for given in cells} == {outcome.value for outcome in Outcome}


@pytest.mark.parametrize("name", VARIED_GRAPHS)
def test_boxes_of_a_drawing_do_not_overlap(name: str) -> None:
    for graph in list_nested_graphs(VARIED_GRAPHS[name]()):
        svg = draw_graph(graph)
        width, height = (float(part) for part in ElementTree.fromstring(svg).attrib["viewBox"].split()[2:])
        boxes = list(find_rectangles(svg))
        assert all(left >= 0 and right <= width + 1 and low <= height + 1 for left, _, right, low in boxes)
        for index, (left, top, right, low) in enumerate(boxes):
            for other in boxes[index + 1 :]:
                apart = (
                    other[0] >= right - 0.2 or other[2] <= left + 0.2 or other[1] >= low - 0.2 or other[3] <= top + 0.2
                )
                assert apart, (name, boxes[index], other)


def test_a_drawing_runs_from_top_to_bottom_and_shows_unusual_fields() -> None:
    marks = ElementTree.fromstring(draw_graph(make_two_matmuls())).iter("{http://www.w3.org/2000/svg}text")
    height = {item.text: float(item.attrib["y"]) for item in marks}
    assert {"q", "k", "v", "s", "o", "f16[1,10,64]", "order F16x16", "align 2"} <= set(height)
    assert height["q"] == height["k"] < height["v"] < height["s"] < height["o"]


def test_a_drawing_marks_only_the_named_tensor() -> None:
    svg = ElementTree.fromstring(draw_graph(make_two_matmuls(), {"s"}))
    marked = [item for item in svg.iter() if "named" in item.attrib.get("class", "").split()]
    assert sorted(item.attrib["class"] for item in marked) == ["edge named", "tensor virtual named"]


@pytest.mark.parametrize(
    ("said", "names"),
    [
        ("tensor 's' has order F16x16", {"s"}),
        ('"q" and `k` differ', {"q", "k"}),
        ("tensor o is written", {"o"}),
        ("tensors of o, s or k's kind", set()),
        ("the s and q of others", set()),
    ],
)
def test_tensor_names_are_found_in_a_message(said: str, names: set[str]) -> None:
    assert find_named_tensors([said], make_two_matmuls()) == names


def make_chain_graph(count: int) -> Graph:
    g = GraphBuilder("chain")
    x = g.tensor("x", (1, 8, 8))
    for index in range(count):
        x = g.pointwise(PointwiseMode.RELU_FWD, x, virtual=index < count - 1)
    return g.graph()


def test_large_graphs_are_not_drawn() -> None:
    assert draw_graph(make_chain_graph(MAX_OPERATIONS))
    assert draw_graph(make_chain_graph(MAX_OPERATIONS + 1)) == ""


def test_a_drawing_of_hostile_names_is_valid_xml() -> None:
    g = GraphBuilder("<g>&'\"")
    g.pointwise(PointwiseMode.RELU_FWD, g.tensor("<x>" * 40, (1, 8, 8)), name="</svg>", virtual=False)
    texts = [item.text for item in ElementTree.fromstring(draw_graph(g.graph())).iter()]
    assert "</svg>" in texts
    assert "<x>" * 11 + "…" in texts


def test_a_drawing_file_of_hostile_names_is_valid_xml() -> None:
    g = GraphBuilder("a\x00\x1b[31m\u202e")
    g.pointwise(PointwiseMode.RELU_FWD, g.tensor("<x>\x07", (1, 8, 8)), name="\ufffe</style>", virtual=False)
    file = ElementTree.fromstring(draw_svg_file(g.graph()))
    texts = [item.text for item in file.iter()]
    assert {"<x>\\x07", "\\ufffe</style>"} <= set(texts)
    assert file[0].tag.endswith("style")
    assert "\\x00" in file.attrib["aria-label"]
    assert draw_svg_file(make_chain_graph(MAX_OPERATIONS + 1)) == ""


def test_sub_graphs_of_operations_are_drawn() -> None:
    graph = attention.sdpa_forward(batch=1, heads=2, seq_q=64, head_dim=64, causal=True, implementation="unified")
    assert len(list(list_nested_graphs(graph))) == 1 + sum(1 for op in graph.ops for _ in op.subgraphs())
