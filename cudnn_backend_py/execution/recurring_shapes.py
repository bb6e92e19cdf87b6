"""Detect shapes that recur among calls, for which an exact plan is worth its build time.

A model calls one shape in all its layers, and seldom again where lengths are random. So calls in a row are one visit,
and a shape comes back with its third visit: other shapes came between, but never so many that its plans would have had
to make room for theirs. A program that calls nothing else gets there by the length of the visit, which must be longer
than two of what visits used to be. Pure.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Hashable

__all__ = ["CALLS_IN_A_ROW", "MAX_COUNTED_SHAPES", "VISITS_OF_RECURRING_SHAPE", "RecurringShapes"]

VISITS_OF_RECURRING_SHAPE = 3  # of a shape that comes back
CALLS_IN_A_ROW = 8  # calls in a row of a shape that does, where there was no other shape before
LONG_RUN_CALLS = 256  # calls in a row that are enough, however long visits used to be
MAX_COUNTED_SHAPES = 64  # shapes: with a plan for each pass, they fill a pool


class RecurringShapes:
    """Counts how often each of the last :data:`MAX_COUNTED_SHAPES` shapes recurs. Threads may share it."""

    def __init__(self) -> None:
        self._visits: OrderedDict[Hashable, int] = OrderedDict()
        self._last: Hashable = None
        self._run = 0  # calls of the visit that goes on
        self._longest = 0  # visit that is over
        self._lock = threading.Lock()

    def count_call(self, shape: Hashable) -> None:
        """Record one call with a shape."""
        with self._lock:
            if shape != self._last or not self._run:
                self._longest = max(self._longest, self._run)
                self._last, self._run = shape, 0
                self._visits[shape] = self._visits.pop(shape, 0) + 1
                if len(self._visits) > MAX_COUNTED_SHAPES:
                    self._visits.popitem(last=False)
            self._run += 1

    def add_calls_of_last_shape(self, shape: Hashable, calls: int) -> None:
        """Record calls of a shape that were reported late, if it is still the last shape."""
        with self._lock:
            if shape == self._last:
                self._run += calls

    def count_calls_until_recurring(self, shape: Hashable) -> int:
        """Return how many more consecutive calls make a shape recurring; 0 if it already is."""
        with self._lock:
            goes_on = shape == self._last
            visits = self._visits.get(shape, 0)
            if visits >= VISITS_OF_RECURRING_SHAPE:
                return 0
            if not goes_on and visits + 1 == VISITS_OF_RECURRING_SHAPE:
                return 1
            run, longest = (self._run, self._longest) if goes_on else (0, max(self._longest, self._run))
            return max(0, max(CALLS_IN_A_ROW, min(2 * longest + 1, LONG_RUN_CALLS)) - run)
