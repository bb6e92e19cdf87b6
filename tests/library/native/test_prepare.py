"""The kernel that prepares a launch, compiled for the host and run thread by thread, compared with NumPy."""

from __future__ import annotations

import ctypes
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cudnn_backend_py.native.prepare import MOST_CLEARED, MOST_RAGGED, READ, ROW, THREADS
from tools.codegen.ptx import SOURCE

HOST = """
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
UNTOUCHED = 77


@pytest.fixture(scope="module")
def launch(tmp_path_factory: pytest.TempPathFactory) -> Launch:
    folder = tmp_path_factory.mktemp("prepare")
    (folder / "host.cpp").write_text(HOST.replace("SOURCE", str(SOURCE)))
    built = folder / "host.so"
    subprocess.run(["c++", "-shared", "-fPIC", "-O1", "-o", built, folder / "host.cpp"], check=True)
    library = ctypes.CDLL(str(built))

    def run(*row: int, blocks: int = 3) -> None:
        library.run(ctypes.create_string_buffer(ROW.pack(*row)), blocks, THREADS)

    return run


def place(array: Any) -> int:
    return 0 if array is None else int(array.ctypes.data)


def ints(*values: int) -> Any:
    return np.array(values, np.int32)


def fresh(*shape: int, kind: Any = np.int32) -> Any:
    return np.full(shape, UNTOUCHED, kind)


class Case:
    """A launch: lengths, and the outputs."""

    def __init__(self, batch: int, bound: int, most: tuple[int, int], **lengths: Any) -> None:
        self.batch, self.bound, self.most, self.lengths = batch, bound, most, lengths
        self.out = {"q": fresh(bound), "kv": fresh(bound)}
        self.offsets: list[tuple[Any, int, int]] = []
        self.is_wide = True
        self.table: tuple[Any, int, Any] | None = None  # block table, page size, page table
        self.rows: list[tuple[Any, tuple[int, ...]]] = []

    def row(self) -> list[int]:
        row = [self.batch, self.bound]
        for name, most in zip(("q", "kv"), self.most, strict=True):
            given = (self.lengths.get(f"cu_{name}"), self.lengths.get(f"len_{name}"))
            row += [*map(place, given), most, place(self.out[name])]
        row += [self.is_wide, len(self.offsets)]
        for out, multiplier, kind in self.offsets:
            row += [place(out), multiplier, kind]
        row += [0] * (3 * (MOST_RAGGED - len(self.offsets)))
        if self.table is None:
            row += [0] * 6
        else:
            table, page, out = self.table
            row += [place(table), table.strides[0] // 4, table.shape[1], page, out.shape[1], place(out)]
        row.append(len(self.rows))
        for out, facts in self.rows:
            row += [place(out), *facts]
        return row + [0] * (8 * (MOST_CLEARED - len(self.rows)))


@pytest.mark.parametrize("is_wide", [True, False])
@pytest.mark.parametrize("blocks", [1, 4])
def test_packed_tokens_are_prepared(launch: Launch, is_wide: bool, blocks: int) -> None:
    case = Case(3, 300, (9, 9), cu_q=ints(0, 5, 5, 14), cu_kv=ints(0, 2, 3, 10))
    kind = np.int64 if is_wide else np.int32
    case.is_wide = is_wide
    q, k = fresh(301, kind=kind), fresh(301, kind=kind)
    case.offsets = [(q, 512, False), (k, 128, True)]
    launch(*case.row(), blocks=blocks)
    np.testing.assert_array_equal(case.out["q"], [5, 0, 9, *[0] * 297])
    np.testing.assert_array_equal(case.out["kv"], [2, 1, 7, *[0] * 297])
    np.testing.assert_array_equal(q, np.array([0, 5, 5, 14, *[14] * 297]) * 512)
    np.testing.assert_array_equal(k, np.array([0, 2, 3, 10, *[10] * 297]) * 128)


def test_dense_tensors_beyond_32_bits_are_prepared(launch: Launch) -> None:
    case = Case(3, 4, (7, 9))
    q = fresh(5, kind=np.int64)
    case.offsets = [(q, 1 << 33, False)]
    launch(*case.row())
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
    case = Case(3, 5, (1, 9), cu_q=None if cu_q is None else ints(*cu_q))
    q, o = fresh(6, kind=np.int64), fresh(6, kind=np.int64)
    case.offsets = [(q, 64, READ), (o, 64, False)]
    launch(*case.row())
    starts = cu_q or [0, 1, 2, 3]
    np.testing.assert_array_equal(q, np.array(begin) * 64)
    np.testing.assert_array_equal(o, np.array([*starts[:3], *[starts[3]] * 3]) * 64)


def test_given_lengths_precede_packed_ones(launch: Launch) -> None:
    case = Case(2, 2, (8, 8), cu_q=ints(0, 8, 16), len_q=ints(3, 0), len_kv=ints(8, 1))
    launch(*case.row())
    np.testing.assert_array_equal(case.out["q"], [3, 0])
    np.testing.assert_array_equal(case.out["kv"], [8, 1])


def test_pages_beyond_a_length_are_the_first_of_the_sequence(launch: Launch) -> None:
    """Kernels load whole tiles of keys: masked numbers come from the sequence's own pages."""
    table = np.ascontiguousarray(np.array([[5, 6, -1, -1], [7, -1, -1, -1]], np.int32))[:, :3]
    case = Case(2, 3, (1, 40), len_kv=ints(17, 16))
    case.table = table, 16, fresh(3, 4)
    launch(*case.row())
    np.testing.assert_array_equal(case.table[2], [[5, 6, 5, 5], [7, 7, 7, 7], [0, 0, 0, 0]])


@pytest.mark.parametrize("blocks", [2, 3, 8])
def test_rows_of_padding_are_cleared_and_no_others(launch: Launch, blocks: int) -> None:
    """[b, s, h, words] in memory with gaps between heads and tokens; the last sequence has no keys."""
    o = fresh(2, 6, 3, 5, kind=np.uint32)
    case = Case(2, 4, (6, 6), len_q=ints(4, 6), len_kv=ints(1, 0))
    case.rows = [(o, (6 * 15, False, 15, 5, 2, 4, 9))]
    launch(*case.row(), blocks=blocks)
    wanted = fresh(2, 6, 3, 5)
    wanted[0, 4:, :2, :4] = 9
    wanted[1, :, :2, :4] = 9
    np.testing.assert_array_equal(o, wanted)


def test_rows_of_keys_are_cleared_by_their_own_lengths(launch: Launch) -> None:
    dk = fresh(2, 5, 4, kind=np.uint32)
    case = Case(2, 2, (3, 5), len_q=ints(0, 3), len_kv=ints(2, 5))
    case.rows = [(dk, (20, True, 4, 4, 1, 4, 0))]
    launch(*case.row())
    wanted = fresh(2, 5, 4)
    wanted[0, 2:] = 0
    np.testing.assert_array_equal(dk, wanted)


def test_packed_queries_without_keys_are_cleared_and_no_others(launch: Launch) -> None:
    o, stats = fresh(9, 2, 4, kind=np.uint32), fresh(9, 2, kind=np.uint32)
    case = Case(4, 4, (4, 4), cu_q=ints(0, 2, 5, 5, 9), cu_kv=ints(0, 3, 3, 3, 4))
    case.rows = [(o, (8, False, 8, 4, 2, 4, 0)), (stats, (2, False, 2, 1, 2, 1, 0xFF800000))]
    launch(*case.row(), blocks=9)
    wanted = fresh(9, 2, 4)
    wanted[2:5] = 0
    np.testing.assert_array_equal(o, wanted)
    assert np.isneginf(stats.view(np.float32)[2:5]).all()
    assert (np.delete(stats, slice(2, 5), 0) == UNTOUCHED).all()


def test_rows_may_be_far_apart(launch: Launch) -> None:
    """Offsets of more than 2^31 words are computed in 64 bits: only addresses are checked, not memory."""
    case = Case(2, 2, (1, 1), len_q=ints(1, 1), len_kv=ints(1, 1))
    case.rows = [(np.empty(0, np.uint32), (1 << 40, False, 1 << 36, 1, 1, 1, 0))]
    launch(*case.row())
    np.testing.assert_array_equal(case.out["q"], [1, 1])


def test_python_and_c_agree_on_the_arguments(tmp_path: Path) -> None:
    program = HOST.replace("SOURCE", str(SOURCE)) + "int main() { return sizeof(struct arguments) / 8; }"
    (tmp_path / "size.cpp").write_text(program)
    subprocess.run(["c++", "-o", tmp_path / "size", tmp_path / "size.cpp"], check=True)
    assert subprocess.run([tmp_path / "size"]).returncode * 8 == ROW.size
