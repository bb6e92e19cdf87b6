"""Generated pages equal the output of `make regen`."""

from __future__ import annotations

from importlib.util import find_spec

import pytest

from tools.regen import PAGES, PROGRAMS
from tools.repository import ROOT


@pytest.mark.parametrize("page", PAGES)
def test_page_is_current(page: str) -> None:
    assert (ROOT / page).read_text(encoding="utf-8") == PAGES[page](), "run `make regen`"


@pytest.mark.parametrize("program", PROGRAMS)
def test_program_of_make_regen_exists(program: str) -> None:
    assert find_spec(program)
