"""Modules are still there under the names they had, and say the new ones."""

from __future__ import annotations

import importlib
import sys

import pytest

from cudnn_backend_py.moved import MOVED


@pytest.mark.parametrize("former", sorted(MOVED))
def test_a_former_name_imports_with_a_warning(former: str, monkeypatch: pytest.MonkeyPatch) -> None:
    name, new = f"cudnn_backend_py.{former}", f"cudnn_backend_py.{MOVED[former]}"
    monkeypatch.delitem(sys.modules, name, raising=False)
    with pytest.warns(DeprecationWarning, match=f"^{name} is now {new}$"):
        module = importlib.import_module(name)
    assert module is importlib.import_module(new)
    assert module.__name__ == module.__spec__.name == new


def test_names_of_packages_that_were_modules_are_still_there() -> None:
    from cudnn_backend_py import cli, execution, plans, testing, tuning, versions

    assert callable(cli.main)
    assert execution.execute is importlib.import_module("cudnn_backend_py").execute
    assert {"Plan", "build_plan", "load_plan"} <= set(vars(plans))
    assert callable(testing.assert_supported)
    assert callable(testing.assert_not_supported)
    assert callable(tuning.autotune)
    assert {"install", "list_installed", "find_installed", "verify"} <= set(vars(versions))


def test_an_unknown_name_is_no_module() -> None:
    with pytest.raises(ModuleNotFoundError, match="nowhere"):
        importlib.import_module("cudnn_backend_py.nowhere")
