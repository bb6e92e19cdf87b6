"""Tools of this repository, not in the wheel: README.md has the purpose of each."""
