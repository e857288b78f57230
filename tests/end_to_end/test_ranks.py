"""Replicas of several ranks, joined by MPI, as processes of this machine."""

from __future__ import annotations

import math
import os
import signal
import socket
from collections.abc import Callable

import psutil
import pytest
from tests.end_to_end.conftest import FAST, LONG, TINY, TORCH, CachedView, aiperf
from tests.support.processes import alive

from aiperf_hpc.run.history import RunHistory, Trial
from aiperf_hpc.run.paths import Incarnation
from aiperf_hpc.trial import StepPart, TimePhase, TrialState

TWO = ["--set", "replica.ranks_per_node=2"]


def completed(history: RunHistory) -> list[Trial]:
    return [t for t in history.trials.values() if t.state is TrialState.COMPLETED]


def test_a_replica_of_two_ranks_to_its_verified_score(live_run: Callable[..., CachedView]) -> None:
    run = live_run(*TWO, "--nodes", 1, *TORCH)
    run.wait_until(lambda h: len(completed(h)) >= 2)
    done = run.interrupt()
    assert done.returncode == 0, done.stderr
    assert "1 replica of 2 ranks" in done.stdout
    verified = aiperf("verify", run.paths.root)
    assert verified.returncode == 0, verified.stdout
    history = run.history
    (replica,) = history.replicas.values()
    assert replica.started is not None
    assert len(replica.started.hosts) == 2
    trained = completed(history)
    step_times = {times.trial: times for times in replica.step_times}
    for trial in trained:
        times = step_times[trial.id]
        each = math.ceil(192 / trial.started.hyperparameters.batch_size)
        assert times.steps == each * len(trial.evaluations)
        assert (times.collective, times.ranks) == ("mpi", 2)
        assert min(times.seconds.values()) >= 0.0
        assert times.seconds[StepPart.COMPUTE] > 0.0
        # The first step is booked as building.
        seconds = replica.seconds[TimePhase.TRAIN] + replica.seconds[TimePhase.BUILD]
        assert sum(times.seconds.values()) < seconds
    # Credited is what both ranks executed: every sample once an epoch.
    for trial in trained:
        assert trial.train_samples == 192 * len(trial.evaluations)
        assert trial.validation_samples == 64 * len(trial.evaluations)


@pytest.mark.parametrize(
    ("collective", "number", "reason"),
    [
        ("mpi", signal.SIGKILL, "its replica was lost and started again: ended with status 137"),
        ("mpi", signal.SIGSTOP, "rank 1 on {host} died or hangs: no answer for 4 s to"),
        ("torch", signal.SIGKILL, "rank 1 on {host} died or hangs: "),
        ("torch", signal.SIGSTOP, "rank 1 on {host} died or hangs: no answer for 4 s to"),
        ("horovod", signal.SIGKILL, "rank 1 on {host} died or hangs: "),
    ],
)
def test_a_rank_that_is_gone_fails_the_trial_and_the_replica_goes_on_with_it(
    live_run: Callable[..., CachedView], collective: str, number: signal.Signals, reason: str
) -> None:
    """Killed, it is gone; stopped, it hangs."""
    if collective == "horovod":
        pytest.importorskip("horovod", reason="Horovod has no wheels: make horovod builds it")
    run = live_run(
        *TWO, "--nodes", 1,
        "--set", f"replica.collective={collective}", "--set", "replica.rank_timeout_seconds=4",
        *(LONG if collective == "horovod" else ()),
        config=TINY if collective == "horovod" else FAST,  # It reduces TensorFlow's tensors.
    )  # fmt: skip

    def under_way(history: RunHistory) -> bool:
        return any(len(t.evaluations) >= 2 for t in history.trials.values())

    run.wait_until(under_way)
    rank_0 = psutil.Process(run.replica_pid("r0"))
    starter = rank_0.parent()
    assert starter is not None
    (rank_1,) = [p for p in starter.children() if p.pid != rank_0.pid]
    os.kill(rank_1.pid, number)
    run.wait_until(
        lambda h: any(t.started.resumes is not None and t.evaluations for t in h.trials.values())
    )
    done = run.interrupt()
    assert done.returncode == 0, done.stderr
    replica = run.history.replicas["r0"]
    assert list(replica.starts) == [Incarnation(0, 0), Incarnation(0, 1)]
    (resumed,) = {t.started.resumes for t in run.history.trials.values() if t.started.resumes}
    dead = run.history.trials[resumed]
    assert dead.state is TrialState.FAILED
    assert dead.reason.startswith(reason.format(host=socket.gethostname()))
    assert not alive(rank_1.pid)
    assert "Score " in done.stdout
    assert aiperf("verify", run.paths.root).returncode == 0
