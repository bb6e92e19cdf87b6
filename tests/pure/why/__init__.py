"""Tests of the package's `why`, without a library and without torch."""
