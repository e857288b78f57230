"""The clock of a run that waits in the queue of a real cluster, whose nodes are reserved."""

from __future__ import annotations

import getpass
from collections.abc import Callable, Iterator

import pytest
from tests.slurm.conftest import Cluster, Start

from aiperf_hpc.run.history import RunHistory
from aiperf_hpc.trial import JobPhase

HOURS = 0.003
SECONDS = HOURS * 3600.0


@pytest.fixture
def free_a_node(cluster: Cluster) -> Iterator[Callable[[], None]]:
    """Reserve every node, and return the function that frees the next one."""
    # Reservations, not jobs: on a busy machine a slow slurmd would lose a job's node.
    reserved: list[str] = []

    def free() -> None:
        _control(cluster, "delete", f"reservation={reserved[0]}")
        reserved.pop(0)

    try:
        for node in ("n1", "n2", "n3"):
            name = (f"reservationname={node}", f"nodes={node}", f"users={getpass.getuser()}")
            _control(cluster, "create", "reservation", *name, "starttime=now", "duration=60")
            reserved.append(node)
        yield free
    finally:
        deleted = [cluster.run("scontrol", "delete", f"reservation={node}") for node in reserved]
        assert not any(done.returncode for done in deleted), deleted


def _control(cluster: Cluster, *command: str) -> None:
    done = cluster.run("scontrol", *command)
    assert done.returncode == 0, done.stderr


def trains(history: RunHistory, replica: str) -> bool:
    return any(history.trials[e.trial].replica == replica for e in history.executions)


def test_the_clock_starts_with_the_first_node(
    slurm_run: Start, free_a_node: Callable[[], None]
) -> None:
    """Longer than the run is to last, and its primary dies; a second replica comes late."""
    run = slurm_run("--nodes", 2, "--hours", HOURS, "--launcher", "slurm")
    run.wait_until(lambda h: "r1" in h.replicas and h.replicas["r1"].submitted_utc is not None)
    begun = run.history.run_starts[0][0]
    run.wait_until(lambda h: (h.primary_utc or 0.0) > begun + 2.0 * SECONDS)
    history = run.history
    first = run.job
    assert history.start_utc is None
    assert {r.job_state.phase for r in history.replicas.values() if r.job_state} == {
        JobPhase.PENDING
    }
    run.kill_primary()
    run.resume()
    run.wait_until(lambda h: len(h.run_starts) == 2 and run.job != first)
    free_a_node()
    run.wait_until(lambda h: trains(h, "r0") or trains(h, "r1"))
    free_a_node()
    run.finish()
    history = run.history
    clock, end = history.clock_started, history.end_utc
    assert clock is not None
    assert end is not None
    assert clock.problem == ""
    assert clock.queue_seconds > 2.0 * SECONDS - 2.0  # SLURM tells whole seconds.
    assert clock.start_utc == history.start_utc == clock.granted_utc
    assert SECONDS <= end - clock.start_utc < 2.0 * SECONDS + 30.0
    assert min(r.began_utc or end for r in history.replicas.values()) >= clock.start_utc
    assert all(e.utc >= clock.start_utc for e in history.executions)
