"""Names of earlier versions: each still works where it was, and the warning says what it is called now."""

from __future__ import annotations

from importlib import import_module

import pytest

RENAMED = {
    "diagnose.fork.apart": "diagnose.fork.run_in_fork",
    "graph.guard.guarded": "graph.guard.run_guarded",
    "graph.guard.guarded_each": "graph.guard.iterate_guarded",
    "graph.guard.told": "graph.guard.describe_failure",
    "graph.rewrite.tensors.exchanged": "graph.rewrite.tensors.replace_tensors",
    "graph.rewrite.tensors.exchanged_ops": "graph.rewrite.tensors.replace_tensors_in",
    "graph.rewrite.tensors.repacked": "graph.rewrite.tensors.repack",
    "graph.rewrite.tensors.with_ops": "graph.rewrite.tensors.keep_ops",
    "graph.rewrite.tensors.bypassed": "graph.rewrite.tensors.bypass",
    "graph.rewrite.tensors.without_fields": "graph.rewrite.tensors.drop_fields",
    "graph.rewrite.dims.resized": "graph.rewrite.dims.resize",
    "graph.rewrite.fusion.with_expanded_softmax": "graph.rewrite.fusion.expand_softmax",
    "graph.rewrite.fusion.with_scaled_scores": "graph.rewrite.fusion.scale_scores",
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
