"""Tests of the room why with torch and cuDNN."""
