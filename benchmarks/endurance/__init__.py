"""Long runs that check flat memory: a hundred thousand verdicts, a million descriptors, ten million calls."""
