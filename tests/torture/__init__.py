"""Stress tests of the package, to run manually for any time, and in short form in the tests.

``python -m tests.torture --minutes 10 --seed 7 [AREA ...]`` makes round after round, each from a seed of its own, and
prints what was counted and, for each failure, the command that makes it again. An area is a module next to this file
with one function, ``attack(seed, folder)``: one round of a few seconds in an empty folder, which returns what it
counted and raises :class:`Broken` where a promise does not hold. A round ends only processes that it started.
"""
