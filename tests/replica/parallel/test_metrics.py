"""A metric of all samples at once, over several ranks."""

from __future__ import annotations

import numpy as np
import pytest
from tests.replica.parallel import team as ranks
from tests.replica.parallel.team import Quadratic, Team, build, evaluate

from aiperf_hpc.objective import CLASSIFICATION, QUALITY_METRICS, QualityMetric
from aiperf_hpc.replica.data.base import Batch
from aiperf_hpc.replica.engines.base import evaluated

LABELS = QualityMetric(
    name="median_label",
    label="median label",
    sums=("median",),
    quality=lambda sums, _: sums["median"],
    impossible=lambda sums, _: "",
    goal="maximize",
    perfect=6.0,
    rows=("label", "pair"),
    summarize=lambda rows: {"median": float(np.median(rows["label"]))},
)


def evaluate_step(network: Quadratic, batch: Batch) -> None:
    label = batch.targets["label"]
    part = evaluated(LABELS, 0.0, batch.size, (label, np.stack([label, label + 1], 1)))
    network._sums = network._sums.merged(part, LABELS)


def test_rows_of_all_ranks_and_batches_are_concatenated(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(QUALITY_METRICS, LABELS.name, LABELS)
    objective = CLASSIFICATION.model_copy(update={"metric": LABELS.name})
    monkeypatch.setattr(ranks.Engine, "objective", objective)
    monkeypatch.setattr(Quadratic, "evaluate_step", evaluate_step)
    with Team(3) as team:
        network = build(team)
        found = evaluate(team, network)
        labels = np.arange(20) % 7
        assert found.samples == 20
        assert sorted(found.parts["label"].tolist()) == sorted(labels.tolist())
        np.testing.assert_array_equal(
            found.parts["pair"], found.parts["label"][:, None] + np.array([0, 1])
        )
        assert found.sums(LABELS) == {"median": float(np.median(labels))}
        assert network.drain_evaluation().samples == 0
