"""Long use: that memory stays flat over a hundred thousand verdicts, a million descriptors, ten million calls."""
