"""Run random graphs of all families on a GPU, compare with the interpreter, and reduce graphs that differ."""
