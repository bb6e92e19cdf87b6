"""Surveys: graphs on many targets and versions, baselines, all options of attention."""
