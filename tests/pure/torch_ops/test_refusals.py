"""Fake tensors, compiled code and exported code raise the same error with the same text as a direct call."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import Any

import pytest

from cudnn_backend_py import CudnnBackendError
from cudnn_backend_py.torch_ops import attention, attention_varlen, attention_with_kvcache
from cudnn_backend_py.torch_ops.arguments import SCALES, TENSORS, OperatorOptions
from cudnn_backend_py.torch_ops.operators import load_torch
from tests.support.torch_refusals import REFUSED_CALLS, MakeTensors, OperatorCall

torch: Any = pytest.importorskip("torch", reason="did not run: torch is not installed, and the operators are torch's")
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")

DEFAULT_OPTIONS = OperatorOptions(None, 0.0, None, None, False, None, False, None, None, "any")


def make_tensor_factory(device: str) -> MakeTensors:
    def make_tensor(*dims: int, kind: str = "float16") -> Any:
        return torch.empty(dims, dtype=getattr(torch, kind), device=device)

    return make_tensor


def get_error(run: Callable[[], Any]) -> tuple[type[Exception], str]:
    with pytest.raises(CudnnBackendError) as caught:
        run()
    return type(caught.value), str(caught.value).replace("cuda:0", "meta")


def export_call(call: OperatorCall) -> Any:
    function, tensors, options = call

    class Module(torch.nn.Module):  # type: ignore[misc]
        def forward(self, *given: Any) -> Any:
            return function(*given, **options)

    return torch.export.export(Module(), tensors)


@pytest.fixture(autouse=True)
def _reset_dynamo() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.mark.parametrize("case", REFUSED_CALLS)
def test_errors_with_fake_tensors_equal_errors_with_meta_tensors(case: str) -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode

    found = []
    for device, mode in (("meta", nullcontext()), ("cuda", FakeTensorMode())):
        with mode:
            function, tensors, options = REFUSED_CALLS[case](make_tensor_factory(device))
            found.append(get_error(lambda: function(*tensors, **options)))  # noqa: B023  # called at once
    assert found[0] == found[1]


@pytest.mark.parametrize("case", list(REFUSED_CALLS)[::8])
@pytest.mark.parametrize("how", ["compiled", "compiled, dynamic", "exported"])
def test_errors_of_compiled_and_exported_code_equal_errors_of_direct_calls(how: str, case: str) -> None:
    function, tensors, options = call = REFUSED_CALLS[case](make_tensor_factory("meta"))
    wanted = get_error(lambda: function(*tensors, **options))
    if how == "exported":
        assert get_error(lambda: export_call(call)) == wanted
        return
    step = torch.compile(lambda *given: function(*given, **options), backend="aot_eager", dynamic="dynamic" in how)
    assert get_error(lambda: step(*tensors)) == wanted


def test_operator_called_through_torch_ops_checks_its_arguments() -> None:
    load_torch()
    make_tensor = make_tensor_factory("meta")
    q, rest = make_tensor(2, 4, 16, 64), [None] * (len(TENSORS) - 3 + len(SCALES))
    for k, words in (
        (make_tensor(2, 4, 17, 64), "v is float16"),
        (make_tensor(2, 3, 16, 64), "cannot share"),
        (make_tensor(2, 4, 16), "k has 3 dims"),
    ):
        with pytest.raises(CudnnBackendError, match=words):
            torch.ops.cudnn_backend.sdpa_forward(q, k, make_tensor(2, 4, 16, 64), *rest, *DEFAULT_OPTIONS, False)
    seven = make_tensor(2, 4, 16, 7)
    with pytest.raises(CudnnBackendError, match="the head dim of q is 7, a multiple of 8"):
        torch.ops.cudnn_backend.sdpa_forward(seven, seven, seven, *rest, *DEFAULT_OPTIONS, False)


@pytest.mark.parametrize("dynamic", [False, True])
def test_valid_calls_compile_into_one_graph(dynamic: bool) -> None:
    make_tensor = make_tensor_factory("meta")

    @torch.compile(fullgraph=True, dynamic=dynamic, backend="aot_eager")  # type: ignore[misc]
    def run_all_attention_operators(
        q: Any, packed: Any, cu: Any, pages: Any, table: Any, lengths: Any, longest: int
    ) -> tuple[Any, ...]:
        return (
            attention(q, q, q, causal=True, soft_cap=3.0, dropout=0.1),
            attention_varlen(packed, packed, packed, cu, None, longest, left_bound=5),
            attention_with_kvcache(q.transpose(1, 2), pages, pages, table, lengths, causal=True),
        )

    graphs = torch._dynamo.utils.counters["stats"]
    graphs.clear()
    for b, s in ((12, 50), (3, 70), (5, 200)):  # equal dims of the first call would be taken for one
        tensors = (
            make_tensor(b, 4, s, 64),
            make_tensor(b * s, 4, 64),
            make_tensor(b + 1, kind="int32"),
            make_tensor(9, 16, 2, 64),
        )
        dense, packed, paged = run_all_attention_operators(
            *tensors, make_tensor(b, 7, kind="int32"), make_tensor(b, kind="int32"), s
        )
        assert (dense.shape, packed.shape, paged.shape) == ((b, 4, s, 64), (b * s, 4, 64), (b, s, 4, 64))
        if not dynamic:
            return
    assert graphs["unique_graphs"] == 1


def test_unbacked_symbolic_dims_are_accepted() -> None:
    """The token counts of q and k are unbacked symbolic ints, so that tracing cannot compare them."""
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    environment = ShapeEnv()
    make_tensor = make_tensor_factory("cuda")
    with FakeTensorMode(shape_env=environment):
        q, k, v = (make_tensor(environment.create_unbacked_symint(), 4, 64) for _ in range(3))
        cu = make_tensor(3, kind="int32")
        assert attention_varlen(q, k, v, cu, cu.clone(), 16).shape[1:] == (4, 64)
