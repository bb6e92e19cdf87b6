"""Long runs in which memory must stay flat: a hundred thousand verdicts, a million descriptors, ten million calls."""
