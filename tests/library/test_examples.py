"""Every example runs as a script, up to the verdict where there is no GPU."""

from __future__ import annotations

import os

import pytest

from tests.support.child import ROOT, older_cudnn, run_python

NO_GPU = {"CUDA_VISIBLE_DEVICES": ""}


@pytest.mark.parametrize(
    ("arguments", "older", "code", "words"),
    [
        (("forum_two_matmul.py",), False, 2, "could not be judged\nthere is no GPU in this process"),
        (("flash_forward.py",), False, 0, "on NVIDIA H100 SXM5 80GB: supported"),
        (("level0_two_matmul.py", "--target", "sm80"), True, 0, "8 candidates, 1 engine configs left\nsuccess"),
        (("level0_two_matmul.py", "--target", "sm89"), True, 0, "SHARED_MEMORY_INSUFFICIENT"),
        (
            ("level0_two_matmul.py", "--target", "sm80"),
            False,
            0,
            "non-flash composite MHA fprop is no longer supported",
        ),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else None,
)
def test_example_runs_without_a_gpu(arguments: tuple[str, ...], older: bool, code: int, words: str) -> None:
    environment = (older_cudnn() if older else dict(os.environ)) | NO_GPU
    script, *rest = arguments
    done = run_python([str(ROOT / "examples" / script), *rest], environment=environment)
    assert done.code == code, done.stderr
    assert words in done.stdout
    assert "Traceback" not in done.stderr


def test_every_example_is_run() -> None:
    scripts = {path.name for path in (ROOT / "examples").glob("*.py")} - {"__init__.py"}
    run = {"forum_two_matmul.py", "flash_forward.py", "level0_two_matmul.py"}
    assert scripts == run
