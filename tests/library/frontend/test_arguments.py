"""Arguments of a wrong type: each operation reports the argument, the value found, and the type needed."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import cudnn_backend_py.frontend as cudnn
from cudnn_backend_py.frontend.handles import set_default_target
from cudnn_backend_py.frontend.recorded import OPERATIONS
from tests.compat.programs import PROGRAMS, GraphMaker

VALUES_OF_WRONG_TYPES: dict[str, Any] = {
    "text": "abc",
    "object": object(),
    "numbers": [1.5, 1.5],
    "function": len,
    "nothing": (),
}
LIST_ARGUMENTS = ("padding", "stride", "dilation", "peer_stats", "slices", "permutation")
INTERNAL_ERROR_TEXTS = ("object is not iterable", "has no attribute", "cannot be interpreted", "not supported between",
            "unhashable", "index out of range", "argument is not a float", "could not convert")  # fmt: skip


@pytest.fixture(autouse=True)
def target_h100() -> Iterator[None]:
    set_default_target("h100")
    yield
    set_default_target(None)


class ArgumentRecorder(GraphMaker):
    """Records the arguments of the operation that a program calls; it can replace one of them."""

    def __init__(self, replaced: str = "", value: Any = None) -> None:
        super().__init__(cudnn)
        self.given: dict[str, Any] = {}
        graph = self.graph
        for name in OPERATIONS:
            if hasattr(graph, name):
                setattr(graph, name, self._make_argument_recording_method(getattr(graph, name), replaced, value))

    def _make_argument_recording_method(
        self, method: Callable[..., Any], replaced: str, value: Any
    ) -> Callable[..., Any]:
        def record_and_call(*args: Any, **kwargs: Any) -> Any:
            bound = inspect.signature(method).bind(*args, **kwargs).arguments
            self.given = {**bound.pop("keywords", {}), **bound}
            return method(**({**self.given, replaced: value} if replaced else self.given))

        return record_and_call


def _build_operation_graph(program: Callable[[Any], Any], m: GraphMaker) -> None:
    program(m)
    m.graph.validate()
    m.graph.build_operation_graph()


@pytest.mark.parametrize("program", PROGRAMS)
def test_arguments_of_a_wrong_type_are_refused_with_a_clear_message(program: str) -> None:
    plain = ArgumentRecorder()
    PROGRAMS[program](plain)
    for argument in plain.given:
        for kind, value in VALUES_OF_WRONG_TYPES.items():
            if (kind == "nothing" and argument in LIST_ARGUMENTS) or (kind == "text" and argument == "name"):
                continue  # an unset value is a ValueError of validate; a name is a text
            with pytest.raises((TypeError, ValueError, RuntimeError, cudnn.cudnnGraphNotSupportedError)) as refused:
                _build_operation_graph(PROGRAMS[program], ArgumentRecorder(argument, value))
            words = str(refused.value)
            assert not any(word in words for word in INTERNAL_ERROR_TEXTS), (argument, value, words)


@pytest.mark.parametrize("setter", ["dim", "stride", "name", "uid", "ragged_offset", "reordering_type",
                                    "ragged_offset_multiplier", "alignment_value", "data_type"])  # fmt: skip
def test_tensor_errors_name_the_attribute_of_a_wrong_type(setter: str) -> None:
    m = GraphMaker(cudnn)
    for value in ([1.5], object(), len):
        with pytest.raises(TypeError, match=r"needed|neither a cudnn.data_type"):
            getattr(m.add_tensor(2, 8, 16), f"set_{setter}")(value)
        with pytest.raises(TypeError, match=r"needed|neither a cudnn.data_type"):
            m.graph.tensor(**{"dim": [2, 8, 16], setter: value})
    assert m.add_tensor(2, 8, 16).set_reordering_type(None).get_reordering_type() == cudnn.tensor_reordering.NONE
    m.graph.add(m.add_tensor(2, 8, 16), m.graph.tensor_scalar(0.5, 3, "half"))
    with pytest.raises(TypeError, match=r"scalar_type of 'half' is 3, a cudnn.scalar_type is needed"):
        m.graph.validate()


def test_numpy_numbers_are_accepted_as_ints_and_in_lists() -> None:
    m = GraphMaker(cudnn)
    one = np.array([1, 1])
    y = m.graph.conv_fprop(
        m.add_images()[0], m.add_tensor(16, 32, 3, 3, last=True), padding=one, stride=one, dilation=one
    )
    at = m.graph.gen_index(y, axis=np.int64(2))
    m.graph.relu(at, negative_slope=np.float32(0.5)).set_output(True)
    m.graph.validate()
    m.graph.build_operation_graph()
    assert [node.node_type.name for node in m.graph.nodes] == ["CONV_FPROP", "POINTWISE", "POINTWISE"]
    assert len(m.graph.find_tensor(y.get_uid()).get_dim()) == 4


def test_flags_must_be_booleans() -> None:
    m = GraphMaker(cudnn)
    q = m.add_tensor(2, 4, 64, 64)
    with pytest.raises(TypeError, match=r"use_causal_mask of sdpa is 'False', a bool is needed"):
        m.graph.sdpa(q=q, k=q, v=q, generate_stats=False, use_causal_mask="False")
    with pytest.raises(TypeError, match=r"diagonal_alignment of sdpa is 'TOP_LEFT', a cudnn.diagonal_alignment is"):
        m.graph.sdpa(q=q, k=q, v=q, generate_stats=False, diagonal_alignment="TOP_LEFT")
    assert m.graph.sdpa(q=q, k=q, v=q, generate_stats=False, use_causal_mask=np.bool_(True))[1] is None


def test_errors_name_the_missing_argument_and_the_operation() -> None:
    with pytest.raises(TypeError, match=r"matmul\(\): missing a required argument: 'B'"):
        GraphMaker(cudnn).graph.matmul(GraphMaker(cudnn).add_tensor(2, 8, 16))


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (
            lambda m: m.graph.concatenate([m.add_tensor(2, 8, 16), m.add_tensor(8, 16)], axis=2),
            r"concatenate .* 0 has \[2, 8, 16\]",
        ),
        (
            lambda m: m.graph.moe_grouped_matmul(
                m.add_tensor(64, 32), m.add_tensor(32, 16), m.add_tensor(4, 1, 1, kind="INT32")
            ),
            "Weight has",
        ),
        (lambda m: m.graph.block_scale_quantize(m.add_tensor(1, 128, 128), block_size=0)[0], "block size"),
        (
            lambda m: m.graph.sdpa(
                *(m.add_tensor(2, 4, 64, 64) for _ in "qkv"), generate_stats=False, bias=m.add_tensor(64, 64)
            )[0],
            "Bias",
        ),
        (lambda m: m.graph.erf(m.graph.tensor_scalar(0.5)), "every input of pointwise .* is a number"),
        (lambda m: m.graph.add(m.add_tensor(2, 8, 16), m.add_tensor(2, 8, 16).set_dim([])), "dims not set"),
        (
            lambda m: m.graph.slice(m.add_tensor(2, 8, 16), [slice(0, 1)] * 3).set_dim([2, 1, 1]),
            r"slices have dims \[1, 1, 1\]",
        ),
    ],
)
def test_mismatched_dims_are_reported(make: Callable[[GraphMaker], Any], words: str) -> None:
    with pytest.raises((ValueError, RuntimeError), match=words) as refused:
        _build_operation_graph(lambda m: make(m).set_output(True), GraphMaker(cudnn))
    assert hasattr(refused.value, "code")


@pytest.mark.parametrize(
    ("option", "value", "words"),
    [
        ("sm_version", "90", "sm_version is '90', an int is needed"),
        ("sm_count", 2.5, "sm_count is 2.5, an int is needed"),
        ("name", None, "name is None, a text is needed"),
        ("kernel_cache", 3, "kernel_cache is 3, what create_kernel_cache returned is needed"),
        ("device_property", "h100", "device_property is 'h100', what create_device_properties returned is needed"),
    ],
)
def test_graph_errors_name_the_option_of_a_wrong_type(option: str, value: Any, words: str) -> None:
    with pytest.raises(TypeError, match=words):
        cudnn.pygraph(**{option: value})


@pytest.mark.parametrize("given", [None, 3, "abc", object()])
def test_an_invalid_variant_pack_is_refused_with_a_message(given: Any) -> None:
    m = GraphMaker(cudnn)
    m.graph.relu(m.add_tensor(2, 8, 16)).set_output(True)
    m.graph.build()
    with pytest.raises(TypeError, match=r"the variant pack is .* is needed"):
        m.graph.execute(given, 0)


def test_heuristics_modes_must_be_a_list() -> None:
    m = GraphMaker(cudnn)
    m.graph.relu(m.add_tensor(2, 8, 16)).set_output(True)
    with pytest.raises(TypeError, match=r"heuristics is .*, a list of cudnn.heur_mode is needed"):
        m.graph.create_execution_plans(cudnn.heur_mode.A)


@pytest.mark.parametrize(
    ("uids", "shapes", "strides", "kind", "words"),
    [
        ([1], None, None, RuntimeError, r"override_uids is \[1\], but 0 override_shapes and 0 override_strides"),
        (
            [1, 1],
            [[1, 8, 16]] * 2,
            [[128, 16, 1]] * 2,
            RuntimeError,
            r"override_uids is \[1, 1\], but 2 .* name each .* once",
        ),
        (
            [9],
            [[1, 8, 16]],
            [[128, 16, 1]],
            RuntimeError,
            r"override_uids has 9, but the uids of the graph's tensors are \[1, 2, 3\]",
        ),
        ([1], [[8, 16]], [[16, 1]], RuntimeError, r"dims \[8, 16\] .* of uid 1 must have 3 .*; give 3 of each"),
        ([1], [[-1, 8, 16]], [[128, 16, 1]], RuntimeError, "none negative"),
        (np.array([1, 9]), np.ones((2, 3), int), np.ones((2, 3), int), RuntimeError, "override_uids has 9"),
        ("a", [], [], TypeError, "override_uids is 'a', a list of int is needed"),
        ([1], [["a", 8, 16]], [[128, 16, 1]], TypeError, "override_shapes is 'a', an int is needed"),
    ],
)
def test_invalid_override_shapes_are_refused_before_cudnn_is_called(
    uids: Any, shapes: Any, strides: Any, kind: type[Exception], words: str
) -> None:
    g, pack, other = _build_matmul(), {1: 4096, 2: 4096, 3: 4096}, (uids, shapes, strides)
    for run in (
        lambda: g.get_workspace_size(None, *other),
        lambda: g.execute(pack, 0, None, *other),
        lambda: g.execute_plan_at_index(pack, 0, 0, None, *other),
    ):
        with pytest.raises(kind, match=words):
            run()


def test_without_override_shapes_the_dims_of_the_plan_are_used() -> None:
    g = _build_matmul()
    for none in (None, [], (), np.array([], int)):
        assert g.get_workspace_size(None, none, [], []) == g.get_workspace_size()
        with pytest.raises(RuntimeError, match="plan-without-device"):
            g.execute({1: 4096, 2: 4096, 3: 4096}, 0, None, none, [], [])


def test_override_shapes_for_a_missing_plan_are_refused() -> None:
    g = GraphMaker(cudnn, is_override_shape_enabled=True).graph
    with pytest.raises(RuntimeError, match="Plan index 0 is invalid: the graph has no plans"):
        g.get_workspace_size_plan_at_index(0, None, [1], [[1]], [[1]])


def _build_matmul() -> cudnn.pygraph:
    m = GraphMaker(cudnn, is_override_shape_enabled=True)
    m.graph.matmul(m.add_tensor(2, 8, 16), m.add_tensor(2, 16, 4)).set_output(True)
    m.graph.build()
    return m.graph


def test_jit_refuses_invalid_heuristics_modes() -> None:
    with pytest.raises(TypeError, match=r"heur_modes is 3, a cudnn.heur_mode, or a list of them, is needed"):
        cudnn.jit(3)
