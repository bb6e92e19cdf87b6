"""A million rounds of create, set, finalize, get and destroy of descriptors: memory before, during and after."""

from __future__ import annotations

import argparse
import time

from cudnn_backend_py.generated.enums import AttributeName as Attr
from cudnn_backend_py.generated.enums import DataType, DescriptorType, PointwiseMode
from cudnn_backend_py.info import make_measurement_record_header, write_record
from cudnn_backend_py.native import Descriptor

from .memory import read_resident_bytes

__all__ = ["add_options", "run"]


def make_tensor_descriptor(uid: int) -> Descriptor:
    """Return a finalized tensor descriptor."""
    made = Descriptor(DescriptorType.TENSOR).set(Attr.TENSOR_DATA_TYPE, DataType.HALF)
    made.set(Attr.TENSOR_UNIQUE_ID, uid).set(Attr.TENSOR_BYTE_ALIGNMENT, 16)
    return made.set(Attr.TENSOR_DIMENSIONS, (2, 8, 64)).set(Attr.TENSOR_STRIDES, (512, 64, 1)).finalize()


def create_and_destroy_descriptors(number: int) -> None:
    """Create, read and destroy a tensor descriptor; every tenth round also an operation with its children."""
    x = make_tensor_descriptor(1)
    assert x.get(Attr.TENSOR_UNIQUE_ID) == 1
    if number % 10 == 0:
        mode = Descriptor(DescriptorType.POINTWISE).set(Attr.POINTWISE_MODE, PointwiseMode.RELU_FWD).finalize()
        operation = Descriptor(DescriptorType.OPERATION_POINTWISE).set(Attr.OPERATION_POINTWISE_PW_DESCRIPTOR, mode)
        operation.set(Attr.OPERATION_POINTWISE_XDESC, x).set(
            Attr.OPERATION_POINTWISE_YDESC, make_tensor_descriptor(2)
        ).finalize()
        operation.close()
    x.close()


def measure_memory(rounds: int) -> dict[str, object]:
    """Return the resident memory at the start, after each tenth of the rounds, and its growth."""
    for number in range(1000):
        create_and_destroy_descriptors(number)
    began = time.perf_counter()
    start = read_resident_bytes()
    tenths = []
    for number in range(1, rounds + 1):
        create_and_destroy_descriptors(number)
        if number % (rounds // 10) == 0:
            tenths.append(read_resident_bytes())
    return {
        "rounds": rounds,
        "seconds": round(time.perf_counter() - began, 1),
        "resident_bytes_start": start,
        "resident_bytes_after_each_tenth": tenths,
        "growth_bytes_after_first_tenth": tenths[-1] - tenths[0],
    }


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add a command-line option for the number of rounds."""
    parser.add_argument("--rounds", type=int, default=1_000_000)


def run(options: argparse.Namespace) -> None:
    """Measure the memory during all rounds, and write the record."""
    print(
        write_record(
            {**make_measurement_record_header("million-rounds"), **measure_memory(options.rounds)}, options.output
        )
    )
