"""What of the public entries is drawn."""

from __future__ import annotations

from pathlib import Path

from tests.support.training_logs import cifar10_entries, entry, training

from aiperf_hpc.analysis.options import Options, qualities
from aiperf_hpc.analysis.page.plots import draw_costs, draw_sensitivity
from aiperf_hpc.analysis.sections.cost import cost_to_accuracy
from aiperf_hpc.analysis.sections.thresholds import threshold_sensitivity


def test_public_entries_of_cifar10(tmp_path: Path) -> None:
    entries = cifar10_entries(tmp_path)
    thresholds = draw_sensitivity(threshold_sensitivity(entries, Options()).contests[0], "t")
    assert thresholds
    assert "31 of 31 entries reach 89.5" in thresholds.description
    assert "1 of 31 entries reach 95" in thresholds.description
    costs = draw_costs(cost_to_accuracy(entries, Options()).contests[0], "c")
    assert costs
    assert "20 entries" in costs.description
    assert "0.105 USD" in costs.description
    assert len(thresholds.svg) + len(costs.svg) < 100_000


def test_what_nobody_reached_is_not_drawn() -> None:
    options = Options(thresholds=(qualities("--thresholds", "0.99"),))
    contests = threshold_sensitivity([entry("e", training([(1, 0.5)]))], options).contests
    assert draw_sensitivity(contests[0], "t") is None
