"""The room why, without a library and without torch."""
