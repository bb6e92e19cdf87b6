"""The families of random graphs, each in the file of its operations."""
