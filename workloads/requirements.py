"""Rules shared by the closed divisions of several benchmarks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from pydantic import BaseModel

from aiperf_hpc.config import RunConfig
from aiperf_hpc.objective import QualityMetric
from aiperf_hpc.rules.rule import Findings, Found, Rule
from aiperf_hpc.rules.validity.evidence import RunEvidence
from aiperf_hpc.trial import DatasetInfo, TrialState


class OfficialData(NamedTuple):
    """Official data of a benchmark."""

    name: str
    """Name of the dataset."""
    unit: str
    """Plural noun for its samples."""
    input: str
    shape: tuple[int, ...]
    """Shape of a sample."""
    samples: tuple[int, int] | int
    """Numbers of training and validation samples; a single number is the minimum of their sum."""
    condition: str = ""
    """Condition for these numbers of samples, such as a benchmark version; empty if none."""
    classes: int | None = None
    """Number of classes of samples or of their parts; None if there are none."""


def differing(section: BaseModel, where: str, wanted: Mapping[str, object]) -> list[str]:
    """Return messages for the fields of a configuration section that differ from required values.

    Args:
        section: section of the configuration.
        where: name of the section, such as training.
        wanted: required values by field name.
    """
    return [
        f"{where}.{name} is {_text(getattr(section, name))}; {_text(value)} is required"
        for name, value in wanted.items()
        if getattr(section, name) != value
    ]


def _text(value: object) -> object:
    return "none" if value is None else value


def official_data(run: RunEvidence, wanted: OfficialData, further: Iterable[str] = ()) -> Findings:
    """Require that all replicas read the complete official data.

    Args:
        run: evidence of the run.
        wanted: official data.
        further: further violations, such as a wrong augmentation.
    """
    seen = {each.dataset for each in run.replicas if each.dataset is not None}
    yield Found(", ".join(sorted(dataset.name for dataset in seen)) or "none")
    yield from _other_data(seen, wanted)
    yield from further


def data_rule(wanted: OfficialData) -> Rule[RunEvidence]:
    """Return the rule that all replicas read the complete official data."""
    return Rule("data", f"the official {wanted.unit}", lambda run: official_data(run, wanted))


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


def optimizer_rule(wanted: Mapping[str, object], requirement: str) -> Rule[RunConfig]:
    """Return the rule that the optimizer has the required settings, by name in ``training``."""

    def findings(config: RunConfig) -> Findings:
        training = config.training
        yield Found(f"{training.optimizer}, momentum {training.momentum:g}")
        yield from differing(training, "training", wanted)

    return Rule("optimizer", requirement, findings)


def target_rule(target: float, *, optional: bool = False) -> Rule[RunConfig]:
    """Return the rule that training ends at the benchmark's target quality.

    Args:
        target: target quality.
        optional: whether training may also have no target and end after all epochs.
    """

    def findings(config: RunConfig) -> Findings:
        quality = config.training.target
        yield Found("none" if quality is None else f"{quality:g}")
        if quality != target and not (optional and quality is None):
            required = f"{target:g}{' or none' * optional}"
            yield f"training.target is {_text(quality)}; {required} is required"

    return Rule("target", f"{target:g}{', or none' * optional}", findings)


def epochs_rule(wanted: int) -> Rule[RunConfig]:
    """Return the rule that training below the target runs for the required number of epochs."""

    def findings(config: RunConfig) -> Findings:
        training = config.training
        yield Found(str(training.max_epochs))
        yield from differing(training, "training", {"max_epochs": wanted})
        if training.patience < wanted:
            yield f"training.patience is {training.patience}; at least {wanted} is required"

    return Rule("epochs", str(wanted), findings)


def reached_rule(metric: QualityMetric, target: float) -> Rule[RunEvidence]:
    """Return the rule that all completed training runs, and at least one, reach the target quality.

    The quality of a trial is that of its last epoch, whose network is the result.
    """

    def findings(run: RunEvidence) -> Findings:
        ended = [trial for trial in run.trials if trial.state is TrialState.COMPLETED]
        last = [trial.evaluations[-1].quality for trial in ended if trial.evaluations]
        good = sum(metric.reaches(quality, target) for quality in last)
        yield Found(f"{good} of {len(ended)} training runs")
        if not good:
            yield f"no training run has reached {target:g}"
        elif good < len(ended):
            yield f"{len(ended) - good} of {len(ended)} training runs did not reach {target:g}"

    return Rule("reached", "all, and at least 1", findings)
