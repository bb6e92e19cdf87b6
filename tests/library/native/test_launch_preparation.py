"""The CUDA kernel that prepares a launch, compiled for the host and run thread by thread, compared with NumPy."""

from __future__ import annotations

import ctypes
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cudnn_backend_py.native.prepare_kernel import (
    ARGUMENT_ROW,
    MAX_CLEARED_TENSORS,
    MAX_RAGGED_TENSORS,
    Q_ROWS_READ,
    THREADS_PER_BLOCK,
)
from tools.codegen.ptx import CUDA_SOURCE

HOST_PROGRAM_SOURCE = """
#define __device__
#define __global__
static struct { unsigned x; } blockIdx, threadIdx, blockDim, gridDim;
#include "SOURCE"
extern "C" void run(const struct arguments *a, unsigned blocks, unsigned threads) {
    gridDim.x = blocks, blockDim.x = threads;
    for (blockIdx.x = 0; blockIdx.x < blocks; blockIdx.x++)
        for (threadIdx.x = 0; threadIdx.x < threads; threadIdx.x++) cudnn_backend_py_prepare(*a);
}
"""
Launch = Callable[..., None]
UNWRITTEN_VALUE = 77


@pytest.fixture(scope="module")
def launch(tmp_path_factory: pytest.TempPathFactory) -> Launch:
    folder = tmp_path_factory.mktemp("prepare")
    (folder / "host.cpp").write_text(HOST_PROGRAM_SOURCE.replace("SOURCE", str(CUDA_SOURCE)))
    built = folder / "host.so"
    subprocess.run(["c++", "-shared", "-fPIC", "-O1", "-o", built, folder / "host.cpp"], check=True)
    library = ctypes.CDLL(str(built))

    def run_kernel(*row: int, blocks: int = 3) -> None:
        library.run(ctypes.create_string_buffer(ARGUMENT_ROW.pack(*row)), blocks, THREADS_PER_BLOCK)

    return run_kernel


def get_address(array: Any) -> int:
    return 0 if array is None else int(array.ctypes.data)


def make_int32_array(*values: int) -> Any:
    return np.array(values, np.int32)


def make_unwritten_array(*shape: int, kind: Any = np.int32) -> Any:
    return np.full(shape, UNWRITTEN_VALUE, kind)


class LaunchPreparation:
    """One launch of the preparation kernel: the sequence lengths it reads and the arrays it writes."""

    def __init__(self, batch: int, bound: int, most: tuple[int, int], **lengths: Any) -> None:
        self.batch, self.bound, self.most, self.lengths = batch, bound, most, lengths
        self.out = {"q": make_unwritten_array(bound), "kv": make_unwritten_array(bound)}
        self.offsets: list[tuple[Any, int, int]] = []
        self.is_wide = True
        self.table: tuple[Any, int, Any] | None = None  # block table, page size, page table
        self.rows: list[tuple[Any, tuple[int, ...]]] = []

    def make_argument_row(self) -> list[int]:
        row = [self.batch, self.bound]
        for name, most in zip(("q", "kv"), self.most, strict=True):
            given = (self.lengths.get(f"cu_{name}"), self.lengths.get(f"len_{name}"))
            row += [*map(get_address, given), most, get_address(self.out[name])]
        row += [self.is_wide, len(self.offsets)]
        for out, multiplier, kind in self.offsets:
            row += [get_address(out), multiplier, kind]
        row += [0] * (3 * (MAX_RAGGED_TENSORS - len(self.offsets)))
        if self.table is None:
            row += [0] * 6
        else:
            table, page, out = self.table
            row += [get_address(table), table.strides[0] // 4, table.shape[1], page, out.shape[1], get_address(out)]
        row.append(len(self.rows))
        for out, facts in self.rows:
            row += [get_address(out), *facts]
        return row + [0] * (8 * (MAX_CLEARED_TENSORS - len(self.rows)))


@pytest.mark.parametrize("is_wide", [True, False])
@pytest.mark.parametrize("blocks", [1, 4])
def test_packed_tokens_give_lengths_and_offsets(launch: Launch, is_wide: bool, blocks: int) -> None:
    case = LaunchPreparation(3, 300, (9, 9), cu_q=make_int32_array(0, 5, 5, 14), cu_kv=make_int32_array(0, 2, 3, 10))
    kind = np.int64 if is_wide else np.int32
    case.is_wide = is_wide
    q, k = make_unwritten_array(301, kind=kind), make_unwritten_array(301, kind=kind)
    case.offsets = [(q, 512, False), (k, 128, True)]
    launch(*case.make_argument_row(), blocks=blocks)
    np.testing.assert_array_equal(case.out["q"], [5, 0, 9, *[0] * 297])
    np.testing.assert_array_equal(case.out["kv"], [2, 1, 7, *[0] * 297])
    np.testing.assert_array_equal(q, np.array([0, 5, 5, 14, *[14] * 297]) * 512)
    np.testing.assert_array_equal(k, np.array([0, 2, 3, 10, *[10] * 297]) * 128)


def test_dense_tensors_give_offsets_beyond_32_bits(launch: Launch) -> None:
    case = LaunchPreparation(3, 4, (7, 9))
    q = make_unwritten_array(5, kind=np.int64)
    case.offsets = [(q, 1 << 33, False)]
    launch(*case.make_argument_row())
    np.testing.assert_array_equal(case.out["q"], [7, 7, 7, 0])
    np.testing.assert_array_equal(case.out["kv"], [9, 9, 9, 0])
    np.testing.assert_array_equal(q, np.array([0, 1, 2, 3, 3]) << 33)


@pytest.mark.parametrize(
    ("cu_q", "begin"),
    [
        (None, [0, 1, 2, 2, 2, 3]),
        ([0, 1, 1, 2], [0, 1, 1, 1, 1, 2]),
        ([0, 1, 1, 1], [0, 0, 0, 0, 0, 1]),
        ([0, 0, 0, 0], [0, 0, 0, 0, 0, 0]),
    ],
    ids=["dense", "packed", "the first has the only row", "no rows"],
)
def test_reads_of_each_sequence_start_within_the_tensor(launch: Launch, cu_q: Any, begin: list[int]) -> None:
    case = LaunchPreparation(3, 5, (1, 9), cu_q=None if cu_q is None else make_int32_array(*cu_q))
    q, o = make_unwritten_array(6, kind=np.int64), make_unwritten_array(6, kind=np.int64)
    case.offsets = [(q, 64, Q_ROWS_READ), (o, 64, False)]
    launch(*case.make_argument_row())
    starts = cu_q or [0, 1, 2, 3]
    np.testing.assert_array_equal(q, np.array(begin) * 64)
    np.testing.assert_array_equal(o, np.array([*starts[:3], *[starts[3]] * 3]) * 64)


def test_given_lengths_override_lengths_of_packed_tokens(launch: Launch) -> None:
    case = LaunchPreparation(
        2, 2, (8, 8), cu_q=make_int32_array(0, 8, 16), len_q=make_int32_array(3, 0), len_kv=make_int32_array(8, 1)
    )
    launch(*case.make_argument_row())
    np.testing.assert_array_equal(case.out["q"], [3, 0])
    np.testing.assert_array_equal(case.out["kv"], [8, 1])


def test_pages_beyond_a_length_repeat_the_first_page(launch: Launch) -> None:
    """Kernels load whole tiles of keys: masked keys are then read from the sequence's own pages."""
    table = np.ascontiguousarray(np.array([[5, 6, -1, -1], [7, -1, -1, -1]], np.int32))[:, :3]
    case = LaunchPreparation(2, 3, (1, 40), len_kv=make_int32_array(17, 16))
    case.table = table, 16, make_unwritten_array(3, 4)
    launch(*case.make_argument_row())
    np.testing.assert_array_equal(case.table[2], [[5, 6, 5, 5], [7, 7, 7, 7], [0, 0, 0, 0]])


@pytest.mark.parametrize("blocks", [2, 3, 8])
def test_only_padding_rows_of_an_output_are_cleared(launch: Launch, blocks: int) -> None:
    """The output is [b, s, h, words] in memory, with gaps between heads and tokens; the last sequence has no keys."""
    o = make_unwritten_array(2, 6, 3, 5, kind=np.uint32)
    case = LaunchPreparation(2, 4, (6, 6), len_q=make_int32_array(4, 6), len_kv=make_int32_array(1, 0))
    case.rows = [(o, (6 * 15, False, 15, 5, 2, 4, 9))]
    launch(*case.make_argument_row(), blocks=blocks)
    wanted = make_unwritten_array(2, 6, 3, 5)
    wanted[0, 4:, :2, :4] = 9
    wanted[1, :, :2, :4] = 9
    np.testing.assert_array_equal(o, wanted)


def test_rows_of_keys_beyond_the_key_length_are_cleared(launch: Launch) -> None:
    dk = make_unwritten_array(2, 5, 4, kind=np.uint32)
    case = LaunchPreparation(2, 2, (3, 5), len_q=make_int32_array(0, 3), len_kv=make_int32_array(2, 5))
    case.rows = [(dk, (20, True, 4, 4, 1, 4, 0))]
    launch(*case.make_argument_row())
    wanted = make_unwritten_array(2, 5, 4)
    wanted[0, 2:] = 0
    np.testing.assert_array_equal(dk, wanted)


def test_only_packed_queries_without_keys_are_cleared(launch: Launch) -> None:
    o, stats = make_unwritten_array(9, 2, 4, kind=np.uint32), make_unwritten_array(9, 2, kind=np.uint32)
    case = LaunchPreparation(4, 4, (4, 4), cu_q=make_int32_array(0, 2, 5, 5, 9), cu_kv=make_int32_array(0, 3, 3, 3, 4))
    case.rows = [(o, (8, False, 8, 4, 2, 4, 0)), (stats, (2, False, 2, 1, 2, 1, 0xFF800000))]
    launch(*case.make_argument_row(), blocks=9)
    wanted = make_unwritten_array(9, 2, 4)
    wanted[2:5] = 0
    np.testing.assert_array_equal(o, wanted)
    assert np.isneginf(stats.view(np.float32)[2:5]).all()
    assert (np.delete(stats, slice(2, 5), 0) == UNWRITTEN_VALUE).all()


def test_cleared_rows_may_be_more_than_32_bits_apart(launch: Launch) -> None:
    """Offsets of more than 2^31 words are computed in 64 bits: only addresses are checked, not memory."""
    case = LaunchPreparation(2, 2, (1, 1), len_q=make_int32_array(1, 1), len_kv=make_int32_array(1, 1))
    case.rows = [(np.empty(0, np.uint32), (1 << 40, False, 1 << 36, 1, 1, 1, 0))]
    launch(*case.make_argument_row())
    np.testing.assert_array_equal(case.out["q"], [1, 1])


def test_python_and_c_agree_on_the_size_of_the_kernel_arguments(tmp_path: Path) -> None:
    program = (
        HOST_PROGRAM_SOURCE.replace("SOURCE", str(CUDA_SOURCE)) + "int main() { return sizeof(struct arguments) / 8; }"
    )
    (tmp_path / "size.cpp").write_text(program)
    subprocess.run(["c++", "-o", tmp_path / "size", tmp_path / "size.cpp"], check=True)
    assert subprocess.run([tmp_path / "size"]).returncode * 8 == ARGUMENT_ROW.size
