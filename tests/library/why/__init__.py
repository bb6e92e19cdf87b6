"""The room why, with torch, and with cuDNN judged its graphs."""
