"""The interpreter's dropout mask compared with masks that cuDNN 9.19 dumped on an H100."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from cudnn_backend_py.interpreter.philox import dropout_mask

MASK_DUMPS = json.loads((Path(__file__).parent / "data" / "philox-dumps.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize(
    "dump", MASK_DUMPS, ids=lambda dump: f"{dump['seed']}-{dump['offset']}-{dump['dims']}-{dump['keep']}"
)
def test_dropout_mask_equals_the_mask_dumped_by_cudnn(dump: dict[str, object]) -> None:
    dims = tuple(dump["dims"])  # type: ignore[arg-type]
    bits = np.unpackbits(np.frombuffer(bytes.fromhex(str(dump["bits"])), np.uint8))
    mask = dropout_mask(dump["seed"], dump["offset"], dims, float(dump["keep"]))  # type: ignore[arg-type]
    rows, columns = min(dims[2], 64), min(dims[3], 64)
    shown = mask[:, :, :rows, :columns].astype(np.uint8).ravel()
    np.testing.assert_array_equal(shown, bits[: shown.size])


def test_dropout_mask_is_independent_of_the_number_of_columns() -> None:
    wide = dropout_mask(7, 3, (2, 2, 40, 100), 0.8)
    np.testing.assert_array_equal(wide[..., :50], dropout_mask(7, 3, (2, 2, 40, 50), 0.8))


def test_keep_rate_is_within_four_standard_deviations() -> None:
    for keep in (0.1, 0.5, 0.9):
        mask = dropout_mask(11, 0, (2, 4, 512, 512), keep)
        independent = mask.size / 4  # at offsets divisible by 4, four rows of eight repeat
        assert abs(mask.mean() - keep) < 4 * np.sqrt(keep * (1 - keep) / independent)


def test_a_philox_offset_of_32_gives_the_mask_of_the_next_head() -> None:
    heads = dropout_mask(5, 0, (1, 2, 64, 64), 0.5)
    np.testing.assert_array_equal(heads[0, 1], dropout_mask(5, 32, (1, 1, 64, 64), 0.5)[0, 0])


def test_negative_seed_is_taken_modulo_2_to_the_64() -> None:
    one = dropout_mask(-1, 0, (1, 1, 32, 32), 0.5)
    np.testing.assert_array_equal(one, dropout_mask(2**64 - 1, 0, (1, 1, 32, 32), 0.5))
