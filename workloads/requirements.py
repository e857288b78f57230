"""Rules that the closed divisions of several benchmarks share, by the values that they require."""

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
    """Name of the dataset."""
    unit: str
    """Plural noun for its samples."""
    input: str
    shape: tuple[int, ...]
    """Shape of a sample."""
    samples: tuple[int, int] | int
    """Training and validation samples; a single number is the least sum of both."""
    condition: str = ""
    """Condition under which these are the samples, such as a version; empty if there is none."""
    classes: int | None = None
    """Number of classes of samples or of their parts; None if labels name none."""


def differing(section: BaseModel, where: str, wanted: Mapping[str, object]) -> list[str]:
    """Return which fields of a section of a configuration do not have the required values.

    Args:
        where: the section's name, such as training.
    """
    return [
        f"{where}.{name} is {_text(getattr(section, name))}; {_text(value)} is required"
        for name, value in wanted.items()
        if getattr(section, name) != value
    ]


def _text(value: object) -> object:
    return "none" if value is None else value


def data_rule(run: RunEvidence, wanted: OfficialData, further: Iterable[str] = ()) -> RuleCheck:
    """Return whether all replicas read the official data, all of it.

    Args:
        further: other reasons, such as a wrong augmentation.
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
        yield f"{_text(dataset.classes)} classes; {_text(wanted.classes)} are required"
    yield from _other_numbers(dataset, wanted)


def _other_numbers(dataset: DatasetInfo, wanted: OfficialData) -> Iterator[str]:
    counts, needed = (dataset.train_samples, dataset.validation_samples), wanted.samples
    if isinstance(needed, int):
        if sum(counts) < needed:
            yield f"{sum(counts):,} {wanted.unit}; {needed:,} at least are required"
    elif counts != needed:
        found, due = (" + ".join(f"{n:,}" for n in each) for each in (counts, needed))
        yield f"{found} {wanted.unit}; {due} are required{wanted.condition}"


def optimizer_rule(config: RunConfig, wanted: Mapping[str, object], limit: str) -> RuleCheck:
    """Return whether SGD has the benchmark's settings, by their names in ``training``."""
    training = config.training
    value = f"{training.optimizer}, momentum {training.momentum:g}"
    return RuleCheck.of("optimizer", value, limit, differing(training, "training", wanted))


def target_rule(config: RunConfig, target: float, *, optional: bool = False) -> RuleCheck:
    """Return whether a training ends at the benchmark's quality.

    Args:
        optional: whether a training may also have no target, and end after all its epochs.
    """
    quality = config.training.target
    value = "none" if quality is None else f"{quality:g}"
    wrong = []
    if quality != target and not (optional and quality is None):
        due = f"{target:g} or none" if optional else f"{target:g}"
        wrong = [f"training.target is {value}; {due} is required"]
    return RuleCheck.of("target", value, f"{target:g}{', or none' * optional}", wrong)


def epochs_rule(config: RunConfig, wanted: int) -> RuleCheck:
    """Return whether a training that does not reach its target has all its epochs."""
    training = config.training
    wrong = differing(training, "training", {"max_epochs": wanted})
    if training.patience < wanted:
        wrong.append(f"training.patience is {training.patience}; at least {wanted} is required")
    return RuleCheck.of("epochs", str(training.max_epochs), str(wanted), wrong)


def reached_rule(run: RunEvidence, measure: Measure, target: float) -> RuleCheck:
    """Return whether all completed trainings, and at least one, reached the target quality.

    The quality is that of the last epoch, whose network a training leaves.
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
