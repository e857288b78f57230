from __future__ import annotations

from aiperf_hpc.run.executed_samples import Executions


def test_what_was_executed_after_a_time() -> None:
    executions = Executions()
    assert executions.after(0.0) == {}
    executions.add(5.0, "b", 448, 0)
    executions.add(7.0, "b", 1, 2)
    executions.add(2.0, "a", 0, 100)
    executions.add(6.0, "b", 3, 4)
    assert executions.after(7.0) == {}
    assert executions.after(5.0) == {"b": (4, 6)}
    assert executions.after(1.0) == {"a": (0, 100), "b": (452, 6)}
