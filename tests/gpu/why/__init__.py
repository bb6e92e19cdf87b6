"""The room why, next to torch's own answers on a GPU."""
