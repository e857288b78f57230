"""Rankings, and what changes between two of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise


def ranks(values: Mapping[str, float | None]) -> dict[str, int]:
    """Return the rank of each name that has a value, least first; equals share one. O(n log n)."""
    known = sorted((value, name) for name, value in values.items() if value is not None)
    found: dict[str, int] = {}
    for place, (value, name) in enumerate(known, 1):
        tied = place > 1 and known[place - 2][0] == value
        found[name] = found[known[place - 2][1]] if tied else place
    return found


def changes(
    before: Mapping[str, int], now: Mapping[str, int]
) -> tuple[tuple[tuple[str, str], ...], int]:
    """Return what changed between two rankings, of the names that both have. O(n log n).

    Returns:
        The pairs of neighbours in the new ranking of which the first was behind the second, and
        the number of all pairs whose order was turned round. Either is empty when the other is.
    """
    order = sorted((now[name], before[name], name) for name in now if name in before)
    turned = tuple(
        (ahead[2], behind[2]) for ahead, behind in pairwise(order) if ahead[1] > behind[1]
    )
    return turned, _inversions([place for _, place, _ in order])[0]


def _inversions(places: Sequence[int]) -> tuple[int, list[int]]:
    """Return how many pairs stand in descending order, and the places sorted."""
    if len(places) < 2:
        return 0, list(places)
    middle = len(places) // 2
    count_left, left = _inversions(places[:middle])
    count_right, right = _inversions(places[middle:])
    count, merged, i = count_left + count_right, [], 0
    for place in right:
        while i < len(left) and left[i] <= place:
            merged.append(left[i])
            i += 1
        count += len(left) - i
        merged.append(place)
    return count, merged + left[i:]
