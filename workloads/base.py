"""The parts of a workload."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from aiperf_hpc.config import ModelConfig, RunConfig
from aiperf_hpc.errors import GraphError
from aiperf_hpc.extras import Package
from aiperf_hpc.graph import Graph
from aiperf_hpc.morphism.resnet import V1, Version, resnet50
from aiperf_hpc.objective import Objective
from aiperf_hpc.ops_counter.score import Weight
from aiperf_hpc.rules.rule import Rule
from aiperf_hpc.rules.validity.evidence import RunEvidence
from aiperf_hpc.trial import DatasetInfo, Hyperparameters


@dataclass(frozen=True, slots=True)
class Definition:
    """A workload as its benchmark defines it."""

    benchmark: str
    """Name of the benchmark, with its version or paper."""
    task: str
    network: str
    data: str
    """Official data: samples, shapes, format and size."""
    target: str
    """Target quality of a training run and its metric."""
    scoring: str
    """Metric for comparisons between machines."""
    source: str
    """Sources of the definition."""


@dataclass(frozen=True, slots=True)
class Workload:
    """A network on a dataset, with its objective and the rules of its benchmark."""

    name: str
    summary: str
    """One-line description of the workload."""
    definition: Definition
    objective: Objective
    datasets: tuple[str, ...]
    """Names of the datasets with its inputs and targets: the official one, followed by substitutes,
    whose runs are not official in any division."""
    network: Callable[[ModelConfig, DatasetInfo], Graph]
    """Returns the initial network for a dataset; raises GraphError if there is none."""
    searchable: bool
    """Whether morphisms can grow its networks."""
    presets: tuple[str, ...]
    """Names of its presets; ``aiperf start --workload`` uses the first."""
    official: Mapping[str, Callable[[], Graph]]
    """Networks at the official size by distinguishing feature; the first is the current one."""
    closed: Mapping[str, str]
    """Requirements of the closed division as text, by key of the setting."""
    opened: str
    """Permitted changes in the open division as text."""
    engines: tuple[str, ...] = ("torch", "tensorflow")
    """Engines that can train it."""
    needs: tuple[Package, ...] = ()
    """Packages that it needs regardless of the engine."""
    settings_rules: tuple[Rule[RunConfig], ...] = ()
    """Rules of its benchmark's closed division on a configuration."""
    data_rule: Rule[RunEvidence] | None = None
    """Rule on the data of a run."""
    record_rules: tuple[Rule[RunEvidence], ...] = ()
    """Rules on a run's trials."""
    logged: Callable[[RunConfig, Hyperparameters], Mapping[str, object]] | None = None
    """Returns the settings of a trial for MLPerf HPC's logs, by key; None if it is not a
    workload of MLPerf HPC."""
    valid_flops: Weight | None = None
    """Weight of the quality in HPC AI500; None unless it is a workload of HPC AI500."""
    edition: Callable[[RunConfig], str] = lambda _: ""
    """Returns the earlier benchmark version of a configuration; empty for the current one."""
    objectives: Mapping[str, Objective] = field(default_factory=dict)
    """Objectives for datasets whose targets differ from the official ones, by dataset name."""

    @property
    def rules(self) -> tuple[Rule[RunEvidence], ...]:
        """All rules of the benchmark's closed division for a run."""
        return (*self.division_rules, *self.record_rules)

    @property
    def division_rules(self) -> tuple[Rule[RunEvidence], ...]:
        """Rules that decide whether a run belongs to that division, regardless of its quality."""
        rules: list[Rule[RunEvidence]] = [
            rule.on(lambda run: run.config) for rule in self.settings_rules
        ]
        return (*rules, *(() if self.data_rule is None else (self.data_rule,)))

    def valid_flops_on(self, dataset: str) -> Weight | None:
        """Return the weight of the quality in HPC AI500, or None for a substitute dataset."""
        return self.valid_flops if dataset == self.datasets[0] else None

    def objective_on(self, dataset: str) -> Objective:
        """Return the objective for a dataset."""
        return self.objectives.get(dataset, self.objective)


def resnet50_for(
    model: ModelConfig, dataset: DatasetInfo, version: Version = V1, unused_outputs: int = 0
) -> Graph:
    """Return the configured ResNet-50 for a dataset.

    Raises:
        GraphError: the dataset has no classes, or a dimension is below 1.
    """
    if dataset.classes is None:
        raise GraphError(f"dataset '{dataset.name}' has no classes")
    return resnet50(
        dataset.input_shape("image"),
        dataset.classes + unused_outputs,
        stem=model.stem,
        base_width=model.base_width,
        blocks=model.blocks,
        version=version,
    )
