"""Causes of a refusal: from reasons to one cause, checked by judging variations."""
