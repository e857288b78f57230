"""Runs side by side: in what they differ, what they reached, and whether their scores compare."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from aiperf_hpc.errors import UsageError
from aiperf_hpc.formatting import duration, percent
from aiperf_hpc.results.table import NONE, Table
from aiperf_hpc.results.views.quantities import Quantity, View, quantities_in
from aiperf_hpc.results.views.run_catalog import find_runs
from aiperf_hpc.results.views.run_summary import RunDetails
from aiperf_hpc.results.views.run_view import RunState, RunView
from aiperf_hpc.run.manifest import no_run
from aiperf_hpc.trial import Value

LENGTHS = 0.05
"""The share by which runs may differ in length: an error falls with time, and OPS with start-up."""
NOISE = 0.05
"""The coefficient of variation within which repeated runs are called repeatable
(docs/decisions/repeatability.md)."""
INCIDENTAL = ("preset", "seed", "dataset.path", "dataset.cache_path")
"""Settings that name something and change nothing about what is measured."""
EQUAL = ("workload", "model")
"""The settings, or sections of them, that scores are comparable by."""


class Spread(Value):
    """A figure over repeated runs."""

    mean: float
    """The arithmetic mean."""
    variation: float | None
    """The sample standard deviation over the mean; None for one run."""
    runs: int
    """How many runs it is of."""


class Side(Value):
    """One of those that are compared: a run, or runs that repeat each other."""

    name: str
    """What it is called."""
    runs: tuple[str, ...]
    """Its runs."""
    figures: dict[str, Spread | None]
    """By `ops`, `regulated`, `error`, `seconds`, `joules`; None where a run has no such figure."""
    time_shares: dict[str, float]
    """The fraction of its replicas' elapsed time by phase, the mean over its runs."""
    energy_labels: tuple[str, ...]
    """Whether its runs' energy was measured, estimated or absent."""
    within: tuple[str, ...]
    """The settings in which its own runs differ."""


class Comparison(Value):
    """A comparison of runs side by side."""

    comparable: bool
    """Whether their scores may be held against each other."""
    reasons: tuple[str, ...]
    """Why they may not."""
    notes: tuple[str, ...]
    """What else is to be known: how much they differ, and what is not known of them."""
    sides: tuple[Side, ...]
    """Those that are compared, in the requested order."""
    configuration: dict[str, tuple[Any, ...]]
    """The settings that differ by dotted keys, and each side's value; None where it has none."""
    hardware: dict[str, tuple[str | None, ...]]
    """What differs of the nodes, and each side's."""
    versions: dict[str, tuple[str | None, ...]]
    """What they ran with in different versions, and each side's."""


def read_groups(folders: Sequence[Path]) -> dict[str, list[RunDetails]]:
    """Return the runs of each folder, a run or runs that repeat each other, by its name.

    Raises:
        UsageError: there is nothing to compare.
        RunDirectoryError: a folder has no run.
        JournalError: a journal cannot be read.
    """
    if len(folders) < 2:
        raise UsageError("name at least two runs, or folders of repeated runs, to compare")
    if twice := [str(name) for name, number in Counter(folders).items() if number > 1]:
        raise UsageError(f"{twice[0]} is named twice")
    groups: dict[str, list[RunDetails]] = {}
    for folder in folders:
        found = list(find_runs(folder)[0].values()) if folder.is_dir() else []
        if not found:
            raise no_run(folder)
        groups[str(folder)] = [RunDetails.of(RunView.read(each), str(each.root)) for each in found]
    return groups


def compare(groups: Mapping[str, Sequence[RunDetails]]) -> Comparison:
    """Compare runs, or groups of runs that repeat each other, by the names of the groups."""
    runs = [run for group in groups.values() for run in group]
    firsts = [group[0] for group in groups.values()]
    sides = tuple(_side(name, group) for name, group in groups.items())
    reasons = tuple(_reasons(runs))
    return Comparison(
        comparable=not reasons,
        reasons=reasons,
        notes=(*(() if reasons else _changes(sides)), *_notes(sides, firsts)),
        sides=sides,
        configuration=differences([run.settings for run in firsts], INCIDENTAL),
        hardware=differences([{"size": r.resources.line, **r.machine} for r in firsts]),
        versions=differences([run.versions for run in firsts]),
    )


def differences(
    values: Sequence[Mapping[str, Any]], without: Sequence[str] = ()
) -> dict[str, tuple[Any, ...]]:
    """Return what is not the same in all mappings, and its value in each; None where it is not."""
    names = dict.fromkeys(name for each in values for name in each if name not in without)
    found = {name: tuple(each.get(name) for each in values) for name in names}
    return {name: each for name, each in found.items() if any(v != each[0] for v in each)}


def _side(name: str, runs: Sequence[RunDetails]) -> Side:
    phases = dict.fromkeys(phase for run in runs for phase in run.time_shares)
    return Side(
        name=name,
        runs=tuple(run.name for run in runs),
        figures={
            each.name: _spread([each.read(run) for run in runs])
            for each in quantities_in(View.COMPARISON).values()
        },
        time_shares={
            phase: statistics.fmean(run.time_shares.get(phase, 0.0) for run in runs)
            for phase in phases
        },
        energy_labels=tuple(dict.fromkeys(run.energy_label for run in runs)),
        within=tuple(differences([run.settings for run in runs], INCIDENTAL)),
    )


def _spread(values: Sequence[float | None]) -> Spread | None:
    known = [value for value in values if value is not None]
    if len(known) < len(values):
        return None
    mean = statistics.fmean(known)
    variation = statistics.stdev(known) / mean if len(known) > 1 and mean > 0.0 else None
    return Spread(mean=mean, variation=variation, runs=len(known))


def _reasons(runs: Sequence[RunDetails]) -> Iterator[str]:
    """Yield why the scores of runs may not be held against each other."""
    for run in runs:
        if run.state is not RunState.ENDED:
            yield f"{run.name} has not ended"
    if len({run.computed for run in runs}) > 1:
        idle = ", ".join(run.name for run in runs if not run.computed)
        yield f"nothing was computed in {idle}"
    if len(datasets := dict.fromkeys(run.dataset_hashes for run in runs)) > 1:
        yield f"the dataset differs: {', '.join(datasets)}"
    for key in differences([run.settings for run in runs], INCIDENTAL):
        if key.split(".")[0] in EQUAL:
            yield f"{key} differs, by which what is trained is another"
    lengths = [run.score.elapsed_seconds for run in runs]
    if max(lengths) > (1.0 + LENGTHS) * min(lengths):
        yield f"they took from {duration(min(lengths))} to {duration(max(lengths))}"
    if len({not run.broken for run in runs}) > 1:
        for run in runs:
            if run.broken:
                yield f"{run.name} is INVALID ({', '.join(run.broken)}), and others are valid"


def _changes(sides: Sequence[Side]) -> Iterator[str]:
    """Yield by how much the scores of comparable sides differ from the first one's."""
    first = sides[0].figures["ops"]
    for side in sides[1:]:
        other = side.figures["ops"]
        if first is None or other is None or first.mean <= 0.0:
            continue
        change = other.mean / first.mean - 1.0
        within = abs(change) <= NOISE
        said = f", within the {percent(NOISE, 0)} by which repeated runs may vary" if within else ""
        yield f"{side.name}: {change:+.1%} OPS against {sides[0].name}{said}"


def _notes(sides: Sequence[Side], firsts: Sequence[RunDetails]) -> Iterator[str]:
    if all(run.broken for run in firsts):
        yield "none of them satisfies the benchmark's rules: their scores compare with no others"
    for side in sides:
        if side.within:
            yield f"the runs of {side.name} are no repetitions: {', '.join(side.within)} differ"
    if all(len(side.runs) == 1 for side in sides):
        yield "one run each: how much they vary is not known; see `aiperf start --repeat`"


def tables(found: Comparison) -> Iterator[Table]:
    """Yield what is said of runs side by side; the verdict is the last."""
    names = tuple(side.name for side in found.sides)
    yield Table(("", *names), tuple(_figures(found.sides)), title="What they reached")
    phases = dict.fromkeys(
        phase for side in found.sides for phase, share in side.time_shares.items() if share
    )
    shares = tuple(
        (phase, *(percent(side.time_shares.get(phase), 1) for side in found.sides))
        for phase in phases
    )
    if shares:
        yield Table(("phase", *names), shares, title="Time of the replicas")
    for title, differing in (
        ("Configuration", found.configuration),
        ("Machine", found.hardware),
        ("Versions", found.versions),
    ):
        yield _differing(title, differing, names)
    verdict = "comparable" if found.comparable else "NOT comparable"
    notes = tuple(f"because {reason}" for reason in found.reasons)
    yield Table(title=f"Scores: {verdict}", notes=(*notes, *found.notes))


def _figures(sides: Sequence[Side]) -> Iterator[tuple[str, ...]]:
    if any(len(side.runs) > 1 for side in sides):
        yield ("runs", *(str(len(side.runs)) for side in sides))
    for heading, quantity in quantities_in(View.COMPARISON).items():
        yield (heading, *(_figure(side.figures[quantity.name], quantity) for side in sides))
    yield ("energy is", *("/".join(side.energy_labels) for side in sides))


def _figure(spread: Spread | None, quantity: Quantity) -> str:
    if spread is None:
        return NONE
    varies = "" if spread.variation is None else f" ± {percent(spread.variation, 1)}"
    return f"{quantity.text(spread.mean)}{varies}"


def _differing(title: str, found: Mapping[str, Sequence[Any]], names: Sequence[str]) -> Table:
    if not found:
        return Table(title=f"{title}: no difference")
    rows = tuple((key, *map(_cell, values)) for key, values in found.items())
    words = tuple(range(1, len(names) + 1))
    return Table(("", *names), rows, title=f"{title}: what differs", words=words)


def _cell(value: object) -> str:
    return NONE if value in (None, "") else str(value)
