"""Causes of a refusal: from cuDNN's reasons to one cause, checked by judging variations of the graph."""
