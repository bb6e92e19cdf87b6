"""The progress bar is drawn on terminals only."""

from __future__ import annotations

import io
import re
import sys
import threading
import time

import pytest

from cudnn_backend_py.terminal import progress_bar


def replace_stderr(monkeypatch: pytest.MonkeyPatch, *, terminal: bool = True) -> io.StringIO:
    """Replace standard error by a fake terminal of 80 columns or a fake pipe, and return its text buffer."""
    for name, value in {"TERM": "xterm-256color", "COLUMNS": "80", "FORCE_COLOR": "1"}.items():
        monkeypatch.setenv(name, value)
    shown = io.StringIO()
    monkeypatch.setattr(shown, "isatty", lambda: terminal)
    monkeypatch.setattr(sys, "stderr", shown)
    return shown


def test_the_progress_bar_shows_count_and_item(monkeypatch: pytest.MonkeyPatch) -> None:
    """For long work on a terminal the bar shows number done, total and current item; it is erased at the end."""
    shown = replace_stderr(monkeypatch)
    with progress_bar(3, "first: querying cuDNN") as (step, _):
        for place, text in enumerate(("first: querying cuDNN", "second: running eng1_k2=3", "[third]: interpreting")):
            step(place, text)
            end = time.monotonic() + 60  # a thread draws it, ten times a second on an idle machine
            while text not in shown.getvalue() and time.monotonic() < end:
                time.sleep(0.01)
    frames = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", shown.getvalue())
    drawn = dict.fromkeys(item.strip() for item in re.split(r"[\r\n]+", frames) if item.strip())
    drawn = (re.sub(r"^\S*[━╸╺ ]+", "", item) for item in drawn)
    assert [*dict.fromkeys(re.sub(r" \d+:\d\d:\d\d ", " 0:00:00 ", item) for item in drawn)] == [
        "0/3 0:00:00 first: querying cuDNN",
        "1/3 0:00:00 second: running eng1_k2=3",
        "2/3 0:00:00 [third]: interpreting",
    ]
    assert shown.getvalue().endswith("\x1b[2K")


def test_no_bar_is_drawn_for_quick_work_or_without_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    for terminal in (True, False):
        with monkeypatch.context() as patch:
            shown = replace_stderr(patch, terminal=terminal)
            with progress_bar(1, patience_s=2.0 if terminal else 0.0) as (step, _):
                step(0, "quick")
        assert shown.getvalue() == ""


def test_a_progress_bar_without_animation_is_drawn_without_a_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = replace_stderr(monkeypatch)
    before = threading.enumerate()
    with progress_bar(2, "first", still=True) as (step, _):
        assert threading.enumerate() == before
        assert "0/2" in shown.getvalue()
        step(1, "second")
        assert re.search("1/2.*second", shown.getvalue())
