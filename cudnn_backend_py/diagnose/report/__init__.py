"""Verdicts as text, tables, a page, annotations, an archive."""
