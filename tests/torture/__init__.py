"""Torture tests with random input, interruptions and damage: run by hand for any time, and briefly by the tests.

``python -m tests.torture --minutes 10 --seed 7 [AREA ...]`` runs round after round, each with its own seed, and
prints counts and, for each failure, the command that repeats it. An area is a module of this folder
with a function ``run_random_round(seed, folder)``: one round of a few seconds in an empty folder, which returns its
counts and raises :class:`.harness.BrokenGuarantee` if the package breaks a documented guarantee. A round ends only
processes that it started.
"""
