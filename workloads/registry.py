"""The registry of workloads, and the validation of configurations against them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import lru_cache

from aiperf_hpc.config import ModelConfig, RunConfig
from aiperf_hpc.errors import ConfigError, did_you_mean
from aiperf_hpc.extras import ENGINES, Package, lacking, needed_by
from aiperf_hpc.graph import Graph
from aiperf_hpc.objective import CLASSIFICATION, Objective, QualityMetric
from aiperf_hpc.trial import DatasetInfo
from aiperf_hpc.workloads.automl import WORKLOAD as AUTOML
from aiperf_hpc.workloads.base import Workload
from aiperf_hpc.workloads.cosmoflow import WORKLOAD as COSMOFLOW
from aiperf_hpc.workloads.deepcam import WORKLOAD as DEEPCAM
from aiperf_hpc.workloads.extreme_weather import WORKLOAD as EXTREME_WEATHER
from aiperf_hpc.workloads.resnet50 import WORKLOAD as RESNET50
from aiperf_hpc.workloads.volumes import WORKLOAD as VOLUMES

_ALL = (AUTOML, COSMOFLOW, DEEPCAM, EXTREME_WEATHER, RESNET50, VOLUMES)
WORKLOADS: dict[str, Workload] = {workload.name: workload for workload in _ALL}


def workload_named(name: str) -> Workload:
    """Return a workload. Raises ConfigError if the name is unknown."""
    workload = WORKLOADS.get(name)
    if workload is None:
        raise ConfigError(
            f"no workload '{name}'{did_you_mean(name, WORKLOADS)}; "
            f"workloads: {', '.join(sorted(WORKLOADS))}"
        )
    return workload


def workload_of(config: RunConfig) -> Workload:
    """Return the configured workload, with the objective for its dataset.

    Raises:
        ConfigError: the name is unknown, or the workload does not support the configuration.
    """
    workload = workload_named(config.workload)
    objective = workload.objective_on(config.dataset.name)
    refused = (
        *_of_its_parts(workload, config),
        *_of_its_target(objective.quality, config.training.target),
        *_of_its_objective(workload.name, objective, config),
    )
    if refused:
        raise ConfigError(refused[0])
    return replace(workload, objective=objective)


def _of_its_parts(workload: Workload, config: RunConfig) -> Iterator[str]:
    """Yield messages for a dataset, search or engine that the workload does not support."""
    if config.dataset.name not in workload.datasets:
        yield (
            f"dataset.name={config.dataset.name}: workload '{workload.name}' has the datasets "
            f"{', '.join(workload.datasets)}"
        )
    if config.search.searches and not workload.searchable:
        yield (
            f"search.method={config.search.method}: no morphism grows the networks of workload "
            f"'{workload.name}'; set search.method=fixed"
        )
    if config.engine.name not in (*workload.engines, "simulated"):
        yield (
            f"engine.name={config.engine.name}: workload '{workload.name}' is trained by "
            f"{', '.join(workload.engines)}; set engine.name={workload.engines[0]}"
        )


def _of_its_target(metric: QualityMetric, target: float | None) -> Iterator[str]:
    """Yield messages for an impossible target."""
    if target is not None and not metric.reaches(metric.perfect, target):
        yield f"training.target={target:g}: no {metric.label} is better than {metric.perfect:g}"
    if target is not None and target < 0.0:
        yield (
            f"training.target={target:g}: no {metric.label} is below 0; give one that has to be "
            "trained for, or null"
        )


def _of_its_objective(name: str, objective: Objective, config: RunConfig) -> Iterator[str]:
    """Yield messages for settings that require classes, if the objective has none."""
    training, simulated = config.training, config.engine.name == "simulated"
    if simulated and objective != CLASSIFICATION:
        yield (
            f"engine.name=simulated generates accuracies, which workload '{name}' lacks; set "
            "engine.name to torch or tensorflow"
        )
    if training.keep_predictions and objective.kind != CLASSIFICATION.kind:
        yield f"training.keep_predictions: workload '{name}' predicts no classes; set it to false"
    if training.keep_predictions and simulated:
        yield "training.keep_predictions: engine.name=simulated predicts nothing; set it to false"
    if training.label_smoothing and objective.kind != CLASSIFICATION.kind:
        yield (
            f"training.label_smoothing={training.label_smoothing:g}: the targets of workload "
            f"'{name}' are not labels; set it to 0"
        )


def missing(config: RunConfig) -> list[str]:
    """Return a line with the remedy for each package that a run needs and that is missing."""
    workload = WORKLOADS.get(config.workload)
    own = () if workload is None else workload.needs
    of_workload = ((f"workload '{config.workload}'", package) for package in own)
    engines = () if workload is None else workload.engines
    return lacking([*_with_alternatives(needed_by(config), engines), *of_workload])


def _with_alternatives(
    needed: Iterable[tuple[str, Package]], engines: Sequence[str]
) -> Iterator[tuple[str, Package]]:
    """Add an installed alternative engine to the remedy of an engine's package."""
    others = [name for name in engines if ENGINES[name].installed]
    for what, package in needed:
        if package in ENGINES.values() and others:
            remedy = f"{package.remedy}; or use --set engine.name={others[0]}"
            yield what, package._replace(remedy=remedy)
        else:
            yield what, package


def require_samples(config: RunConfig, dataset: DatasetInfo) -> None:
    """Require that a batch does not exceed the dataset, and that each rank has a sample.

    A search is exempt, because it samples and halves batch sizes; a fixed training uses the
    configured batch size.

    Raises:
        ConfigError: the dataset has fewer samples.
    """
    if config.search.searches:
        return
    batch, ranks = config.training.batch_size, config.replica.ranks
    if dataset.train_samples < batch:
        raise ConfigError(
            f"training.batch_size={batch}: dataset '{dataset.name}' has {dataset.train_samples} "
            "training samples; lower it"
        )
    if dataset.validation_samples < ranks:
        raise ConfigError(
            f"replica.ranks_per_node: dataset '{dataset.name}' has {dataset.validation_samples} "
            f"validation samples, not one for each of {ranks} ranks; lower it"
        )


def initial_graph(config: RunConfig, dataset: DatasetInfo) -> Graph:
    """Return the initial network of a run.

    Raises:
        ConfigError: there is no such workload.
        DatasetError: the network does not support the dataset's samples.
        GraphError: there is no network for the samples.
    """
    return _network(workload_of(config).name, config.model, dataset)


@lru_cache(maxsize=4)
def _network(workload: str, model: ModelConfig, dataset: DatasetInfo) -> Graph:
    return WORKLOADS[workload].network(model, dataset)
