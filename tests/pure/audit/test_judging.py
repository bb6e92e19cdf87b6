"""Comparison of stored results with the interpreter: of a whole result, or of one head of large attention."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cudnn_backend_py import Graph, attention
from cudnn_backend_py.audit import part
from cudnn_backend_py.audit.case import Case
from cudnn_backend_py.audit.judging import BackgroundCaseChecker, interpret_and_find_wrong_outputs
from cudnn_backend_py.audit.part import reduce_case_for_interpreter
from cudnn_backend_py.interpreter import interpret
from cudnn_backend_py.interpreter.data import convert_numbers_to_memory_image, list_input_tensors, make_inputs

from .test_case import make_case


def encode_numbers_as_memory_bytes(graph: Graph, name: str, numbers: Any) -> Any:
    return convert_numbers_to_memory_image(graph.tensor(name), numbers).reshape(-1).view(np.uint8)


def make_attention_audit_case(backward: bool, factor: float, place: tuple[int, int]) -> Case:
    """Return a case of attention in which one head of every result is multiplied by a factor."""
    make = attention.sdpa_backward if backward else attention.sdpa_forward
    graph = make(
        batch=2, heads=4, kv_heads=2, seq_q=40, head_dim=16, seq_kv=64, bias=(1, 4, 40, 64), padding=True, causal=True,
        allow_hazards=True,
    )  # fmt: skip
    inputs = make_inputs(graph)
    images = {
        one.name: encode_numbers_as_memory_bytes(graph, one.name, inputs[one.uid])
        for one in list_input_tensors(graph)
        if not one.by_value
    }
    results = interpret(graph, inputs, rounding=True)
    for name, numbers in results.items():
        moved = numbers.copy()
        moved[place[0], place[1] if moved.shape[1] == 4 else place[1] // 2] *= factor
        images[name] = encode_numbers_as_memory_bytes(graph, name, moved)
    return Case(
        entry_point="torch", place="", found=(), wrong=tuple(results), at=place, graph=graph, cudnn="9.19.0",
        library="",
        gpu="", sm=90, images=images,
    )  # fmt: skip


def test_only_a_wrong_result_is_reported() -> None:
    said = interpret_and_find_wrong_outputs(reduce_case_for_interpreter(make_case()))
    assert list(said) == ["y"]
    assert "1 of 192 elements beyond it, [2,3,4] is 7" in said["y"]
    graph = make_case().graph
    assert graph is not None
    right = np.maximum(make_case().given()["x"], 0)
    assert (
        interpret_and_find_wrong_outputs(
            reduce_case_for_interpreter(
                make_case(images={**make_case().images, "y": encode_numbers_as_memory_bytes(graph, "y", right)})
            )
        )
        == {}
    )


@pytest.mark.parametrize("backward", [False, True])
def test_the_audit_of_large_attention_finds_its_wrong_head(backward: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(part, "MOST_SCORES", 1 << 10)
    found = reduce_case_for_interpreter(make_attention_audit_case(backward, 1.5, (1, 3)))
    assert found.what == "batch 1, heads 2 to 3"
    shapes = {name: x.shape for name, x in found.results.items()}
    assert shapes == (
        {"dq": (1, 2, 40, 16), "dk": (1, 1, 64, 16), "dv": (1, 1, 64, 16)} if backward else {"o": (1, 2, 40, 16)}
    )
    assert set(interpret_and_find_wrong_outputs(found)) == set(shapes)
    assert (
        interpret_and_find_wrong_outputs(reduce_case_for_interpreter(make_attention_audit_case(backward, 1.0, (1, 3))))
        == {}
    )
    strides = {one.name: one.strides for one in found.graph.tensors if not one.virtual}
    whole = make_attention_audit_case(backward, 1.0, (0, 0)).graph
    assert whole is not None
    assert all(whole.tensor(name).strides == held for name, held in strides.items()), "layouts are the program's"


def test_small_attention_is_audited_as_a_whole() -> None:
    assert reduce_case_for_interpreter(make_attention_audit_case(False, 1.5, (0, 1))).what == ""


def test_audit_cases_are_judged_in_a_child_process() -> None:
    findings: list[Case] = []
    judging = BackgroundCaseChecker(findings.append)
    judging.add(make_case)
    judging.add(lambda: make_attention_audit_case(False, 1.0, (0, 0)))
    judging.add(lambda: 1 // 0)  # type: ignore[arg-type, return-value]
    judging.finish(60.0)
    assert [one.wrong for one in findings] == [("y",)]
    assert judging.judged == 2
    assert judging.unjudged == {"ZeroDivisionError: integer division or modulo by zero": 1}


def test_the_process_judging_audit_cases_uses_one_thread() -> None:
    """The process that checks results uses one thread, to leave CPU cores to the audited program."""
    judging = BackgroundCaseChecker(lambda _: None)
    judging.add(lambda: make_attention_audit_case(False, 1.0, (0, 0)))
    while judging.waiting_count:
        time.sleep(0.01)
    child = judging._child._child
    assert child is not None
    environment = Path(f"/proc/{child._process.pid}/environ").read_bytes().split(b"\0")
    assert {b"OPENBLAS_NUM_THREADS=1", b"OMP_NUM_THREADS=1", b"MKL_NUM_THREADS=1"} <= set(environment)
    judging.finish(60.0)


def test_nan_is_reported_even_without_an_interpreter_result(monkeypatch: pytest.MonkeyPatch) -> None:
    from cudnn_backend_py.audit import judging

    assert list(judging._find_non_finite_outputs(make_case(float("nan")))) == ["y"]
    assert judging._find_non_finite_outputs(make_case()) == {}
