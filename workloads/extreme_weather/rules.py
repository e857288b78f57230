"""HPC AI500's hardware level of extreme weather analytics, as rules on a configuration and records.

The hardware level leaves the code as it is, and opens the machine, the batch size and the policy of
the learning rate. The code is not public: what stands for it here is held to. The problem, which
is the dataset, the target and the number of epochs, is fixed on every level.
[Jiang et al. 2020, HPC AI500 V2.0]
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from aiperf_hpc.config import ExtremeWeatherConfig, RunConfig
from aiperf_hpc.ops_counter.divisions import RuleCheck
from aiperf_hpc.ops_counter.divisions.evidence import RunEvidence
from aiperf_hpc.trial import DatasetInfo, TrialState

MAP: Final = (768, 1152, 16)
TARGET: Final = 0.35
EPOCHS: Final = 50
MAPS: Final = 13_140
"""Nine years of four maps a day, which the paper has: for training and validation together."""
VARIANTS: Final[Mapping[str, Mapping[str, object]]] = {
    "fpn": {"variant": "fpn"},
    "c4": {"variant": "c4", "proposals": 12_000},
}
"""The settings of ``model.extreme_weather`` that the benchmark's networks have."""


def network(config: RunConfig) -> RuleCheck:
    """The network is one of the two that stand for the benchmark's, with all its regions."""
    chosen = config.model.extreme_weather
    official = ExtremeWeatherConfig.model_validate(VARIANTS[chosen.variant])
    wrong = [
        f"model.extreme_weather.{name} is {getattr(chosen, name)}; {getattr(official, name)} is "
        "required"
        for name in ExtremeWeatherConfig.model_fields
        if getattr(chosen, name) != getattr(official, name)
    ]
    value = f"{chosen.variant}, {chosen.regions} regions"
    return RuleCheck.of("network", value, "Faster R-CNN, 512 regions", wrong)


def precision(config: RunConfig) -> RuleCheck:
    """Training is in fp32, as the paper's figures are."""
    value = config.training.precision
    wrong = [] if value == "fp32" else [f"training.precision is {value}; fp32 is required"]
    return RuleCheck.of("precision", value, "fp32", wrong)


def epochs(config: RunConfig) -> RuleCheck:
    """A training has 50 epochs, unless it reaches the target before, and is not cut short."""
    training = config.training
    wrong = []
    if training.max_epochs != EPOCHS:
        wrong.append(f"training.max_epochs is {training.max_epochs}; {EPOCHS} is required")
    if training.patience < EPOCHS:
        wrong.append(f"training.patience is {training.patience}; at least {EPOCHS} is required")
    return RuleCheck.of("epochs", str(training.max_epochs), str(EPOCHS), wrong)


def target(config: RunConfig) -> RuleCheck:
    """A training ends at the benchmark's precision, or after all its epochs."""
    asked = config.training.target
    wrong = []
    if asked not in (None, TARGET):
        wrong = [f"training.target is {asked:g}; {TARGET:g} or none is required"]
    value = "none" if asked is None else f"{asked:g}"
    return RuleCheck.of("target", value, f"{TARGET:g}, or none", wrong)


def data(run: RunEvidence) -> RuleCheck:
    """All replicas had the ExtremeWeather maps, of nine years at least."""
    seen = {each.dataset for each in run.replicas if each.dataset is not None}
    value = ", ".join(sorted(dataset.name for dataset in seen)) or "none"
    return RuleCheck.of("data", value, "the ExtremeWeather maps", _data(seen))


def _data(seen: set[DatasetInfo]) -> Iterator[str]:
    if len(seen) != 1:
        yield f"replicas had {len(seen)} different datasets" if seen else "none was loaded"
        return
    (dataset,) = seen
    if dataset.name != "extremeweather":
        yield f"{dataset.name} stands in for them; extremeweather is required"
        return
    shape, maps = dataset.inputs["image"].shape, dataset.train_samples + dataset.validation_samples
    if shape != MAP:
        yield f"maps of {shape}; {MAP} is required"
    if maps < MAPS:
        yield f"{maps:,} maps; {MAPS:,} at least are required"


def reached(run: RunEvidence) -> RuleCheck:
    """Trainings reached the benchmark's precision: all that ended by themselves, and at least one.

    Of the last epoch, which is that of the network that a training leaves.
    """
    ended = [trial for trial in run.trials if trial.state is TrialState.COMPLETED]
    good = [t for t in ended if t.evaluations and t.evaluations[-1].quality >= TARGET]
    value = f"{len(good)} of {len(ended)} trainings"
    wrong = []
    if not good:
        wrong = [f"no training has reached {TARGET:g}"]
    elif len(good) < len(ended):
        wrong = [f"{len(ended) - len(good)} of {len(ended)} trainings did not reach {TARGET:g}"]
    return RuleCheck.of("reached", value, "all, and at least 1", wrong)


OF_SETTINGS = (network, precision, epochs, target)
"""What a configuration alone decides."""
OF_RECORDS = (data, reached)
