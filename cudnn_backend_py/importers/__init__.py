"""Graphs of other programs: from cuDNN's log, its JSON, and that of cuDNN's frontend."""
