"""A run on a real SLURM cluster whose number of nodes changes."""

from __future__ import annotations

from tests.slurm.conftest import Cluster, Start, gaps

from aiperf_hpc.run.history import RunHistory
from aiperf_hpc.run.history.presence import presences, steps


def executed_after(history: RunHistory, replica: str, utc: float) -> bool:
    """Return whether a replica has trained since."""
    return any(
        history.trials[e.trial].replica == replica and e.utc > utc for e in history.executions
    )


def test_nodes_join_leave_and_return(cluster: Cluster, slurm_run: Start) -> None:
    run = slurm_run("--nodes", "1-2", "--hours", 1, "--launcher", "slurm")
    run.wait_until(lambda h: len(h.nodes_requested) == 1 and executed_after(h, "r1", 0.0))
    refused = cluster.refusal("scale", run.paths.root, "--nodes", 4)
    assert refused.startswith("aiperf: --nodes 4: partition 'bench' has 3 nodes")
    for nodes in (3, 1, 2):
        asked = cluster.aiperf("scale", run.paths.root, "--nodes", nodes)
        assert asked.returncode == 0, asked.stderr
        run.history.refresh()
        since = run.history.nodes_requested[-1][0]
        assert run.history.nodes_requested[-1][1] == nodes
        if nodes == 1:
            run.wait_until(lambda h: all(h.replicas[r].ended is not None for r in ("r1", "r2")))
            run.wait_until(lambda h, since=since: executed_after(h, "r0", since + 1.0))  # type: ignore[misc]
        else:
            last = f"r{nodes - 1}"
            run.wait_until(lambda h, last=last, since=since: executed_after(h, last, since))  # type: ignore[misc]
    run.stop()
    run.finish()
    history = run.history
    assert history.problems == []
    assert history.fenced == 0
    assert history.replicas["r2"].ended == "SIGTERM"
    assert len(history.replicas["r1"].starts) == 2
    counts = [step.replicas for step in steps(presences(history, history.last_utc))]
    assert [max(counts), counts[-1]] == [3, 0]
    assert min(gaps([at for at, _ in cluster.questions()])) > 4.9
    assert "the run has ended" in cluster.refusal("scale", run.paths.root, "--nodes", 1)
