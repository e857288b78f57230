"""What is computed of a training once, for all measures that need it."""

from __future__ import annotations

from aiperf_hpc.analysis.training_log import TrainingLog, cached_per_log


def test_what_is_computed_once_is_computed_again_of_a_copy() -> None:
    asked: list[str] = []

    @cached_per_log
    def name(log: TrainingLog) -> str:
        asked.append(log.source)
        return log.source

    log = TrainingLog(source="a", run=None, succeeded=None)
    other = TrainingLog(source="a", run=None, succeeded=None)
    assert (name(log), name(log), asked) == ("a", "a", ["a"])
    assert log == other
    assert log.model_dump() == other.model_dump()
    assert name(log.model_copy(update={"source": "b"})) == "b"
    assert name(log) == "a"
