"""Random graphs of all families, run on a GPU and compared with the interpreter; each difference is reduced."""
