"""Test the built site in Chromium from disk: sizes, colours, keyboard, search. Pictures are in tmp_path."""

from __future__ import annotations

import importlib.util
import json
import random
import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import cudnn_backend_py as cb
from cudnn_backend_py import audit, diagnose, graph, target, testing, torch_ops, why
from cudnn_backend_py.diagnose.causes.conditions import describe_condition
from cudnn_backend_py.plans.refusals import Reason
from cudnn_backend_py.tuning import trial
from tests.conftest import SITE
from tests.support.chromium import Browser, Page
from tools.records.reasons import judge_random_graphs, list_reasons
from tools.website.reasons import list_reason_entries, list_rules, make_reason_search_key

PAGES = (
    "index.html",
    "tutorials/refusal.html",
    "tables/reasons.html",
    "known-issues.html",
    "gallery.html",
    "operations.html",
)
MORE = (
    "how-to/install.html",
    "attention-support.html",
    "reference/diagnose.html",
    "reference/commands.html",
    "how-to/index.html",
)
WIDTHS = "[document.scrollingElement.scrollWidth, innerWidth]"
COLOURS = "[getComputedStyle(document.body).color, getComputedStyle(document.body).backgroundColor]"
AXE = """axe.run(document, { resultTypes: ["violations"] }).then(({ violations }) => violations
  .filter(({ impact }) => impact === "serious" || impact === "critical")
  .map(({ id, nodes }) => [id, nodes.length, nodes[0].html.slice(0, 200), nodes[0].any[0]?.message ?? ""]))"""
WANTED = 100
FRESH_SEED = 1_000_003  # not among the targets of the collected table


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with Browser(tmp_path_factory.mktemp("profile")) as started:
        yield started


@pytest.mark.parametrize("name", PAGES)
def test_pages_show_the_version_of_the_package(name: str) -> None:
    assert f"Version {cb.__version__}. Apache-2.0" in (SITE / name).read_text(encoding="utf-8")


def compute_luminance(colour: str) -> float:
    numbers = [float(part) for part in colour[colour.index("(") + 1 : -1].split(",")[:3]]
    parts = [part / 255 / 12.92 if part <= 10 else ((part / 255 + 0.055) / 1.055) ** 2.4 for part in numbers]
    return 0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2]


def list_page_errors(page: Page) -> list[str]:
    """Return the errors of a page, without requests for the site's own files; other requests count as errors."""
    own = (f"request for {SITE.as_uri()}/", "request for data:")
    return [one for one in page.errors() if not one.startswith(own)]


def find_accessibility_violations(page: Page) -> list[list[str]]:
    """Return axe-core's accessibility violations: rule, number of elements, and HTML and message of the first one."""
    [folder] = importlib.util.find_spec("axe_core_python").submodule_search_locations
    page.evaluate((Path(folder) / "axe.min.js").read_text(encoding="utf-8") + "; null")
    return page.evaluate(AXE)


@pytest.mark.parametrize("name", PAGES + MORE)
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [1280, 400])
def test_page_fits_the_window_and_reports_no_errors(
    browser: Browser, tmp_path: Path, name: str, width: int, dark: bool
) -> None:
    page = browser.open(SITE / name, width=width, dark=dark)
    assert page.evaluate(WIDTHS) == [width, width]
    text, ground = map(compute_luminance, page.evaluate(COLOURS))
    assert (ground < 0.1) is dark
    assert (max(text, ground) + 0.05) / (min(text, ground) + 0.05) >= 7
    picture = tmp_path / f"{Path(name).stem}-{width}-{'dark' if dark else 'light'}.png"
    assert find_accessibility_violations(page) == []
    page.save_screenshot(picture, whole=name != "tables/reasons.html")  # which is longer than Chromium draws
    assert picture.stat().st_size > 10_000
    assert list_page_errors(page) == []


def test_every_public_name_is_in_the_reference() -> None:
    html = [path.read_text(encoding="utf-8") for path in (SITE / "reference").glob("*.html")]
    documented = {
        place.rpartition(".")[2] for page in html for place in re.findall(r'id="(cudnn_backend_py[\w.]+)"', page)
    }
    documented |= {name for page in html for name in re.findall(r'<h2 id="\w+">(\w+)<', page)}  # enums
    rooms = (cb, diagnose, graph, target, testing, torch_ops, why, audit, trial)
    names = {name for room in rooms for name in room.__all__} - {"Attr", "__version__"}
    modules = {"capi", "enums", "reference"}
    assert names - documented == modules


def test_first_page_shows_the_verdict_without_scrolling(browser: Browser) -> None:
    page = browser.open(SITE / "index.html", width=1280, height=800)
    bottom = "document.querySelector('article pre').getBoundingClientRect().bottom"
    assert page.evaluate(f"{bottom} < innerHeight")
    shown = page.evaluate("document.querySelector('article pre').innerText")
    assert shown.startswith("NOT SUPPORTED")
    assert "cause    " in shown
    assert "remedy   " in shown


FOCUS = """(() => { const at = document.activeElement; const box = at.getBoundingClientRect();
  return [at.tagName, at.href ?? "", getComputedStyle(at).outlineStyle, box.width * box.height > 0]; })()"""


@pytest.mark.parametrize("width", [1280, 400])
def test_keyboard_reaches_all_links_and_focus_is_visible(browser: Browser, width: int) -> None:
    page = browser.open(SITE / "tutorials" / "index.html", width=width)
    wanted = set(page.evaluate("[...document.querySelectorAll('article td a')].map((link) => link.href)"))
    assert len(wanted) == len([*(SITE / "tutorials").glob("*.html")]) - 1  # all except the list itself
    reached = set()
    for _ in range(80):
        page.press_key("Tab")
        _, href, outline, _ = page.evaluate(FOCUS)
        if href in wanted:
            assert outline == "solid", href
            reached.add(href)
    assert reached == wanted


def test_first_tab_skips_to_the_content(browser: Browser) -> None:
    page = browser.open(SITE / "known-issues.html")
    page.press_key("Tab")
    assert page.evaluate("document.activeElement.classList.contains('md-skip')")


def wait_until_true(page: Page, script: str) -> bool:
    end = time.monotonic() + 30
    while time.monotonic() < end:
        if page.evaluate(script):
            return True
        time.sleep(0.05)
    return False


def enter_search_text(page: Page, text: str) -> None:
    page.evaluate(
        f"""(() => {{ const box = document.querySelector(".md-search__input"); box.focus();
        box.value = {json.dumps(text)};
        box.dispatchEvent(new InputEvent("input", {{ bubbles: true }}));
        box.dispatchEvent(new KeyboardEvent("keyup", {{ bubbles: true }})); }})()"""
    )


@pytest.mark.parametrize(
    ("words", "place"),
    [
        ("dsink-ragged", "known-issues.html"),
        ("sink", "attention-support.html"),
        ("paged_cache_load", "operations.html"),
        ("whatif", "tutorials/refusal.html"),
        ("build_plan", "reference/plans.html"),
        ("cuda graph", "execution.html"),
    ],
)
def test_search_in_the_site_on_disk_finds_the_page(browser: Browser, words: str, place: str) -> None:
    page = browser.open(SITE / "index.html")
    enter_search_text(page, words)
    links = "[...document.querySelectorAll('.md-search-result__link')].map((link) => link.href)"
    assert wait_until_true(page, f"{links}.some((link) => link.includes('/{place}'))"), page.evaluate(links)


def test_search_can_be_used_by_keyboard(browser: Browser) -> None:
    page = browser.open(SITE / "index.html")
    page.press_key("s")
    assert wait_until_true(page, "document.activeElement.classList.contains('md-search__input')")
    page.write("dsink-ragged")
    page.press_key("End")  # the search runs when a key is released
    assert wait_until_true(
        page, "document.querySelector('.md-search-result__link[href*=\"known-issues.html\"]') !== null"
    )
    page.press_key("ArrowDown")
    _, href, outline, seen = page.evaluate(FOCUS)
    assert outline == "solid"
    assert seen
    page.press_key("Enter")
    assert wait_until_true(page, f"location.href === {json.dumps(href)}")


def find_reason_entry(page: Page, text: str) -> dict[str, str]:
    found: dict[str, str] = page.evaluate(f"window.findCudnnReason({json.dumps(text)})")
    return found


def test_search_box_links_to_the_entry_of_a_refusal_reason(browser: Browser) -> None:
    page = browser.open(SITE / "glossary.html")
    [entry] = [
        one
        for one in list_reason_entries()
        if one.statement == "Embedding dim per head for q and k is not a multiple of 8"
    ]
    for text in (
        f"CUDNN_STATUS_NOT_SUPPORTED_SHAPE: {entry.text}",
        f"Warning: {entry.status}; Reason: {entry.text}",
        entry.statement,
    ):
        enter_search_text(page, text)
        href = "document.querySelector('#reason-result a')?.href ?? ''"
        assert wait_until_true(page, f"({href}).endsWith('/tables/reasons.html#{entry.anchor}')"), text
    opened = browser.open(SITE / "tables" / "reasons.html")
    assert opened.evaluate(f"document.getElementById({json.dumps(entry.anchor)}) !== null")


def test_page_of_reasons_explains_a_pasted_message(browser: Browser) -> None:
    page = browser.open(SITE / "tables" / "reasons.html")
    page.evaluate("document.getElementById('reason').focus()")
    page.write(
        "CUDNN_STATUS_NOT_SUPPORTED_ARCH_MISMATCH: only Hopper is supported for this engine at: !(900 <= deviceVer)"
    )
    assert wait_until_true(page, "document.querySelector('#reason-found a') !== null")
    assert "only Hopper is supported" in page.evaluate("document.querySelector('#reason-found').innerText")


def collect_refusal_reasons_not_in_the_table() -> list[Reason]:
    """Return distinct refusal reasons of the available cuDNN for random graphs not used for the page's table."""
    found: dict[str, Reason] = {}
    for _, verdict in judge_random_graphs(FRESH_SEED):
        found |= {make_reason_search_key(reason.text): reason for reason in list_reasons(verdict)}
        if len(found) >= 2 * WANTED:
            break
    return random.Random(0).sample(sorted(found.values(), key=str), WANTED)


def test_search_explains_fresh_refusal_reasons_of_this_cudnn(browser: Browser) -> None:
    page = browser.open(SITE / "index.html")
    places = {entry.anchor for entry in list_reason_entries()} | {rule.anchor for rule in list_rules()}
    hows: dict[str, list[str]] = {}
    for reason in collect_refusal_reasons_not_in_the_table():
        found = find_reason_entry(page, str(reason))
        assert found["anchor"] in places
        # A rule alone is an explanation of a sentence or a call; of a condition, together with it in plain English.
        is_explained = found["words"] or " " in reason.statement or found["anchor"] == "rule-step"
        hows.setdefault(found["how"] if is_explained or "entry" in found["how"] else "no explanation", []).append(
            str(reason)
        )
    print({how: len(texts) for how, texts in hows.items()})
    assert len([*hows.get("no entry", ()), *hows.get("no explanation", ())]) <= 0.01 * WANTED, hows
    assert len(hows["its entry"]) >= 0.9 * WANTED, {how: texts for how, texts in hows.items() if how != "its entry"}


def test_every_reason_entry_is_found_by_its_own_text(browser: Browser) -> None:
    page = browser.open(SITE / "index.html")
    texts = [f"{entry.status}: {entry.text}" for entry in list_reason_entries()]
    found = page.evaluate(f"Promise.all({json.dumps(texts)}.map(window.findCudnnReason))")
    by_anchor = {entry.anchor: entry for entry in list_reason_entries()}
    others = [
        (entry.text, one)
        for entry, one in zip(list_reason_entries(), found, strict=True)
        if one["how"] != "its entry"
        or make_reason_search_key(by_anchor[one["anchor"]].text) != make_reason_search_key(entry.text)
    ]
    assert others == []
    assert [one["words"] for one in found] == [describe_condition(entry.text) for entry in list_reason_entries()]
