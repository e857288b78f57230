"""Comparison of runs: their differences, their results, and whether their scores are comparable."""

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
from aiperf_hpc.results.views.run_catalog import RunDetails, find_runs
from aiperf_hpc.results.views.run_view import RunState, RunView
from aiperf_hpc.run.manifest import no_run
from aiperf_hpc.trial import Value

LENGTHS = 0.05
"""Maximum relative difference in length: errors fall with time, and start-up costs lower the
OPS."""
NOISE = 0.05
"""Maximum coefficient of variation of repeatable runs (docs/decisions/repeatability.md)."""
INCIDENTAL = ("preset", "seed", "dataset.path", "dataset.cache_path")
"""Settings that are only names and do not affect measurements."""
EQUAL = ("workload", "model")
"""Settings, or sections of settings, that must be equal for scores to be comparable."""


class Spread(Value):
    """Statistics of a figure over repeated runs."""

    mean: float
    """Arithmetic mean."""
    variation: float | None
    """Sample standard deviation divided by the mean; None for one run."""
    runs: int
    """Number of runs."""


class Side(Value):
    """One side of a comparison: a run, or repetitions of a run."""

    name: str
    """Name of the side."""
    runs: tuple[str, ...]
    """Runs of the side."""
    figures: dict[str, Spread | None]
    """Statistics by `ops`, `regulated`, `error`, `seconds`, `joules`; None if a run lacks the
    figure."""
    time_fractions: dict[str, float]
    """Fraction of the replicas' elapsed time by phase, averaged over the runs."""
    energy_labels: tuple[str, ...]
    """Whether the energy of its runs was measured, estimated or absent."""
    differing_settings: tuple[str, ...]
    """Settings in which its own runs differ."""


class Comparison(Value):
    """A comparison of runs."""

    comparable: bool
    """Whether the scores are comparable."""
    reasons: tuple[str, ...]
    """Reasons why the scores are not comparable."""
    notes: tuple[str, ...]
    """Remarks, such as score differences and unknown properties."""
    sides: tuple[Side, ...]
    """Sides of the comparison, in the requested order."""
    configuration: dict[str, tuple[Any, ...]]
    """Differing settings by dotted keys, with the value of each side, or None if it has none."""
    hardware: dict[str, tuple[str | None, ...]]
    """Differing properties of the nodes, with the value of each side."""
    versions: dict[str, tuple[str | None, ...]]
    """Software with differing versions, with the version of each side."""


def read_groups(folders: Sequence[Path]) -> dict[str, list[RunDetails]]:
    """Return the runs of each folder, which is a run or contains repetitions of a run, by its name.

    Raises:
        UsageError: there are fewer than two sides.
        RunDirectoryError: a folder contains no run.
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
    """Compare runs or groups of repeated runs, given by the names of the groups."""
    runs = [run for group in groups.values() for run in group]
    firsts = [group[0] for group in groups.values()]
    sides = tuple(_side(name, group) for name, group in groups.items())
    reasons = tuple(_reasons(runs))
    return Comparison(
        comparable=not reasons,
        reasons=reasons,
        notes=(*(() if reasons else _changes(sides, firsts)), *_notes(sides)),
        sides=sides,
        configuration=differences([run.settings for run in firsts], INCIDENTAL),
        hardware=differences([{"size": r.resources.summary, **r.machine} for r in firsts]),
        versions=differences([run.versions for run in firsts]),
    )


def differences(
    values: Sequence[Mapping[str, Any]], without: Sequence[str] = ()
) -> dict[str, tuple[Any, ...]]:
    """Return the entries that differ between mappings, with the value in each, or None if
    absent."""
    names = dict.fromkeys(name for each in values for name in each if name not in without)
    found = {name: tuple(each.get(name) for each in values) for name in names}
    return {name: each for name, each in found.items() if any(v != each[0] for v in each)}


def _side(name: str, runs: Sequence[RunDetails]) -> Side:
    phases = dict.fromkeys(phase for run in runs for phase in run.time_fractions)
    return Side(
        name=name,
        runs=tuple(run.name for run in runs),
        figures={
            each.name: _spread([each.read(run) for run in runs])
            for each in quantities_in(View.COMPARISON).values()
        },
        time_fractions={
            phase: statistics.fmean(run.time_fractions.get(phase, 0.0) for run in runs)
            for phase in phases
        },
        energy_labels=tuple(dict.fromkeys(run.energy_label for run in runs)),
        differing_settings=tuple(differences([run.settings for run in runs], INCIDENTAL)),
    )


def _spread(values: Sequence[float | None]) -> Spread | None:
    known = [value for value in values if value is not None]
    if len(known) < len(values):
        return None
    mean = statistics.fmean(known)
    variation = statistics.stdev(known) / mean if len(known) > 1 and mean > 0.0 else None
    return Spread(mean=mean, variation=variation, runs=len(known))


def _reasons(runs: Sequence[RunDetails]) -> Iterator[str]:
    """Yield the reasons why the scores of runs are not comparable."""
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
            yield f"{key} differs, so the trained networks differ"
    lengths = [run.score.elapsed_seconds for run in runs]
    if max(lengths) > (1.0 + LENGTHS) * min(lengths):
        yield f"durations range from {duration(min(lengths))} to {duration(max(lengths))}"
    if len({not run.violated_rules for run in runs}) > 1:
        for run in runs:
            if run.violated_rules:
                rules = ", ".join(run.violated_rules)
                yield f"{run.name} is INVALID ({rules}), and others are valid"


def _changes(sides: Sequence[Side], firsts: Sequence[RunDetails]) -> Iterator[str]:
    """Yield the differences of the scores of comparable sides from the first side's."""
    if all(run.violated_rules for run in firsts):
        yield "no run is official: the scores are comparable only with each other"
    first = sides[0].figures["ops"]
    for side in sides[1:]:
        other = side.figures["ops"]
        if first is None or other is None or first.mean <= 0.0:
            continue
        change = other.mean / first.mean - 1.0
        within = abs(change) <= NOISE
        said = f", within the {percent(NOISE, 0)} variation of repeated runs" if within else ""
        yield f"{side.name}: {change:+.1%} OPS against {sides[0].name}{said}"


def _notes(sides: Sequence[Side]) -> Iterator[str]:
    for side in sides:
        if differing := side.differing_settings:
            yield f"the runs of {side.name} are not repetitions: {', '.join(differing)} differ"
    if all(len(side.runs) == 1 for side in sides):
        yield "one run per side: the variation is unknown; see `aiperf start --repeat`"


def tables(found: Comparison) -> Iterator[Table]:
    """Yield the lines of a comparison; the verdict is the last."""
    names = tuple(side.name for side in found.sides)
    yield Table(("", *names), tuple(_figures(found.sides)), title="Results")
    phases = dict.fromkeys(
        phase for side in found.sides for phase, part in side.time_fractions.items() if part
    )
    rows = tuple(
        (phase, *(percent(side.time_fractions.get(phase), 1) for side in found.sides))
        for phase in phases
    )
    if rows:
        yield Table(("phase", *names), rows, title="Time of the replicas")
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
    labels = ("/".join(side.energy_labels).replace("absent", "not measured") for side in sides)
    yield ("energy label", *labels)


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
    return Table(("", *names), rows, title=f"{title}: differences", words=words)


def _cell(value: object) -> str:
    return NONE if value in (None, "") else str(value)
