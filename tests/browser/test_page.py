"""The HTML page in a real Chromium: sizes, colours, keyboard, filter, no errors. Pictures are left in tmp_path."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from cudnn_backend_py.diagnose.report.html import render_page, render_verdict_html, render_verdict_matrix_html
from tests.support.chromium import Browser, Page
from tests.support.reporting import HOSTILE_NAME, make_render_page_arguments, make_support_matrix

# Marks every element that the keyboard should reach, and returns their number.
MARK = """(() => {
  const wanted = [...document.querySelectorAll("a[href], button, summary, input, select, [tabindex]")]
    .filter((item) => item.tabIndex >= 0 && item.checkVisibility({ visibilityProperty: true }));
  wanted.forEach((item, index) => { item.dataset.mark = index; });
  return wanted.length;
})()"""
FOCUSED = "document.activeElement.dataset.mark ?? null"
CELLS = "[...document.querySelectorAll('button.cell')]"
SHOWN = f"{CELLS}.filter((cell) => cell.checkVisibility() && !cell.parentElement.classList.contains('faded')).length"
COUNT = "document.querySelector('output').value"
WIDTHS = "[document.scrollingElement.scrollWidth, innerWidth]"


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with Browser(tmp_path_factory.mktemp("profile")) as started:
        yield started


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("page") / "report.html"
    path.write_text(render_page(**make_render_page_arguments()), encoding="utf-8")
    return path


@pytest.fixture
def page(browser: Browser, file: Path) -> Iterator[Page]:
    opened = browser.open(file)
    yield opened
    assert opened.errors() == []


def compute_contrast(page: Page, selector: str) -> float:
    """Return the WCAG ratio between the luminance of the first matching element's text and of its background."""
    return float(
        page.evaluate(
            f"""(() => {{
      const style = getComputedStyle(document.querySelector({selector!r}));
      const light = (text) => {{
        const parts = text.match(/[\\d.]+/g).slice(0, 3).map((part) => part / 255)
          .map((part) => part <= 0.03928 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4);
        return 0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2];
      }};
      const [low, high] = [light(style.color), light(style.backgroundColor)].sort((a, b) => a - b);
      return (high + 0.05) / (low + 0.05);
    }})()"""
        )
    )


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [1280, 400])
def test_page_fits_the_window_and_logs_no_errors(
    browser: Browser, file: Path, tmp_path: Path, width: int, dark: bool
) -> None:
    page = browser.open(file, width=width, dark=dark)
    assert page.evaluate(WIDTHS) == [width, width]
    picture = tmp_path / f"page-{width}-{'dark' if dark else 'light'}.png"
    page.save_screenshot(picture)
    assert struct.unpack(">I", picture.read_bytes()[16:20]) == (width,)
    page.evaluate("document.querySelectorAll('details').forEach((part) => { part.open = true; })")
    assert page.evaluate(WIDTHS) == [width, width]
    for selector in (
        ".badge.ok",
        ".badge.bad",
        ".badge.unknown",
        ".tag.ok",
        ".cause.bad",
        "td .cell.ok",
        "td .cell.bad",
    ):
        assert compute_contrast(page, selector) >= 4.5, selector
    assert compute_contrast(page, "body") >= 7
    assert page.errors() == []


def test_colours_follow_the_system(browser: Browser, file: Path) -> None:
    colours = [
        browser.open(file, dark=dark).evaluate("getComputedStyle(document.body).backgroundColor")
        for dark in (False, True)
    ]
    assert colours == ["rgb(244, 246, 248)", "rgb(15, 20, 26)"]


@pytest.mark.parametrize("width", [1280, 400])
def test_the_tab_key_reaches_every_control(browser: Browser, file: Path, width: int) -> None:
    page = browser.open(file, width=width)
    count = page.evaluate(MARK)
    assert count > 30
    reached = set()
    for _ in range(count):
        page.press_key("Tab")
        reached.add(page.evaluate(FOCUSED))
        outline = page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
        assert outline == "solid", page.evaluate("document.activeElement.outerHTML.slice(0, 200)")
    assert reached == {str(index) for index in range(count)}
    assert page.errors() == []


def test_first_tab_skips_to_the_verdicts(page: Page) -> None:
    page.press_key("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    assert page.evaluate("document.activeElement.getBoundingClientRect().left >= 0")
    page.press_key("Enter")
    assert page.evaluate("location.hash + ' ' + document.activeElement.id") == "#content content"


def test_details_open_with_the_enter_key(page: Page) -> None:
    page.evaluate("document.querySelector('article summary').focus()")
    before = page.evaluate("document.querySelector('article details').open")
    page.press_key("Enter")
    assert page.evaluate("document.querySelector('article details').open") is not before


def test_the_unfold_button_opens_all_details_of_its_graph(page: Page) -> None:
    page.evaluate("document.querySelector('.unfold').click()")
    assert page.evaluate(
        "[...document.querySelectorAll('.group')[0].querySelectorAll('details')].every((part) => part.open)"
    )
    assert not page.evaluate("document.querySelectorAll('.group')[1].querySelector('article details').open")
    assert page.evaluate("document.querySelector('.unfold').textContent") == "Fold all"


def test_text_filter_shows_only_matching_cells(page: Page) -> None:
    assert (page.evaluate(COUNT), page.evaluate(SHOWN)) == ("45 of 45", 44)
    page.evaluate("document.querySelector('[name=text]').focus()")
    page.write("HEAD DIM 20")
    shown = page.evaluate(SHOWN)
    wanted = page.evaluate(f"{CELLS}.filter((cell) => cell.title.includes('head dim 20')).length")
    assert 0 < shown == wanted < 44
    assert page.evaluate(COUNT) == f"{shown} of 45"
    page.evaluate("document.querySelector('[type=reset]').click()")
    assert page.evaluate(f"new Promise((done) => setTimeout(() => done({COUNT})))") == "45 of 45"


@pytest.mark.parametrize(
    ("name", "value", "count"), [("graph", HOSTILE_NAME, 15), ("target", "sm89", 15), ("version", "9.25.0", 9)]
)
def test_the_selection_lists_filter_the_grid(page: Page, name: str, value: str, count: int) -> None:
    options = f"[...document.querySelector('[name={name}]').options]"
    texts = page.evaluate(f"{options}.map((option) => option.text)")
    assert len(texts) > 3
    index = next(place for place, text in enumerate(texts) if text[:9] == value[:9])
    page.evaluate(
        f"document.querySelector('[name={name}]').selectedIndex = {index};"
        "document.getElementById('filter').dispatchEvent(new Event('input'))"
    )
    assert page.evaluate(COUNT) == f"{count} of 45"
    assert page.evaluate("[...document.querySelectorAll('.mx')].filter((box) => !box.hidden).length") == (
        1 if name == "graph" else 3
    )


def test_arrow_keys_move_in_the_grid_and_enter_shows_the_cell(page: Page) -> None:
    chosen = "[document.activeElement.closest('tr').dataset.target, document.activeElement.parentElement.cellIndex]"
    page.evaluate("document.querySelector('.cell[tabindex=\"0\"]').focus()")
    assert page.evaluate(chosen) == ["sm80", 1]
    walk = [("ArrowRight", "sm80", 2), ("ArrowDown", "sm89", 2), ("End", "sm89", 5), ("ArrowRight", "sm89", 5)]
    walk += [("ArrowUp", "sm80", 5), ("ArrowUp", "sm80", 5), ("Home", "sm80", 1), ("ArrowRight", "sm80", 2)]
    for key, target, column in [*walk, ("ArrowRight", "sm80", 3)]:
        page.press_key(key)
        assert page.evaluate(chosen) == [target, column], key
    page.press_key("Enter")
    text = page.evaluate("document.getElementById('panel').innerText")
    assert text.startswith("not supported: two_matmuls on sm80, cuDNN 9.24.0")
    assert "tensor 'q' has head dim 20, a multiple of 8 is needed" in text
    page.press_key("Escape")
    assert page.evaluate("document.getElementById('panel').hidden")


def test_names_with_html_are_shown_as_text_and_not_run(page: Page) -> None:
    assert page.evaluate("typeof window.hit") == "undefined"
    assert page.evaluate("document.images.length") == 0
    headings = page.evaluate("[...document.querySelectorAll('.mx h3')].map((item) => item.textContent)")
    assert headings[2] == HOSTILE_NAME.replace("\x00", "\ufffd").replace("\ud800", "\ufffd")
    page.evaluate("document.querySelectorAll('.mx')[2].querySelector('button.cell').click()")
    assert "<script>window.hit=1</script>" in page.evaluate("document.getElementById('panel').textContent")


def test_the_tensor_named_in_the_cause_is_visible_and_marked(page: Page) -> None:
    assert page.evaluate("[...document.querySelectorAll('.tensor.named .name')].map((item) => item.textContent)") == [
        "s"
    ]
    box = "document.querySelector('.drawing').getBoundingClientRect()"
    tensor = "document.querySelector('.tensor.named').getBoundingClientRect()"
    assert page.evaluate(f"{tensor}.top >= {box}.top && {tensor}.bottom <= {box}.bottom")


def test_page_is_complete_without_javascript(browser: Browser, file: Path) -> None:
    page = browser.open(file, script=False)
    page.call("Emulation.setScriptExecutionDisabled", value=False)
    assert page.evaluate("document.getElementById('filter').hidden")
    assert page.evaluate("document.querySelectorAll('article').length") == 4
    assert page.evaluate(SHOWN) == 44


@pytest.mark.parametrize(
    ("host", "dark", "ground"),
    [
        ("", False, "rgb(255, 255, 255)"),
        ("", True, "rgb(23, 30, 38)"),
        ("data-jp-theme-light=false", False, "rgb(23, 30, 38)"),
        ("data-jp-theme-light=true", True, "rgb(255, 255, 255)"),
        ("class=vscode-dark", False, "rgb(23, 30, 38)"),
        ("data-md-color-scheme=slate", False, "rgb(23, 30, 38)"),
    ],
)
def test_html_fragments_follow_the_theme_of_the_notebook(
    browser: Browser, tmp_path: Path, host: str, dark: bool, ground: str
) -> None:
    path = tmp_path / "notebook.html"
    body = render_verdict_html(make_render_page_arguments()["verdicts"][0])
    path.write_text(f"<!DOCTYPE html><meta charset=utf-8><body {host}>{body}")
    page = browser.open(path, dark=dark)
    assert page.evaluate("getComputedStyle(document.querySelector('.cbp')).backgroundColor") == ground
    assert compute_contrast(page, ".cbp") >= 7
    assert compute_contrast(page, ".cause") >= 4.5


def test_html_fragments_fit_the_width_of_a_notebook(browser: Browser, tmp_path: Path) -> None:
    path = tmp_path / "notebook.html"
    cells = [render_verdict_html(item) for item in make_render_page_arguments()["verdicts"]]
    cells.append(render_verdict_matrix_html(make_support_matrix("two_matmuls", HOSTILE_NAME)))
    path.write_text(f"<!DOCTYPE html><meta charset=utf-8>{''.join(cells)}<p id=after>after</p>", encoding="utf-8")
    page = browser.open(path, width=400)
    assert page.evaluate(WIDTHS) == [400, 400]
    assert page.evaluate("document.querySelectorAll('body > .cbp').length") == 5
    assert page.evaluate("getComputedStyle(document.getElementById('after')).color") == "rgb(0, 0, 0)"
    assert page.errors() == []
