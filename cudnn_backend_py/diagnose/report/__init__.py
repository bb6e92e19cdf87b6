"""Verdicts as text, tables, HTML page, annotations and archive."""
