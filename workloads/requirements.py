"""What closed divisions of benchmarks have in common: rules by the values that they require."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from pydantic import BaseModel

from aiperf_hpc.config import RunConfig
from aiperf_hpc.objective import Measure
from aiperf_hpc.ops_counter.divisions import RuleCheck
from aiperf_hpc.ops_counter.divisions.evidence import RunEvidence
from aiperf_hpc.trial import DatasetInfo, TrialState


class OfficialData(NamedTuple):
    """The data that a benchmark is run on."""

    name: str
    """The dataset's."""
    unit: str
    """What its samples are, in the plural."""
    input: str
    shape: tuple[int, ...]
    """Of a sample."""
    samples: tuple[int, int] | int
    """For training and for validation; a single number is the least of both together."""
    where: str = ""
    """Of which choice these are the samples, such as a version's; empty where there is one."""
    classes: int | None = None
    """Of samples or of their parts; None where labels name none."""


def differing(section: BaseModel, where: str, wanted: Mapping[str, object]) -> list[str]:
    """Return what in a section of a configuration is not as it is wanted, by its fields' names.

    Args:
        where: what the section is called, such as training.
    """
    return [
        f"{where}.{name} is {_said(getattr(section, name))}; {_said(value)} is required"
        for name, value in wanted.items()
        if getattr(section, name) != value
    ]


def _said(value: object) -> object:
    return "none" if value is None else value


def data_rule(run: RunEvidence, wanted: OfficialData, further: Iterable[str] = ()) -> RuleCheck:
    """Return whether all replicas had the official data, all of it.

    Args:
        further: what else is wrong with how they were read.
    """
    seen = {each.dataset for each in run.replicas if each.dataset is not None}
    value = ", ".join(sorted(dataset.name for dataset in seen)) or "none"
    wrong = [*_other_data(seen, wanted), *further]
    return RuleCheck.of("data", value, f"the official {wanted.unit}", wrong)


def _other_data(seen: set[DatasetInfo], wanted: OfficialData) -> Iterator[str]:
    if len(seen) != 1:
        yield f"replicas had {len(seen)} different datasets" if seen else "none was loaded"
        return
    (dataset,) = seen
    if dataset.name != wanted.name:
        yield f"{dataset.name} stands in for them; {wanted.name} is required"
        return
    shape = dataset.inputs[wanted.input].shape
    if shape != wanted.shape:
        yield f"{wanted.unit} of {shape}; {wanted.shape} is required"
    if dataset.classes != wanted.classes:
        yield f"{_said(dataset.classes)} classes; {_said(wanted.classes)} are required"
    yield from _other_numbers(dataset, wanted)


def _other_numbers(dataset: DatasetInfo, wanted: OfficialData) -> Iterator[str]:
    counts, needed = (dataset.train_samples, dataset.validation_samples), wanted.samples
    if isinstance(needed, int):
        if sum(counts) < needed:
            yield f"{sum(counts):,} {wanted.unit}; {needed:,} at least are required"
    elif counts != needed:
        found, due = (" + ".join(f"{n:,}" for n in each) for each in (counts, needed))
        yield f"{found} {wanted.unit}; {due} are required{wanted.where}"


def target_rule(asked: float | None, target: float) -> RuleCheck:
    """Return whether a training ends at the benchmark's quality."""
    wrong = (
        [] if asked == target else [f"training.target is {_said(asked)}; {target:g} is required"]
    )
    return RuleCheck.of("target", "none" if asked is None else f"{asked:g}", f"{target:g}", wrong)


def target_or_none_rule(asked: float | None, target: float) -> RuleCheck:
    """Return whether a training ends at the benchmark's quality, or after all its epochs."""
    wrong = []
    if asked not in (None, target):
        wrong = [f"training.target is {asked:g}; {target:g} or none is required"]
    value = "none" if asked is None else f"{asked:g}"
    return RuleCheck.of("target", value, f"{target:g}, or none", wrong)


def epochs_rule(config: RunConfig, wanted: int) -> RuleCheck:
    """Return whether a training that does not reach its target has so many epochs."""
    training = config.training
    wrong = differing(training, "training", {"max_epochs": wanted})
    if training.patience < wanted:
        wrong.append(f"training.patience is {training.patience}; at least {wanted} is required")
    return RuleCheck.of("epochs", str(training.max_epochs), str(wanted), wrong)


def reached_rule(run: RunEvidence, measure: Measure, target: float) -> RuleCheck:
    """Return whether trainings reached a quality: all that ended by themselves, and at least one.

    Of the last epoch, which is that of the network that a training leaves.
    """
    ended = [trial for trial in run.trials if trial.state is TrialState.COMPLETED]
    last = [trial.evaluations[-1].quality for trial in ended if trial.evaluations]
    good = sum(measure.reaches(quality, target) for quality in last)
    wrong = []
    if not good:
        wrong = [f"no training has reached {target:g}"]
    elif good < len(ended):
        wrong = [f"{len(ended) - good} of {len(ended)} trainings did not reach {target:g}"]
    return RuleCheck.of(
        "reached", f"{good} of {len(ended)} trainings", "all, and at least 1", wrong
    )
