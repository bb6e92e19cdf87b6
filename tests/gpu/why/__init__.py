"""Tests of the package's `why` compared with torch's own answers on a GPU."""
