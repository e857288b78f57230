"""Threshold sensitivity: time and cost of each entry over a range of thresholds, and its rank.

Source: DAWNBench's analysis (Coleman et al., "Analysis of DAWNBench, a Time-to-Accuracy Machine
Learning Performance Benchmark", 2019), which examines whether the ranking depends on the threshold.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Literal

from aiperf_hpc.analysis.metric import NotMeasuredError
from aiperf_hpc.analysis.options import Options
from aiperf_hpc.analysis.sections.contest import (
    Contender,
    Contest,
    ContestResult,
    changes,
    contests_of,
    money,
    qualities_for,
    ranks,
)
from aiperf_hpc.analysis.sections.cost import cost_of
from aiperf_hpc.analysis.training_log import Entry
from aiperf_hpc.results.table import NONE, Table, reasons
from aiperf_hpc.trial import Value

SHORT_OF_TARGET = 0.05
"""Distance of a default range's start from the target, as a fraction of the target."""
STEPS = 12
"""Approximate number of steps of a default range."""
COLUMNS = 12
"""Maximum number of thresholds shown side by side."""


class Standing(Value):
    """One entry at one threshold."""

    entry: str
    seconds: float | None = None
    """Time to the threshold; None if the entry never reached it."""
    cost: float | None = None
    """Cost to the threshold; None without a time or a price."""
    rank: int | None = None
    """Rank by time; ties share one."""
    cost_rank: int | None = None
    unknown: bool = False
    """Whether the log does not state if and when the entry reached the threshold."""
    reason: str | None = None
    """Reason why there is no time."""


class RankingChange(Value):
    """Two neighbors in a ranking that were in reverse order at the previous threshold."""

    by: Literal["time", "cost"]
    ahead: str
    behind: str


class AtThreshold(Value):
    """All entries at one threshold."""

    threshold: float
    standings: tuple[Standing, ...]
    changes: tuple[RankingChange, ...]
    """Changes from the previous threshold, for entries that reached both."""
    reversed_pairs: int
    """Pairs of entries whose order by time differs from the previous threshold."""


class Sensitivity(ContestResult):
    """Comparable entries over a range of thresholds."""

    higher_is_better: bool
    thresholds: tuple[AtThreshold, ...]
    """Results at each threshold, from the easiest to the hardest."""
    unmeasured: dict[str, str]
    """Reason why each of the other entries of the benchmark is excluded."""


class Sensitivities(Value):
    """Threshold sensitivity of each contest."""

    contests: tuple[Sensitivity, ...]


def threshold_sensitivity(entries: Sequence[Entry], options: Options) -> Sensitivities:
    """Return time, cost and ranking of comparable entries over thresholds. O(n log n).

    Raises:
        NotMeasuredError: no entry has evaluations with times.
        UsageError: the user's thresholds match no benchmark.
    """
    contests = contests_of(entries, options)
    return Sensitivities(contests=tuple(_sensitivity(c, options) for c in contests))


def _sensitivity(contest: Contest, options: Options) -> Sensitivity:
    wanted = qualities_for(options.thresholds, contest.summary.benchmark) or automatic_range(
        contest
    )
    ordered = sorted(wanted, reverse=not contest.higher_is_better)
    rows: list[AtThreshold] = []
    for threshold in ordered:
        rows.append(_at(contest, threshold, rows[-1] if rows else None))
    return Sensitivity(
        **contest.summary.model_dump(),
        higher_is_better=contest.higher_is_better,
        thresholds=tuple(rows),
        unmeasured=contest.unmeasured,
    )


def automatic_range(contest: Contest) -> tuple[float, ...]:
    """Return round thresholds from slightly below the target to the best quality reached.

    The target is one of them. Without a target, the quality reached by all contenders replaces it.
    """
    if not contest.contenders:
        return ()
    higher = contest.higher_is_better
    bests = [contender.best for contender in contest.contenders]
    best = max(bests) if higher else min(bests)
    aim = contest.summary.target
    aim = (min(bests) if higher else max(bests)) if aim is None else aim
    easiest = aim - math.copysign(SHORT_OF_TARGET * abs(aim), 1.0 if higher else -1.0)
    step = _round_step(abs(best - easiest) / STEPS)
    if not step:
        return (aim,)
    low, high = sorted((easiest, best))
    first, last = math.ceil((low - aim) / step), math.floor((high - aim) / step)
    numbers = {*range(first, last + 1), 0}
    return tuple(float(f"{aim + number * step:.10g}") for number in sorted(numbers))


def _round_step(about: float) -> float:
    """Return the next number of 1, 2, 5, 10, ... above ``about``, or 0 for 0."""
    if about <= 0.0:
        return 0.0
    power = 10.0 ** math.floor(math.log10(about))
    return next(digit * power for digit in (1.0, 2.0, 5.0, 10.0) if digit * power >= about)


def _at(contest: Contest, threshold: float, before: AtThreshold | None) -> AtThreshold:
    found = [_standing(contender, threshold) for contender in contest.contenders]
    by_time = ranks({standing.entry: standing.seconds for standing in found})
    by_cost = ranks({standing.entry: standing.cost for standing in found})
    turned, pairs = changes(_ranks_of(before, "rank"), by_time)
    cheaper, _ = changes(_ranks_of(before, "cost_rank"), by_cost)
    ranked = (
        each.model_copy(
            update={"rank": by_time.get(each.entry), "cost_rank": by_cost.get(each.entry)}
        )
        for each in found
    )
    return AtThreshold(
        threshold=threshold,
        standings=tuple(ranked),
        changes=(
            *(RankingChange(by="time", ahead=a, behind=b) for a, b in turned),
            *(RankingChange(by="cost", ahead=a, behind=b) for a, b in cheaper),
        ),
        reversed_pairs=pairs,
    )


def _standing(contender: Contender, threshold: float) -> Standing:
    """Return time and cost to a threshold, without ranks."""
    name = contender.entry.name
    try:
        seconds = contender.time_to(threshold)
    except NotMeasuredError as error:
        return Standing(entry=name, unknown=True, reason=str(error))
    if seconds is None:
        return Standing(entry=name, reason=contender.shortfall(threshold))
    price = contender.price
    cost = cost_of(seconds, price.per_hour) if price else None
    return Standing(entry=name, seconds=seconds, cost=cost)


def _ranks_of(row: AtThreshold | None, name: Literal["rank", "cost_rank"]) -> dict[str, int]:
    known = ((s.entry, getattr(s, name)) for s in (row.standings if row else ()))
    return {entry: rank for entry, rank in known if rank is not None}


def tables(found: Sensitivities) -> Iterator[Table]:
    """Yield time and, if there are prices, cost of each contest, then the rank changes."""
    for contest in found.contests:
        names = by_rank(contest)
        costs = {s.entry for row in contest.thresholds for s in row.standings if s.cost}
        paid = [name for name in names if name in costs]
        if paid:
            yield _table(contest, "seconds", names, _seconds)
        last = (contest.currency, paid, _amount) if paid else ("seconds", names, _seconds)
        yield _table(contest, *last)._replace(
            notes=tuple(_notes(contest)), missing=tuple(reasons(contest.unmeasured))
        )


def _table(
    contest: Sensitivity, what: str, names: Sequence[str], cell: Callable[[Standing], str]
) -> Table:
    visible = _visible(contest)
    found = [{standing.entry: standing for standing in row.standings} for row in visible]
    return Table(
        ("entry", *(f"{row.threshold:g}{'*' if row.changes else ''}" for row in visible)),
        tuple((name, *(cell(row[name]) for row in found)) for name in names),
        title=f"{contest.title}: {what} to each threshold, and rank",
    )


def _visible(contest: Sensitivity) -> Sequence[AtThreshold]:
    """Return the thresholds that fit: all, or some from the whole range and the target."""
    rows = contest.thresholds
    if len(rows) <= COLUMNS:
        return rows
    step = (len(rows) - 1) / (COLUMNS - 1)
    places = [round(number * step) for number in range(COLUMNS)]
    at = next((i for i, row in enumerate(rows) if row.threshold == contest.target), places[0])
    nearest = min(range(1, COLUMNS - 1), key=lambda place: abs(places[place] - at))
    if at not in places:
        places[nearest] = at
    return [rows[place] for place in places]


def by_rank(contest: Sensitivity) -> list[str]:
    """Return the entries by their rank at the target or, without one, at the easiest threshold."""
    rows = contest.thresholds
    row = next((r for r in rows if r.threshold == contest.target), rows[0] if rows else None)
    standings = row.standings if row else ()
    return [s.entry for s in sorted(standings, key=lambda s: (s.rank or math.inf, s.entry))]


def _seconds(standing: Standing) -> str:
    if standing.seconds is None:
        return NONE
    digits = 2 if standing.seconds < 10_000.0 else 0
    return f"{standing.seconds:,.{digits}f} ({standing.rank})"


def _amount(standing: Standing) -> str:
    return NONE if standing.cost is None else f"{money(standing.cost)} ({standing.cost_rank})"


def _notes(contest: Sensitivity) -> Iterator[str]:
    """Yield remarks on how to read the tables, and on data that they omit."""
    yield "rank in parentheses; –: never reached or unknown; *: the ranking changes"
    if len(contest.thresholds) > COLUMNS:
        yield f"{COLUMNS} of {len(contest.thresholds)} thresholds; the JSON document has all"
    yield from contest.notes
    yield from _faults(contest)
    for row in contest.thresholds:
        yield from _changed(row)


def _faults(contest: Sensitivity) -> Iterator[str]:
    """Yield the reasons for unknown times, once per entry, from the first threshold on."""
    first: dict[str, str] = {}
    for row in contest.thresholds:
        for each in row.standings:
            if each.unknown:
                first.setdefault(each.entry, f"unknown from {row.threshold:g} on: {each.reason}")
    yield from (f"{entry}: {fault}" for entry, fault in first.items())


def _changed(row: AtThreshold) -> Iterator[str]:
    for change in row.changes:
        what = "faster" if change.by == "time" else "cheaper"
        yield f"at {row.threshold:g}: {change.ahead} is now {what} than {change.behind}"
    if row.reversed_pairs > 1:
        yield f"at {row.threshold:g}: {row.reversed_pairs} pairs are reversed by time"
