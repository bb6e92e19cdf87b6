"""The families of random graphs, one file each."""
