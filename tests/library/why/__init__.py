"""Tests of the package's `why` with torch, and with cuDNN judging its graphs."""
