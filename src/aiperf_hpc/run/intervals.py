"""Spans of time that overlap."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence
from typing import NamedTuple


class Span(NamedTuple):
    """From when to when something lasted, in seconds."""

    begin: float
    end: float
    tolerance: float
    """How much of it may be shared with another span."""


def apart(spans: Sequence[Span]) -> list[int]:
    """Return the places of spans that can be kept so that no two of them overlap.

    The longest are kept first, of equal ones the earlier in the sequence; another only if it shares
    no more than its tolerance with each that is kept. Takes O(n log n) for n spans.
    """
    begins = sorted(span.begin for span in spans)
    latest = _Latest(len(begins))
    kept = []
    for place in sorted(range(len(spans)), key=lambda place: spans[place].begin - spans[place].end):
        begin, end, tolerance = spans[place]
        # What is kept is no shorter: it shares more if it begins and ends so far within this one.
        before = bisect_left(begins, end - tolerance)
        if end - begin <= tolerance or latest.among(before) <= begin + tolerance:
            latest.add(bisect_left(begins, begin), end)
            kept.append(place)
    return kept


class _Latest:
    """The latest of the ends at the first n places, for each n: a Fenwick tree of maxima."""

    def __init__(self, places: int) -> None:
        self._tree = [-math.inf] * (places + 1)

    def add(self, place: int, end: float) -> None:
        at = place + 1
        while at < len(self._tree):
            self._tree[at] = max(self._tree[at], end)
            at += at & -at

    def among(self, places: int) -> float:
        """Return the latest end at places below this one."""
        found, at = -math.inf, places
        while at > 0:
            found = max(found, self._tree[at])
            at -= at & -at
        return found
