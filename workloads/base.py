"""What a workload is made of."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from aiperf_hpc.config import ModelConfig, RunConfig
from aiperf_hpc.extras import Package
from aiperf_hpc.graph import Graph
from aiperf_hpc.objective import Objective
from aiperf_hpc.ops_counter.divisions import RuleCheck
from aiperf_hpc.ops_counter.divisions.evidence import RunEvidence
from aiperf_hpc.ops_counter.divisions.judgement import Rule
from aiperf_hpc.ops_counter.valid_flops import Weight
from aiperf_hpc.trial import DatasetInfo, Hyperparameters


@dataclass(frozen=True, slots=True)
class Definition:
    """What a workload is by the benchmark that it is of, in that one's words."""

    benchmark: str
    """The benchmark and its version or paper."""
    task: str
    network: str
    data: str
    """The official data: samples, shapes, format and size."""
    target: str
    """The quality that ends a training, and its measure."""
    scoring: str
    """What is compared between machines."""
    source: str
    """Where all of this is defined."""


@dataclass(frozen=True, slots=True)
class Workload:
    """A network on a dataset, with what it is trained for."""

    name: str
    summary: str
    """The workload in one line."""
    definition: Definition
    objective: Objective
    datasets: tuple[str, ...]
    """The names of the datasets that have its inputs and targets: the official one first, then
    those that stand in for it, whose runs are official in no division."""
    network: Callable[[ModelConfig, DatasetInfo], Graph]
    """The initial network for a dataset; raises GraphError where there is none."""
    searchable: bool
    """Whether morphisms can grow its networks."""
    presets: tuple[str, ...]
    """The names of its presets; the first is what ``aiperf start --workload`` starts."""
    official: Mapping[str, Callable[[], Graph]]
    """Its networks at the official size, by what tells them apart; the first is today's."""
    closed: Mapping[str, str]
    """What the closed division requires of settings, in words, by their keys."""
    opened: str
    """What a run of the open division may change, in words."""
    engines: tuple[str, ...] = ("torch", "tensorflow")
    """The engines that train it."""
    needs: tuple[Package, ...] = ()
    """Packages that it needs whatever trains it."""
    settings_rules: tuple[Callable[[RunConfig], RuleCheck], ...] = ()
    """What its benchmark's closed division asks of a configuration."""
    data_rule: Rule | None = None
    """What it asks of the data that a run had."""
    record_rules: tuple[Rule, ...] = ()
    """What it asks of a run's trainings."""
    logged: Callable[[RunConfig, Hyperparameters], Mapping[str, object]] | None = None
    """What MLPerf HPC's logs of it state of a training, by their keys; None where it is none of
    that benchmark's."""
    valid_flops: Weight | None = None
    """How HPC AI500 weights qualities of it; None where it is none of that benchmark's."""
    edition: Callable[[RunConfig], str] = lambda _: ""
    """The earlier version of its benchmark that a configuration is of; empty for today's."""
    objectives: Mapping[str, Objective] = field(default_factory=dict)
    """The objective on datasets with other targets than the official one's, by their names."""

    @property
    def rules(self) -> tuple[Rule, ...]:
        """All rules of its benchmark's closed division, asked of a run."""
        return (*self.division_rules, *self.record_rules)

    @property
    def division_rules(self) -> tuple[Rule, ...]:
        """Those that say whether a run is of that division, whatever came of its trainings."""
        of_settings = (_of_run(rule) for rule in self.settings_rules)
        return (*of_settings, *(() if self.data_rule is None else (self.data_rule,)))

    def valid_flops_on(self, dataset: str) -> Weight | None:
        """Return how HPC AI500 weights qualities; None on what stands in for its dataset."""
        return self.valid_flops if dataset == self.datasets[0] else None

    def objective_on(self, dataset: str) -> Objective:
        """Return what is trained for on a dataset."""
        return self.objectives.get(dataset, self.objective)


def _of_run(rule: Callable[[RunConfig], RuleCheck]) -> Rule:
    def asked(run: RunEvidence) -> RuleCheck:
        return rule(run.config)

    return asked
