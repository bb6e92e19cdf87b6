"""Long runs to show that memory does not grow: 100,000 verdicts, a million descriptors, ten million calls."""
