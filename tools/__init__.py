"""Tools of this repository, which are not in the wheel: README.md says what each is for."""
