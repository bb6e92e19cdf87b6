"""Which attention is the fastest over a grid of shapes: as ``cudnn-backend compare``, without its choices."""

from __future__ import annotations

import argparse
from pathlib import Path

from cudnn_backend_py.cli.compare.comparison import Comparison, as_markdown, as_text, compare
from cudnn_backend_py.info import write_record


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add how much, and where the table goes as text."""
    parser.add_argument("--little", action="store_true", help="few shapes")
    parser.add_argument("--rounds", type=int, default=11, help="rounds of GPU times")
    parser.add_argument("--markdown", type=Path, help="write the table here, as Markdown")
    parser.add_argument("--limit", type=float, default=600.0, help="seconds after which no shape is begun")


def run(options: argparse.Namespace) -> None:
    """Measure, print both tables, and write: as ``cudnn-backend compare`` does."""
    grid = "little" if options.little else "whole"
    record = compare(Comparison(f"--grid={grid}", rounds=options.rounds, limit_s=options.limit))
    print(as_text(record))
    if options.markdown is not None:
        options.markdown.write_text(as_markdown(record), encoding="utf-8")
    write_record(record, options.output)
