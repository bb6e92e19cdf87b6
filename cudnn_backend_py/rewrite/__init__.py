"""Changes of graphs: single steps, overrides of properties by name, and the reduction of a failing graph."""
