"""From a graph to a plan: lowered, asked about, chosen, built once, kept on disk."""
