"""The families of random graphs, one file per kind of operation."""
