"""Generated pages equal the output of `make regen`."""

from __future__ import annotations

from importlib.util import find_spec

import pytest

from tools.regen import FILE_WRITING_PROGRAMS, PAGE_WRITERS
from tools.repository import ROOT


@pytest.mark.parametrize("page", PAGE_WRITERS)
def test_generated_page_is_up_to_date(page: str) -> None:
    assert (ROOT / page).read_text(encoding="utf-8") == PAGE_WRITERS[page](), "run `make regen`"


@pytest.mark.parametrize("program", FILE_WRITING_PROGRAMS)
def test_program_of_make_regen_exists(program: str) -> None:
    assert find_spec(program)
