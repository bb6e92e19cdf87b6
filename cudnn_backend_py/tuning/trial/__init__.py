"""A graph run on made-up data and compared with the interpreter: what `cudnn-backend run` does."""

from .trial import ConfigTrial, Trial, run_graph

__all__ = ["ConfigTrial", "Trial", "run_graph"]
