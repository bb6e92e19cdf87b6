"""Command line of the benchmarks: ``python -m benchmarks NAME`` measures, and writes the record as JSON."""

from __future__ import annotations

import argparse
from pathlib import Path
from types import ModuleType

from . import frontend_costs, matrix, ragged, run, same_bits, shape_classes, torch_calls, verdict_cost
from .endurance import any_shape, capture_soak, long_use, million_rounds, ten_million_calls
from .model import run as model

__all__ = ["BENCHMARKS", "main"]

# Each module has `add_options(parser)` and `run(options)`, which writes to `options.output` unless that is None.
BENCHMARKS: dict[str, ModuleType] = {
    "run": run,
    "torch-calls": torch_calls,
    "frontend": frontend_costs,
    "ragged": ragged,
    "verdict-cost": verdict_cost,
    "matrix": matrix,
    "model": model,
    "shape-classes": shape_classes,
    "same-bits": same_bits,
    "any-shape": any_shape,
    "capture-soak": capture_soak,
    "long-use": long_use,
    "million-rounds": million_rounds,
    "ten-million-calls": ten_million_calls,
}


def main() -> None:
    """Run the named measurement."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    commands = parser.add_subparsers(metavar="NAME", required=True)
    for name, module in BENCHMARKS.items():
        text = str(module.__doc__)
        command = commands.add_parser(name, help=text.partition("\n")[0], description=text)
        command.add_argument("--output", type=Path, help="file for the record as JSON")
        module.add_options(command)
        command.set_defaults(run=module.run)
    options = parser.parse_args()
    options.run(options)


if __name__ == "__main__":
    main()
