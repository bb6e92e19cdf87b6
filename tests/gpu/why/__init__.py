"""Compare the room why with torch's own answers on a GPU."""
