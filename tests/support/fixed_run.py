"""Evidence for a workload's rules: a run of one trial, written record by record."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from tests.support.run_manifest import run_manifest
from tests.support.run_writer import RunWriter, evaluated, run_started, trial_ended, trial_started

from aiperf_hpc.config import RunConfig
from aiperf_hpc.ops_counter.score import ScorePoint
from aiperf_hpc.rules.validity.evidence import RunEvidence
from aiperf_hpc.run.manifest import RULES
from aiperf_hpc.run.records import DatasetLoaded
from aiperf_hpc.trial import DatasetInfo, RoundPhase
from aiperf_hpc.workloads.base import Workload


def violated_rules(workload: Workload, config: RunConfig) -> dict[str, tuple[str, ...]]:
    """Return the reasons of the workload's rules of settings that a configuration violates."""
    results = (rule.check(config) for rule in workload.settings_rules)
    return {result.rule: result.failures for result in results if not result.passed}


def fixed_run(
    root: Path,
    config: RunConfig,
    dataset: DatasetInfo,
    metric: str,
    sums: Mapping[str, float],
    *,
    ended: bool = True,
) -> RunEvidence:
    """Return a run whose one training has been evaluated once.

    Args:
        root: where its records go.
        config: what it was configured to be.
        dataset: what its replica loaded.
        metric: the name of its quality metric.
        sums: of the metric, over all validation samples.
        ended: whether the training ended by itself.
    """
    run = RunWriter(root)
    run.primary(0, run_started())
    run.replica(1, DatasetLoaded(dataset=dataset))
    run.replica(2, trial_started(phase=RoundPhase.FIXED))
    samples = dataset.validation_samples
    result = evaluated(correct=0, metric=metric, sums=dict(sums), samples=samples)
    run.replica(3, result, *([trial_ended()] if ended else []))
    manifest = run_manifest(config, rules=RULES, commit="c")
    return RunEvidence(run.history(), manifest, ScorePoint(1.0, 1, None, None), 0.0)
