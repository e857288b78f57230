"""How long accelerators waited for a network, by a run's records."""

from __future__ import annotations

from aiperf_hpc.results.report import html
from aiperf_hpc.results.report.model import Report
from aiperf_hpc.results.views.time_split import NetworkWait, network_wait
from aiperf_hpc.run import records
from aiperf_hpc.run.history import ReplicaHistory
from aiperf_hpc.trial import Machine, TimePhase


def waiting(*, ranks: int, accelerators: int, seconds: dict[TimePhase, float]) -> ReplicaHistory:
    """Return a replica whose ranks have so many accelerators each."""
    machine = Machine(
        host="n", cpu="c", cores=(0,), memory_bytes=1, accelerators=("a GPU",) * accelerators,
        versions={},
    )  # fmt: skip
    hosts = ("n",) * ranks if ranks > 1 else ()
    started = records.ReplicaStarted(
        replica="r0", pid=1, engine="torch", machine=machine, hosts=hosts
    )
    return ReplicaHistory("r0", all_started=[(0.0, started)], seconds=seconds)


def test_accelerators_wait_for_a_network_each_for_itself() -> None:
    """One waits 30 s of 100, four wait 10 s of 50 each: 70 s of 300."""
    alone = {TimePhase.SEARCH_WAIT: 10.0, TimePhase.BUILD: 20.0, TimePhase.TRAIN: 70.0}
    four = {TimePhase.BUILD: 10.0, TimePhase.TRAIN: 40.0}
    replicas = [
        waiting(ranks=1, accelerators=1, seconds=alone),
        waiting(ranks=4, accelerators=1, seconds=four),
        waiting(ranks=1, accelerators=0, seconds=alone),
        ReplicaHistory("r9"),
    ]
    wanted = NetworkWait(accelerators=5, seconds=70.0, share=70.0 / 300.0)
    assert network_wait(replicas) == wanted
    assert network_wait(replicas[2:]) is None


def test_the_page_says_how_long_accelerators_waited_for_a_network(default_report: Report) -> None:
    wait = NetworkWait(accelerators=1024, seconds=7200.0, share=0.0625)
    page = html.render(default_report.model_copy(update={"network_wait": wait}), [])
    assert (
        "The 1,024 accelerators waited 2 h 00 min 00 s in total for a network to train, 6.2% "
        "of their recorded time."
    ) in page
