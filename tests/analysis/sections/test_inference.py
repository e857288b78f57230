"""Inference: who is ranked, by what, and who is not."""

from __future__ import annotations

import pytest
from tests.support.training_logs import entry

from aiperf_hpc.analysis.metric import NotMeasuredError
from aiperf_hpc.analysis.options import Options
from aiperf_hpc.analysis.sections.inference import inference, tables
from aiperf_hpc.analysis.training_log import Entry, Inference, Quality

TOP1 = Quality(name="top1Accuracy", higher_is_better=True, target=94.0)


def served(
    name: str, latency: float | None, cost: float | None, value: float | None,
    quality: Quality | None = TOP1,
) -> Entry:  # fmt: skip
    measured = Inference(latency=latency, cost=cost, quality=quality, value=value)
    return entry(name).model_copy(update={"inference": measured})


def test_networks_that_are_good_enough_are_ranked() -> None:
    aimless = TOP1.model_copy(update={"target": None})
    entries = [
        served("slow", 0.02, 1e-7, 95.0), served("fast", 0.01, 2e-7, 94.0),
        served("dear", None, 3e-7, 94.0), served("bad", 0.001, None, 93.99),
        served("unknown", 0.001, None, None), served("other", 0.001, None, 99.0, aimless),
    ]  # fmt: skip
    found = inference(entries, Options())
    (benchmark,) = found.benchmarks
    told = [(one.entry, one.latency_rank, one.cost_rank) for one in benchmark.served]
    assert told == [("fast", 1, 2), ("slow", 2, 1), ("dear", None, 3)]
    assert benchmark.excluded == {
        "bad": "top1Accuracy is 93.99, the target 94",
        "unknown": "its quality is not known",
        "other": "there is no target for top1Accuracy",
    }
    (table,) = tables(found)
    assert table.rows[0] == ("fast", "10", "2e-07", "94")
    assert "not ranked: bad: top1Accuracy is 93.99, the target 94" in table.notes


def test_trainings_are_not_of_inference() -> None:
    with pytest.raises(NotMeasuredError, match="no entry measures inference"):
        inference([entry("a training")], Options())
