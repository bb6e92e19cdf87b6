"""The room why, with torch, and with cuDNN asked about its graphs."""
