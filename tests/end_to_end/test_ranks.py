"""Replicas of several ranks, joined by MPI, as processes of this machine."""

from __future__ import annotations

import math
import os
import signal
import socket
from collections.abc import Callable

import psutil
import pytest
from tests.end_to_end.conftest import FAST, LONG, TINY, TORCH, LiveRun
from tests.support.command import aiperf
from tests.support.processes import alive

from aiperf_hpc.run.history import RunHistory, Trial
from aiperf_hpc.run.paths import Incarnation
from aiperf_hpc.trial import StepPart, TimePhase, TrialState

TWO = ["--set", "replica.ranks_per_node=2"]


def completed(history: RunHistory) -> list[Trial]:
    return [t for t in history.trials.values() if t.state is TrialState.COMPLETED]


def test_a_replica_of_two_ranks_to_its_verified_score(live_run: Callable[..., LiveRun]) -> None:
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


LOST = "its replica was lost and restarted: ended with status 137"
DIED = "rank 1 on {host} died or hangs: "
PATIENCE = 15
"""Seconds in which a rank of two answers, also where others want its core."""
HANGS = f"rank 1 on {{host}} died or hangs: no answer for {PATIENCE} s to"


@pytest.mark.parametrize(
    ("collective", "ends"),
    [
        ("mpi", {signal.SIGKILL: LOST, signal.SIGSTOP: HANGS}),
        ("torch", {signal.SIGKILL: DIED, signal.SIGSTOP: HANGS}),
        ("horovod", {signal.SIGKILL: DIED}),
    ],
)
def test_a_rank_that_is_gone_fails_the_trial_and_the_replica_goes_on_with_it(
    live_run: Callable[..., LiveRun], collective: str, ends: dict[signal.Signals, str]
) -> None:
    """Killed, it is gone; stopped, it hangs."""
    if collective == "horovod":
        pytest.importorskip("horovod", reason="Horovod has no wheels: make horovod builds it")
    run = live_run(
        *TWO, "--nodes", 1,
        "--set", f"replica.collective={collective}",
        "--set", f"replica.rank_timeout_seconds={PATIENCE}",
        *(LONG if collective == "horovod" else ()),
        config=TINY if collective == "horovod" else FAST,  # It reduces TensorFlow's tensors.
    )  # fmt: skip
    gone = []
    for life, (number, reason) in enumerate(ends.items()):
        run.wait_until(lambda h, life=life: trains(h, Incarnation(0, life)))  # type: ignore[misc]
        gone.append(rank_1(run))
        os.kill(gone[-1], number)
        again = Incarnation(0, life + 1)
        run.wait_until(lambda h, again=again: resumed(h, again) is not None)  # type: ignore[misc]
        dead = run.history.trials[resumed(run.history, again) or ""]
        assert dead.state is TrialState.FAILED
        assert dead.reason.startswith(reason.format(host=socket.gethostname()))
    done = run.interrupt()
    assert done.returncode == 0, done.stderr
    lives = list(run.history.replicas["r0"].starts)
    assert lives == [Incarnation(0, life) for life in range(len(ends) + 1)]
    assert not [pid for pid in gone if alive(pid)]
    assert "Score " in done.stdout
    assert aiperf("verify", run.paths.root).returncode == 0


def trains(history: RunHistory, life: Incarnation) -> bool:
    """The replica has evaluated epochs in this life, so that there is a checkpoint."""
    trials = history.trials.values()
    return any(t.incarnation == life and len(t.evaluations) >= 2 for t in trials)


def resumed(history: RunHistory, life: Incarnation) -> str | None:
    """Return the trial that the replica has gone on with in this life, and evaluated since."""
    trials = (t for t in history.trials.values() if t.incarnation == life and t.evaluations)
    return next((t.started.resumes for t in trials if t.started.resumes), None)


def rank_1(run: LiveRun) -> int:
    """Return the process of the replica's other rank."""
    rank_0 = psutil.Process(run.replica_pid("r0"))
    starter = rank_0.parent()
    assert starter is not None
    (other,) = [p for p in starter.children() if p.pid != rank_0.pid]
    return other.pid
