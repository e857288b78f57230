"""Grouping of values by a key."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable
from typing import TypeVar

K = TypeVar("K", bound=Hashable)
T = TypeVar("T")


def grouped(pairs: Iterable[tuple[K, T]]) -> defaultdict[K, list[T]]:
    """Return the values of each key, both in the order of the pairs."""
    groups: defaultdict[K, list[T]] = defaultdict(list)
    for key, value in pairs:
        groups[key].append(value)
    return groups
