"""What runs have in common and in what they differ: pure, of values that were read before."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from pydantic import ConfigDict

from aiperf_hpc.formatting import duration, percent
from aiperf_hpc.results.views.resources import Resources
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


class RunFacts(Value):
    """A run, as far as it is compared."""

    name: str
    ended: bool
    broken: tuple[str, ...]
    """The rules that it does not keep."""
    simulated: bool
    """Whether nothing was computed."""
    settings: dict[str, Any]
    """The resolved configuration, by dotted keys."""
    dataset: str
    """The dataset's name and SHA-256."""
    machine: dict[str, str]
    """What its nodes are, by what is said of them."""
    versions: dict[str, str]
    """Of what it ran with, and the commit."""
    resources: Resources
    """Its replicas, hosts and accelerators."""
    seconds: float
    """How long it took."""
    ops: float
    regulated: float | None
    error: float | None
    time_shares: dict[str, float]
    """The fraction of its replicas' elapsed time by phase."""
    joules: float | None
    energy_label: str
    """Whether its energy was measured, estimated or absent."""


class _Told(Value):
    """Base of what is told. What stands below a field describes it over HTTP too."""

    model_config = ConfigDict(use_attribute_docstrings=True)


class Spread(_Told):
    """A figure over repeated runs."""

    mean: float
    """The arithmetic mean."""
    variation: float | None
    """The sample standard deviation over the mean; None for one run."""
    runs: int
    """How many runs it is of."""


class Side(_Told):
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


class Comparison(_Told):
    """What there is to say of runs side by side."""

    comparable: bool
    """Whether their scores may be held against each other."""
    reasons: tuple[str, ...]
    """Why they may not."""
    notes: tuple[str, ...]
    """What else is to be known: how much they differ, and what is not known of them."""
    sides: tuple[Side, ...]
    """Those that are compared, in the order that was asked for."""
    configuration: dict[str, tuple[Any, ...]]
    """The settings that differ by dotted keys, and each side's value; None where it has none."""
    hardware: dict[str, tuple[str | None, ...]]
    """What differs of the nodes, and each side's."""
    versions: dict[str, tuple[str | None, ...]]
    """What they ran with in different versions, and each side's."""


FIGURES: dict[str, Callable[[RunFacts], float | None]] = {
    "ops": lambda run: run.ops,
    "regulated": lambda run: run.regulated,
    "error": lambda run: run.error,
    "seconds": lambda run: run.seconds,
    "joules": lambda run: run.joules,
}


def compare(groups: Mapping[str, Sequence[RunFacts]]) -> Comparison:
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


def flat(values: Mapping[str, Any], path: str = "") -> dict[str, Any]:
    """Return nested settings by dotted keys."""
    found: dict[str, Any] = {}
    for key, value in values.items():
        if isinstance(value, Mapping):
            found |= flat(value, f"{path}{key}.")
        else:
            found[f"{path}{key}"] = value
    return found


def _side(name: str, runs: Sequence[RunFacts]) -> Side:
    phases = dict.fromkeys(phase for run in runs for phase in run.time_shares)
    return Side(
        name=name,
        runs=tuple(run.name for run in runs),
        figures={key: _spread([of(run) for run in runs]) for key, of in FIGURES.items()},
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


def _reasons(runs: Sequence[RunFacts]) -> Iterator[str]:
    """Yield why the scores of runs may not be held against each other."""
    for run in runs:
        if not run.ended:
            yield f"{run.name} has not ended"
    if len({run.simulated for run in runs}) > 1:
        yield f"nothing was computed in {_names(runs, lambda run: run.simulated)}"
    if len({run.dataset for run in runs}) > 1:
        yield f"the dataset differs: {', '.join(dict.fromkeys(run.dataset for run in runs))}"
    for key in differences([run.settings for run in runs], INCIDENTAL):
        if key.split(".")[0] in EQUAL:
            yield f"{key} differs, by which what is trained is another"
    lengths = [run.seconds for run in runs]
    if max(lengths) > (1.0 + LENGTHS) * min(lengths):
        yield f"they took from {duration(min(lengths))} to {duration(max(lengths))}"
    if len({not run.broken for run in runs}) > 1:
        for run in runs:
            if run.broken:
                yield f"{run.name} is INVALID ({', '.join(run.broken)}), and others are valid"


def _names(runs: Sequence[RunFacts], which: Callable[[RunFacts], bool]) -> str:
    return ", ".join(run.name for run in runs if which(run))


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


def _notes(sides: Sequence[Side], firsts: Sequence[RunFacts]) -> Iterator[str]:
    if all(run.broken for run in firsts):
        yield "none of them keeps the benchmark's rules: their scores compare with no others"
    for side in sides:
        if side.within:
            yield f"the runs of {side.name} are no repetitions: {', '.join(side.within)} differ"
    if all(len(side.runs) == 1 for side in sides):
        yield "one run each: how much they vary is not known; see `aiperf start --repeat`"
