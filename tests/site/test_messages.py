"""Test the site's search for error messages in Chromium."""

from __future__ import annotations

import json
import time
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import SITE
from tests.support.chromium import Browser, Page

FILE = Path(__file__).parents[1] / "cases" / "data" / "framework_messages.toml"
ROWS = [row for rows in tomllib.loads(FILE.read_text(encoding="utf-8")).values() for row in rows]


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with Browser(tmp_path_factory.mktemp("profile")) as started:
        yield started


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
        box.dispatchEvent(new InputEvent("input", {{ bubbles: true }})); }})()"""
    )


def test_search_finds_entries_of_messages_quoted_in_discussions(browser: Browser) -> None:
    page = browser.open(SITE / "index.html")
    texts = json.dumps([row["text"] for row in ROWS])
    found = page.evaluate(f"Promise.all({texts}.map(window.findCudnnReason))")
    led = [one["anchor"] == f"message-{row['entry']}" for one, row in zip(found, ROWS, strict=True)]
    assert sum(led) >= 0.95 * len(ROWS), [row["text"] for one, row in zip(led, ROWS, strict=True) if not one]


def test_every_message_has_an_anchor_on_the_page_of_reasons(browser: Browser) -> None:
    page = browser.open(SITE / "tables" / "reasons.html")
    for entry in {row["entry"] for row in ROWS if not row["entry"].startswith("rule-")}:
        assert page.evaluate(f"document.getElementById('message-{entry}') !== null"), entry


@pytest.mark.parametrize("text", ["No valid engine configs", "cuDNN Frontend error: No valid engine configs for X_"])
def test_search_box_links_to_the_entry_of_a_pasted_message(browser: Browser, text: str) -> None:
    page = browser.open(SITE / "glossary.html")
    enter_search_text(page, text)
    href = "document.querySelector('#reason-result a')?.href ?? ''"
    assert wait_until_true(page, f"({href}).endsWith('/tables/reasons.html#message-no-engine-configs')")


def test_a_search_for_other_text_shows_no_message(browser: Browser) -> None:
    page = browser.open(SITE / "glossary.html")
    enter_search_text(page, "No valid engine configs")
    assert wait_until_true(page, "document.querySelector('#reason-result a') !== null")
    enter_search_text(page, "engine configs")
    assert wait_until_true(page, "document.querySelector('#reason-result a') === null")


def test_pasted_log_with_message_and_refusal_reason_finds_both(browser: Browser) -> None:
    page = browser.open(SITE / "tables" / "reasons.html")
    page.evaluate("document.getElementById('reason').focus()")
    page.write(
        "No valid engine configs for Matmul_\n"
        "Warning: CUDNN_STATUS_NOT_SUPPORTED; Reason: Embedding dim per head for q and k is not a multiple of 8"
    )
    assert wait_until_true(page, "document.querySelectorAll('#reason-found a').length === 2")
