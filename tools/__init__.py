"""Programs for developers of the package, not in the wheel; README.md in this folder has the purpose of each."""
