"""Names of earlier versions: each still works where it was, and the warning says what it is called now."""

from __future__ import annotations

from importlib import import_module

import pytest

RENAMED = {
    "graph.attention.recognize.ReadAttention": "graph.attention.problem.UncheckedAttention",
    "plans.select.Refused": "plans.candidate.Candidate",
}


def find(name: str) -> object:
    module, _, attribute = name.rpartition(".")
    return getattr(import_module(f"cudnn_backend_py.{module}"), attribute)


@pytest.mark.parametrize(("former", "new"), RENAMED.items())
def test_a_former_name_works_and_warns(former: str, new: str) -> None:
    with pytest.warns(DeprecationWarning, match=rf"{former} is now cudnn_backend_py\.{new}$"):
        found = find(former)
    assert found is find(new)


@pytest.mark.parametrize("module", sorted({name.rpartition(".")[0] for name in RENAMED}))
def test_an_unknown_name_is_no_attribute(module: str) -> None:
    with pytest.raises(AttributeError, match=f"module 'cudnn_backend_py.{module}' has no attribute 'nothing'"):
        find(f"{module}.nothing")
