"""Audit attention calls of torch and of this package's operators: sampled calls are checked while the program runs.

python examples/audited_attention.py
"""

from __future__ import annotations

import importlib.util

from cudnn_backend_py.audit import audit


def main() -> None:
    """Run a hundred attention calls in an audit and print its findings; without torch or a GPU, print a message."""
    if importlib.util.find_spec("torch") is None:
        print("needs torch and a GPU")
        return
    import torch

    from cudnn_backend_py import torch_ops

    if not torch.cuda.is_available():
        print("needs torch and a GPU")
        return
    with audit(every=10) as report:
        for turn in range(50):
            q, k, v = (torch.randn(2, 8, 256 + turn, 64, device="cuda", dtype=torch.float16) for _ in range(3))
            torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
            torch_ops.attention(q, k, v, causal=True)
    print(report)


if __name__ == "__main__":
    main()
