"""Calls with real tensors raise the same errors as with meta tensors, and leave the CUDA context usable."""

from __future__ import annotations

from typing import Any

import pytest

from cudnn_backend_py import CudnnBackendError
from cudnn_backend_py.torch_ops import attention
from tests.support.torch_refusals import REFUSED_CALLS

torch: Any = pytest.importorskip("torch", reason="did not run: torch is not installed, and these tests need it")


@pytest.mark.parametrize("case", REFUSED_CALLS)
def test_real_and_meta_tensors_raise_the_same_error(case: str) -> None:
    found = []
    for device in ("cuda", "meta"):

        def make_zero_tensor(*dims: int, kind: str = "float16", device: str = device) -> Any:
            return torch.zeros(dims, dtype=getattr(torch, kind), device=device)

        function, tensors, options = REFUSED_CALLS[case](make_zero_tensor)
        with pytest.raises(CudnnBackendError) as caught:
            function(*tensors, **options)
        found.append((type(caught.value), str(caught.value).replace("cuda:0", "meta")))
    assert found[0] == found[1]
    q = torch.ones(1, 2, 16, 64, dtype=torch.float16, device="cuda")
    assert torch.equal(attention(q, q, q), q)
