"""Tests of the room why without a library and without torch."""
