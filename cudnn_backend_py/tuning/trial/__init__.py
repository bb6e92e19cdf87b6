"""Run graphs on random data and compare with the interpreter, for `cudnn-backend run`."""

from .trial import ConfigTrial, Trial, run_graph

__all__ = ["ConfigTrial", "Trial", "run_graph"]
