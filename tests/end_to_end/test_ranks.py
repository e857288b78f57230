"""Replicas of several ranks, joined by MPI, as processes of this machine."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import psutil
from tests.end_to_end.conftest import TINY, LiveRun, aiperf

from aiperf_hpc.history import RunHistory
from aiperf_hpc.paths import Incarnation, RunPaths
from aiperf_hpc.trial import TrialState

TWO = ["--set", "replica.ranks_per_node=2"]


def test_a_replica_of_two_ranks_to_its_verified_score(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    done = aiperf(
        "start", "--nodes", 1, "--hours", 0.01, "--config", TINY, "--run-dir", folder, "--yes",
        "--launcher", "local", *TWO,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "1 replica of 2 ranks" in done.stdout
    verified = aiperf("verify", folder)
    assert verified.returncode == 0, verified.stdout
    history = RunHistory(RunPaths(folder))
    history.refresh()
    (replica,) = history.replicas.values()
    assert replica.started is not None
    assert len(replica.started.hosts) == 2
    trained = [t for t in history.trials.values() if t.state is TrialState.COMPLETED]
    assert trained
    # Credited is what both ranks executed: every sample once an epoch.
    for trial in trained:
        assert trial.train_samples == 192 * len(trial.evaluations)
        assert trial.validation_samples == 64 * len(trial.evaluations)


def test_a_replica_that_lost_a_rank_is_started_again_and_goes_on(
    live_run: Callable[..., LiveRun],
) -> None:
    run = live_run(
        *TWO, "--nodes", 1,
        "--set", "training.checkpoint_seconds=0", "--set", "rounds.warmup_epochs=[400,400,400]",
    )  # fmt: skip

    def under_way(history: RunHistory) -> bool:
        return any(len(t.evaluations) >= 2 for t in history.trials.values())

    run.wait_until(under_way)
    rank_0 = psutil.Process(run.replica_pid("r0"))
    launcher = rank_0.parent()
    assert launcher is not None
    (rank_1,) = [p for p in launcher.children() if p.pid != rank_0.pid]
    os.kill(rank_1.pid, signal.SIGKILL)
    run.wait_until(
        lambda h: any(t.started.resumes is not None and t.evaluations for t in h.trials.values())
    )
    run.process.send_signal(signal.SIGINT)
    out, err = run.process.communicate(timeout=60)
    assert run.process.returncode == 0, err
    run.history.refresh()
    assert list(run.history.replicas["r0"].starts) == [Incarnation(0, 0), Incarnation(0, 1)]
    assert "Score " in out
    assert aiperf("verify", run.paths.root).returncode == 0


def test_nodes_that_do_not_make_whole_replicas_are_refused(tmp_path: Path) -> None:
    done = aiperf(
        "start", "--nodes", 3, "--hours", 1, "--config", TINY, "--run-dir", tmp_path / "run",
        "--launcher", "local", "--set", "replica.nodes=2",
    )  # fmt: skip
    assert done.returncode == 2
    assert done.stderr == (
        "aiperf: --nodes 3: a replica spans 2 nodes (replica.nodes); give a multiple of it\n"
    )
    assert not (tmp_path / "run").exists()


def test_a_batch_smaller_than_the_ranks_is_refused(tmp_path: Path) -> None:
    done = aiperf(
        "start", "--nodes", 1, "--hours", 1, "--config", TINY, "--run-dir", tmp_path / "run",
        "--set", "replica.ranks_per_node=17",
    )  # fmt: skip
    assert done.returncode == 2
    assert "a batch of 16 samples cannot be divided among the 17 ranks" in done.stderr
