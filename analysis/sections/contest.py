"""Contests: comparable entries, with the quality of each over time."""

from __future__ import annotations

import statistics
from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import pairwise
from typing import NamedTuple

from aiperf_hpc.analysis.metric import NotMeasuredError, measured, measured_each
from aiperf_hpc.analysis.metrics.mlperf_rules import olympic_runs, runs_dropped
from aiperf_hpc.analysis.metrics.time_to_accuracy import Progress, progress_of, time_at_once
from aiperf_hpc.analysis.options import Options, Qualities
from aiperf_hpc.analysis.prices import Price
from aiperf_hpc.analysis.training_log import Entry
from aiperf_hpc.errors import UsageError
from aiperf_hpc.trial import Value

OWN_CURRENCY = "USD"
"""Currency of prices stated by entries."""


class Contender(NamedTuple):
    """An entry in a contest."""

    entry: Entry
    progress: tuple[Progress, ...]
    """Progress of each training run whose log has any."""
    lost: int
    """Number of its other training runs, which the rules treat as failed."""
    price: Price | None

    @property
    def best(self) -> float:
        """Best quality reached by all its training runs."""
        bests = [progress.best for progress in self.progress]
        return min(bests) if self.progress[0].higher_is_better else max(bests)

    def time_to(self, threshold: float) -> float | None:
        """Return the seconds until the entry reached a threshold, or None if it never did.

        Raises:
            NotMeasuredError: a log's times became invalid before.
        """
        times = [progress.time_to(threshold) for progress in self.progress]
        if self.entry.scenario == "weak":
            return time_at_once([progress.started for progress in self.progress], times)
        # MLPerf's rules omit the fastest and the slowest; no other format has such a rule.
        drop = runs_dropped(self.entry.benchmark) if self.entry.format == "mllog" else 0
        scored = olympic_runs(times, drop, self.lost)
        counting = [time for place in scored.indices if (time := times[place]) is not None]
        return statistics.fmean(counting) if scored.valid and counting else None

    def shortfall(self, threshold: float) -> str:
        """Return the reason why the entry never reached a threshold."""
        trainings = len(self.progress) + self.lost
        if trainings == 1:
            return f"never reached: the best is {self.best:.6g}"
        fell = sum(progress.time_to(threshold) is None for progress in self.progress)
        return f"never reached by {fell + self.lost} of {trainings} training runs"


class ContestResult(Value):
    """Results of one contest: entries with the same benchmark, quality and timing."""

    title: str
    benchmark: str
    quality: str
    scenario: str
    target: float | None
    """Common target of all entries."""
    currency: str
    notes: tuple[str, ...]


class Contest(NamedTuple):
    """Entries with the same benchmark, quality metric and timing."""

    summary: ContestResult
    higher_is_better: bool
    contenders: tuple[Contender, ...]
    unmeasured: dict[str, str]
    """Reason why each of the other entries of the same kind is excluded."""


def contests_of(entries: Sequence[Entry], options: Options) -> tuple[Contest, ...]:
    """Group the entries with training runs into contests of comparable entries.

    Raises:
        NotMeasuredError: no entry has evaluations with times.
        UsageError: the user's thresholds or targets match no benchmark, or are ambiguous between
            several.
    """
    groups: dict[tuple[str, str, bool, str], list[Entry]] = {}
    for entry in entries:
        quality = next((log.quality for log in entry.logs if log.quality), None)
        if quality:
            key = (entry.benchmark, quality.name, quality.higher_is_better, entry.scenario)
            groups.setdefault(key, []).append(entry)
    _require_meant(options, groups)
    contests = [_contest(key, members, options) for key, members in groups.items()]
    if not any(contest.contenders for contest in contests):
        reasons = [reason for contest in contests for reason in contest.unmeasured.values()]
        raise NotMeasuredError(reasons[0] if reasons else "no entry has evaluations of quality")
    return tuple(contests)


def qualities_for(choices: Sequence[Qualities], benchmark: str) -> tuple[float, ...]:
    """Return the user's qualities for a benchmark in their order, without duplicates."""
    of_it = [c for c in choices if (c.benchmark or benchmark).lower() == benchmark.lower()]
    return tuple(dict.fromkeys(value for choice in of_it for value in choice.values))


def _require_meant(options: Options, groups: dict[tuple[str, str, bool, str], list[Entry]]) -> None:
    kinds = sorted({f"{benchmark} ({quality})" for benchmark, quality, *_ in groups})
    names = {benchmark.lower() for benchmark, *_ in groups}
    choices = [("--thresholds", choice) for choice in options.thresholds]
    choices += [("--target", choice) for choice in options.targets]
    for option, choice in choices if groups else ():
        listed = ",".join(f"{value:g}" for value in choice.values)
        there = f"there are {', '.join(kinds)}"
        if choice.benchmark is None and len(kinds) > 1:
            raise UsageError(f"{option} {listed}: write it as BENCHMARK={listed}; {there}")
        if choice.benchmark is not None and choice.benchmark.lower() not in names:
            raise UsageError(f"{option} {choice.benchmark}={listed}: no such benchmark; {there}")


def _contest(
    key: tuple[str, str, bool, str], members: Sequence[Entry], options: Options
) -> Contest:
    benchmark, quality, higher, scenario = key
    target, notes = _target(members, higher)
    contenders, unmeasured = measured_each(members, lambda entry: _contender(entry, options))
    aim = "" if target is None else f" {'≥' if higher else '≤'} {target:g}"
    weak = ", all training runs at once" if scenario == "weak" else ""
    summary = ContestResult(
        title=f"{benchmark}, {quality}{aim}{weak}",
        benchmark=benchmark,
        quality=quality,
        scenario=scenario,
        target=target,
        currency=currency(options),
        notes=(*notes, *_differences(members)),
    )
    return Contest(summary, higher, tuple(contenders), unmeasured)


def _contender(entry: Entry, options: Options) -> Contender:
    """Return an entry with its progress.

    If one of several training runs ended before its first evaluation, it failed; the rules limit
    the number of failures.

    Raises:
        NotMeasuredError: no log has any progress, or the log of a single training run has none.
    """
    found = [measured(partial(progress_of, log)) for log in entry.logs]
    progress = tuple(each for each, _ in found if each is not None)
    faults = [fault for each, fault in found if each is None]
    if faults and (not progress or entry.format != "mllog" or entry.scenario == "weak"):
        raise NotMeasuredError(faults[0])
    return Contender(entry, progress, entry.lost + len(faults), price_of(entry, options))


def _target(members: Sequence[Entry], higher: bool) -> tuple[float | None, list[str]]:
    """Return the common target and remarks on it. A target given by the user is in all logs."""
    stated = {log.quality.target for e in members for log in e.logs if log.quality} - {None}
    targets = sorted(target for target in stated if target is not None)
    if len(targets) < 2:
        return (targets[0] if targets else None), []
    strictest = targets[-1] if higher else targets[0]
    listed = ", ".join(f"{target:g}" for target in targets)
    return strictest, [f"targets differ ({listed}): the strictest, {strictest:g}, is used"]


def _differences(members: Sequence[Entry]) -> Iterator[str]:
    """Yield remarks on limited comparability of entries of one benchmark."""
    for what, found in (
        ("rounds", {entry.round for entry in members if entry.round}),
        ("divisions", {entry.division for entry in members if entry.division}),
    ):
        if len(found) > 1:
            yield f"{what} with different rules are compared: {', '.join(sorted(found))}"


def price_of(entry: Entry, options: Options) -> Price | None:
    """Return the hourly price of an entry's system, from the table or else from the entry.

    Prices stated by entries are in US dollars and ignored if the table has another currency.
    """
    table, system = options.prices, entry.system
    if table:
        names = (system.name, entry.name)
        found = table.price_of(names, system.accelerator, system.accelerators)
        if found:
            return found
    if system.cost_per_hour is None or currency(options) != OWN_CURRENCY:
        return None
    return Price(system.cost_per_hour, "entry")


def currency(options: Options) -> str:
    """Return the currency of costs."""
    return options.prices.currency if options.prices else OWN_CURRENCY


def money(amount: float) -> str:
    """Return an amount with two decimals, or with two significant digits if it is below 0.1."""
    return f"{amount:.2f}" if amount >= 0.1 else f"{amount:.2g}"


def ranks(values: Mapping[str, float | None]) -> dict[str, int]:
    """Return the rank of each name with a value, lowest first; ties share one. O(n log n)."""
    known = sorted(value for value in values.values() if value is not None)
    return {n: bisect_left(known, value) + 1 for n, value in values.items() if value is not None}


def changes(
    before: Mapping[str, int], now: Mapping[str, int]
) -> tuple[tuple[tuple[str, str], ...], int]:
    """Return the changes between two rankings, for the names in both.

    Returns:
        The pairs of neighbors in the new ranking whose first was behind the second, and the number
        of all pairs in reverse order. Either is empty if the other is.
    """
    order = sorted((now[name], before[name], name) for name in now if name in before)
    turned = tuple(
        (ahead[2], behind[2]) for ahead, behind in pairwise(order) if ahead[1] > behind[1]
    )
    places: list[int] = []
    inversions = 0
    for _, place, _ in order:
        inversions += len(places) - bisect_right(places, place)
        insort(places, place)
    return turned, inversions
