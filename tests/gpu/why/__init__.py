"""The room why, beside torch's own answers on a GPU."""
