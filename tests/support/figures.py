"""Store numbers that GPU tests measure, for the record of the run."""

from __future__ import annotations

import json
import os
from typing import Any


def append_measurement_to_run_record(name: str, **values: Any) -> None:
    """Append numbers to the file that becomes part of the test run's record; do nothing without a record."""
    path = os.environ.get("CUDNN_BACKEND_FIGURES")
    if path:
        with open(path, "ab", buffering=0) as file:  # unbuffered, because several processes append
            file.write((json.dumps({"name": name, **values}) + "\n").encode())
