"""Cost to accuracy: cost until the target, price of additional speed, and the Pareto front."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import date

from aiperf_hpc.analysis.metric import NotMeasuredError, measured_each, required
from aiperf_hpc.analysis.metrics.time_to_accuracy import NO_TARGET
from aiperf_hpc.analysis.options import Options
from aiperf_hpc.analysis.sections.contest import (
    Contender,
    Contest,
    ContestResult,
    contests_of,
    money,
)
from aiperf_hpc.analysis.training_log import Entry
from aiperf_hpc.results.table import Table, optional, reasons
from aiperf_hpc.trial import Value

HOUR = 3600.0


def cost_of(seconds: float, price_per_hour: float) -> float:
    """Return the cost of a machine for a time, in the price's currency.

    Source: DAWNBench, entries' README, Cost: time in hours × price of the instance per hour.
    """
    return seconds / HOUR * price_per_hour


def price_index(cost: float, seconds: float, base_cost: float, base_seconds: float) -> float | None:
    """Return the ratio of a result's cost increase to its speed-up over a base.

    index = (cost / base cost) / (base time / time), a pure number. The base has 1; below 1, the
    speed is worth its price. Return None if a cost or a time is zero.

    Source: MLBench, documentation, benchmark results, task 4: price increase / performance
    increase, with one worker as the base. The documentation has no formulas; both
    increases are interpreted as ratios, so that the base has an index.
    """
    if min(cost, seconds, base_cost, base_seconds) <= 0.0:
        return None
    return (cost / base_cost) / (base_seconds / seconds)


def pareto_front(points: Sequence[tuple[float, float]]) -> list[int]:
    """Return the indices of the nondominated points in ascending order of the first coordinate.

    A point dominates another if it is no worse in either coordinate and better in one; lower is
    better. Equal points are on the front together. O(n log n).
    """
    front: list[int] = []
    for place in sorted(range(len(points)), key=lambda i: (*points[i], i)):
        if not front or points[place][1] < points[front[-1]][1] or (
            points[place] == points[front[-1]]
        ):  # fmt: skip
            front.append(place)
    return front


class Priced(Value):
    """Time and cost to the target of one entry."""

    entry: str
    seconds: float
    price_per_hour: float
    price_source: str
    """Source of the price: ``entry``, or an item of the price table."""
    cost: float
    price_index: float | None
    """Price increase over performance increase, relative to the base."""
    on_front: bool
    """Whether the entry is on the Pareto front of time and cost."""


class Costs(ContestResult):
    """Cost to the target of comparable entries."""

    base: str | None
    """Entry with price index 1: the cheapest or, of several, the slowest."""
    priced: tuple[Priced, ...]
    """Costs of the entries, fastest first."""
    missing: dict[str, str]
    """Reason why each of the other entries has no cost."""


class CostToAccuracy(Value):
    """Cost to accuracy of each contest."""

    contests: tuple[Costs, ...]
    prices_date: date | None
    prices_source: str | None


def cost_to_accuracy(entries: Sequence[Entry], options: Options) -> CostToAccuracy:
    """Return cost, price index and Pareto front of comparable entries. O(n log n).

    Raises:
        NotMeasuredError: no entry has evaluations with times, or none has a price.
        UsageError: the user's target matches no benchmark.
    """
    contests = tuple(_costs(contest, options) for contest in contests_of(entries, options))
    if not any(contest.priced for contest in contests):
        reason = next((r for c in contests for r in c.missing.values()), "no entry has a price")
        raise NotMeasuredError(f"no entry has both a price and a time to its target: {reason}")
    table = options.prices
    return CostToAccuracy(
        contests=contests,
        prices_date=table.date if table else None,
        prices_source=table.source if table else None,
    )


def _costs(contest: Contest, options: Options) -> Costs:
    found, unpaid = measured_each(
        contest.contenders,
        lambda contender: _paid(contender, contest.summary.target, options),
        lambda contender: contender.entry.name,
    )
    found.sort(key=lambda paid: (paid.seconds, paid.cost, paid.entry))
    base = min(found, key=lambda paid: (paid.cost, -paid.seconds), default=None)
    index = [
        base and price_index(paid.cost, paid.seconds, base.cost, base.seconds) for paid in found
    ]
    front = set(pareto_front([(paid.seconds, paid.cost) for paid in found]))
    return Costs(
        **contest.summary.model_dump(),
        base=base.entry if base else None,
        priced=tuple(
            paid.model_copy(update={"price_index": index[place], "on_front": place in front})
            for place, paid in enumerate(found)
        ),
        missing=contest.unmeasured | unpaid,
    )


def _paid(contender: Contender, target: float | None, options: Options) -> Priced:
    """Return time and cost to the target. Raises NotMeasuredError if there is none, or no price."""
    target = required(target, NO_TARGET)
    seconds = contender.time_to(target)
    if seconds is None:
        raise NotMeasuredError(contender.shortfall(target))
    if contender.price is None:
        raise NotMeasuredError(_unpriced(contender.entry, options))
    return Priced(
        entry=contender.entry.name,
        seconds=seconds,
        price_per_hour=contender.price.per_hour,
        price_source=contender.price.source,
        cost=cost_of(seconds, contender.price.per_hour),
        price_index=None,
        on_front=False,
    )


def _unpriced(entry: Entry, options: Options) -> str:
    system = entry.system
    count = f"{system.accelerators} × " if system.accelerators else ""
    what = f"'{system.name}'" + (f" ({count}{system.accelerator})" if system.accelerator else "")
    if options.prices is None:
        return "its machine has no price: give one with --prices"
    own = ""
    if system.cost_per_hour is not None:
        own = f"; its own price is in USD, the table's in {options.prices.currency}"
    return f"no price for {what} in the price table{own}"


def tables(found: CostToAccuracy) -> Iterator[Table]:
    """Yield cost to accuracy of each contest, and the reasons for entries without it."""
    for contest in found.contests:
        yield _table(contest, found)


def _table(contest: Costs, found: CostToAccuracy) -> Table:
    money_of = contest.currency
    columns = ("entry", "min", money_of, f"{money_of} per hour", "price index", "on the front")
    rows = tuple(
        (
            paid.entry, f"{paid.seconds / 60.0:,.2f}", money(paid.cost),
            f"{paid.price_per_hour:,.5g}", optional("{:.3g}".format, paid.price_index),
            "yes" if paid.on_front else "",
        )
        for paid in contest.priced
    )  # fmt: skip
    return Table(
        columns,
        rows,
        title=contest.title,
        notes=(*_price_notes(contest, found), *contest.notes),
        missing=tuple(reasons(contest.missing)),
    )


def _price_notes(contest: Costs, found: CostToAccuracy) -> Iterator[str]:
    if contest.priced and found.prices_date:
        yield f"prices of {found.prices_date}: {found.prices_source}"
    if contest.base and len(contest.priced) > 1:
        yield f"price index: price increase / performance increase, against {contest.base}"
