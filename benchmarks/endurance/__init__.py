"""Long runs that check for flat memory: 100,000 verdicts, a million descriptors, ten million calls."""
