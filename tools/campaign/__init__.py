"""Random graphs of all families, run on a GPU and compared with the interpreter; failures are reduced."""
