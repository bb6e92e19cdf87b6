"""Run graphs on random data and compare the results with the NumPy interpreter, for `cudnn-backend run`."""

from .trial import ConfigTrial, Trial, run_graph

__all__ = ["ConfigTrial", "Trial", "run_graph"]
