"""Surveys: graphs by targets and versions, baselines, every option of attention."""
