"""A replica that spans nodes of a real SLURM cluster: srun starts its ranks, which meet there."""

from __future__ import annotations

import pytest
from tests.slurm.conftest import Cluster, Start
from tests.support.cache import unavailable
from tests.support.present import present

from aiperf_hpc.run.history import RunHistory, Trial
from aiperf_hpc.trial import TrialState


@pytest.fixture
def _pmix(cluster: Cluster) -> None:
    """Where SLURM has no PMIx these tests are skipped; in CI they fail."""
    done = cluster.run("srun", "--mpi=pmix", "-n1", "true")
    if done.returncode:
        unavailable(f"srun --mpi=pmix fails; `make slurm` installs libpmix: {done.stderr}")


def node(history: RunHistory) -> str | None:
    """Return where the scheduler has said that the replica runs: asked every 5 s, it is late."""
    state = history.replicas["r0"].job_state
    return None if state is None else state.node


def completed(history: RunHistory) -> list[Trial]:
    return [t for t in history.trials.values() if t.state is TrialState.COMPLETED]


@pytest.mark.usefixtures("_pmix")
@pytest.mark.parametrize("collective", ["mpi", "torch"])
def test_a_replica_of_two_nodes_to_its_verified_score(slurm_run: Start, collective: str) -> None:
    run = slurm_run(
        "--nodes", 2, "--hours", 1, "--set", "training.max_epochs=2",
        "--set", "replica.nodes=2", "--set", f"replica.collective={collective}",
    )  # fmt: skip
    run.wait_until(lambda h: bool(completed(h)) and node(h) is not None)
    run.stop()
    run.finish()
    (replica,) = run.history.replicas.values()
    assert len(present(replica.started).hosts) == 2
    assert node(run.history) == "n[1-2]"
    done = completed(run.history)
    assert all(t.train_samples == 64 * len(t.evaluations) for t in done)
