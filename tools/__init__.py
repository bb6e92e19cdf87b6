"""Tools of this repository outside the wheel; README.md describes each."""
