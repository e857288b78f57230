"""Weak scaling on a real SLURM cluster: replicas that end by themselves, each when it is done."""

from __future__ import annotations

import json

from tests.slurm.conftest import FAST, Start

from aiperf_hpc.run.history import RunHistory
from aiperf_hpc.run.records import TRAININGS_DONE, RunEnded


def test_a_run_ends_with_its_trainings(slurm_run: Start) -> None:
    """The primary dies when one of two models is trained; the next one launches both replicas."""
    run = slurm_run(
        "--nodes", 2, "--hours", 1, "--launcher", "slurm",
        "--set", "search.method=fixed", "--set", "search.max_trainings=1",
        "--set", "training.max_epochs=20",
        config=FAST,
    )  # fmt: skip
    run.wait_until(lambda history: bool(done(history)))
    run.kill_primary()
    run.resume()
    run.finish()
    history = run.history
    assert history.run_ended is not None
    assert isinstance(history.run_ended.event, RunEnded)
    assert history.run_ended.event.reason == TRAININGS_DONE
    assert done(history) == {"r0", "r1"}
    assert {trial.started.round for trial in history.trials.values()} == {1}
    found = json.loads(run.paths.report_json.read_bytes())["models"]
    assert (found["scaling"], found["started"], found["completed"]) == ("weak", 2, 2)
    assert found["models_per_minute"] > 0.0


def done(history: RunHistory) -> set[str]:
    """The replicas that have trained as often as was asked for."""
    return {r.id for r in history.replicas.values() if r.ended == TRAININGS_DONE}
