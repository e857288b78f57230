"""What reaching a quality cost, and what paying more bought."""

from __future__ import annotations

from collections.abc import Sequence

HOUR = 3600.0


def cost_of(seconds: float, price_per_hour: float) -> float:
    """Return the cost of a machine for some time, in the price's currency.

    Source: DAWNBench, entries' README, Cost: time in hours × price of the instance per hour.
    """
    return seconds / HOUR * price_per_hour


def price_index(cost: float, seconds: float, base_cost: float, base_seconds: float) -> float | None:
    """Return by what factor a result costs more than a base, over by what factor it is faster.

    index = (cost / base cost) / (base time / time). The base itself has 1; below 1, the speed is
    worth its price. A pure number; None where nothing was paid or no time passed.

    Source: MLBench, documentation, benchmark results, task 4: price increase / performance
    increase, with one worker as the base. It does not print the two as formulas; they are read as
    ratios, by which the base has an index at all.
    """
    if min(cost, seconds, base_cost, base_seconds) <= 0.0:
        return None
    return (cost / base_cost) / (base_seconds / seconds)


def pareto_front(points: Sequence[tuple[float, float]]) -> list[int]:
    """Return the places of the points that no other one beats, by the first coordinate ascending.

    One point beats another when it is no worse in either coordinate and better in one; less is
    better. Points that are equal in both are on the front together. O(n log n).
    """
    front: list[int] = []
    for place in sorted(range(len(points)), key=lambda i: (*points[i], i)):
        if not front or points[place][1] < points[front[-1]][1] or (
            points[place] == points[front[-1]]
        ):  # fmt: skip
            front.append(place)
    return front
