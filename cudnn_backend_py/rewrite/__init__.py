"""Changes of graphs as values: one-step changes, overrides, and the reduction of a failing graph."""
