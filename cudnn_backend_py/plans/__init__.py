"""From a graph to a plan: lower, query engine configs, select, build once, cache on disk."""
