"""From a graph to a plan: lowered, judged, chosen, built once, kept on disk."""
