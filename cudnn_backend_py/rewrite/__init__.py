"""One-step changes of a graph as values."""
