"""What a replica records of where it runs and of the time in which it waited for storage."""

from __future__ import annotations

import argparse
import errno
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.replica.parallel.threads import Table, Threads
from tests.support.clock import START, Clock
from tests.support.nodes import node, rank
from tests.support.run_factory import Plan, Primary, configuration, write_manifest
from tests.support.run_writer import MACHINE
from tests.support.waiting import PATIENCE_SECONDS

from aiperf_hpc.config import RunConfig
from aiperf_hpc.errors import PREFLIGHT_STATUS, UNEXPECTED_STATUS, DeviceLostError, PreflightError
from aiperf_hpc.primary.launchers.base import died
from aiperf_hpc.replica import __main__ as main
from aiperf_hpc.replica.host import Host
from aiperf_hpc.replica.parallel.collectives import ALONE
from aiperf_hpc.replica.parallel.handshake import Ranks
from aiperf_hpc.replica.replica import Replica
from aiperf_hpc.replica.runtime.stopping import StopFlag
from aiperf_hpc.run import records
from aiperf_hpc.run.history import RunHistory
from aiperf_hpc.run.journal import JournalReader, JournalWriter
from aiperf_hpc.run.manifest import RunManifest
from aiperf_hpc.run.paths import FIRST, Identity, RunPaths
from aiperf_hpc.run.storage import BackoffRetry
from aiperf_hpc.trial import DevicePeak, TimePhase

WHY = "cannot write a checkpoint: No space left on device"


class FullHost(Host):
    """A host on a clock of its own, whose storage is full while something is done before a check
    that fails."""

    def __init__(self) -> None:
        super().__init__(1)
        self.clock: Clock = Clock()
        self.own = BackoffRetry(lambda: False, clock=self.clock)
        self.meanwhile: Callable[[], None] = lambda: None

    def connect(self, stop: StopFlag) -> None:
        """Leave this process's signals alone."""

    def patience(self, give_up: Callable[[], bool]) -> BackoffRetry:
        return self.own

    def check(self, manifest: RunManifest) -> None:
        self.fill_the_disk()
        raise PreflightError("node n1: not like the others")

    def fill_the_disk(self) -> None:
        """Wait through three failures: 0.25, 0.5 and 1 s."""
        failures = 3

        def write() -> None:
            nonlocal failures
            if failures:
                failures -= 1
                if failures == 0:
                    self.meanwhile()
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        self.own(write, "a checkpoint")


class Workers:
    """No search workers."""

    def revive(self) -> None:
        """Do nothing."""


def life_on(host: FullHost, folder: Path) -> tuple[Replica, RunPaths]:
    paths, plan = RunPaths(folder), Plan(replicas=1)
    manifest = write_manifest(paths, plan)
    with Primary(paths, plan, host.clock) as primary:
        primary.start()
    return Replica(paths, manifest, Identity("r0", FIRST), host, Ranks(ALONE)), paths


LOST = "PyTorch: CUDA error: an illegal memory access was encountered; this process is done"


class LosingHost(FullHost):
    """A host whose accelerator is lost."""

    def check(self, manifest: RunManifest) -> None:
        raise DeviceLostError(LOST)


def test_a_replica_without_its_device_says_why_and_is_started_again(tmp_path: Path) -> None:
    life, paths = life_on(LosingHost(), tmp_path)
    with pytest.raises(DeviceLostError):
        life.run()
    *_, last = JournalReader(paths.replica_journal("r0")).read()
    assert last.event == records.ReplicaEnded(reason=f"failed: {LOST}")
    assert DeviceLostError.exit_status == UNEXPECTED_STATUS  # That of whatever main() raises.
    assert died(UNEXPECTED_STATUS)


@pytest.mark.parametrize("lost", [True, False])
def test_ranks_that_wait_for_a_lost_device_are_not_spoken_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, lost: bool
) -> None:
    """To announce the end to them would be to wait for them."""
    dismissed: list[Ranks] = []
    monkeypatch.setattr(main, "_dismiss", dismissed.append)
    error = DeviceLostError(LOST) if lost else RuntimeError("a fault")

    def replica(*_: object) -> int:
        raise error

    monkeypatch.setattr(main, "_replica", replica)
    ranks, paths = Ranks(ALONE), RunPaths(tmp_path)
    with pytest.raises(type(error)):
        main._lead(argparse.Namespace(), write_manifest(paths, Plan(replicas=1)), ranks)
    assert dismissed == ([] if lost else [ranks])


PEAK = DevicePeak(
    device="cpu", model="m", threads=1, precision="fp32", rates={"convolution": 1e11}, seconds=4.0
)


@contextmanager
def three_ranks(*texts: str) -> Iterator[Ranks]:
    """Give rank 0 of three ranks; the other two exchange these texts."""
    table = Table(3)
    threads = [
        threading.Thread(target=Ranks(Threads(table, number, 3)).exchange, args=(text,))
        for number, text in enumerate(texts, 1)
    ]
    for thread in threads:
        thread.start()
    yield Ranks(Threads(table, 0, 3))
    for thread in threads:
        thread.join(PATIENCE_SECONDS)
        assert not thread.is_alive()


class MeasuringHost(FullHost):
    """A host whose device has a peak."""

    def peak(self, config: RunConfig, device: int) -> DevicePeak:
        return PEAK


def test_a_replica_tells_what_the_devices_of_all_its_ranks_can_do(tmp_path: Path) -> None:
    host = MeasuringHost()
    _, paths = life_on(host, tmp_path)
    config = configuration({"peaks": {"at_start_seconds": 1.0}})
    manifest = RunManifest.load(paths).model_copy(update={"config": config})
    # Of rank 2 nothing is known.
    with three_ranks(PEAK.model_dump_json(), "") as ranks:
        life = Replica(paths, manifest, Identity("r0", FIRST), host, ranks)
        with JournalWriter(paths.replica_journal("r0"), clock=host.clock) as journal:
            life._measure_peak(journal, 0)
            life._record_other_peaks(journal)
    history = RunHistory.read(paths)
    assert history.replicas["r0"].peaks == {0: PEAK, 1: PEAK}


def test_a_replica_tells_its_clocks_when_it_comes_and_every_hour(tmp_path: Path) -> None:
    host = FullHost()
    life, paths = life_on(host, tmp_path)
    paths.incarnation("r0", FIRST).mkdir(parents=True, exist_ok=True)
    with JournalWriter(paths.replica_journal("r0"), clock=host.clock) as journal:
        life._record_start(journal, "torch", MACHINE)
        for _ in range(3):
            life._beat(journal, Workers())
            host.clock.sleep(1800.0)
    read = [record.event.type for record in JournalReader(paths.replica_journal("r0")).read()]
    kept = [kind for kind in read if kind in ("replica_started", "clocks_read", "heartbeat")]
    assert kept == [
        "replica_started", "clocks_read", "heartbeat", "heartbeat", "clocks_read", "heartbeat",
    ]  # fmt: skip


def test_a_pulse_says_what_is_waited_for_and_afterwards_when_it_was(tmp_path: Path) -> None:
    host = FullHost()
    life, paths = life_on(host, tmp_path)
    with JournalWriter(paths.replica_journal("r0"), clock=host.clock) as journal:
        host.meanwhile = lambda: life._beat(journal, Workers())
        host.fill_the_disk()
        life._beat(journal, Workers())
        life._beat(journal, Workers())
    read = [record.event for record in JournalReader(paths.replica_journal("r0")).read()]
    assert [event.type for event in read] == ["heartbeat", "storage_waited", *["heartbeat"] * 2]
    during, waited, after, _ = read
    assert isinstance(during, records.Heartbeat)
    assert isinstance(after, records.Heartbeat)
    assert (during.storage_waiting, during.storage_wait_seconds) == (WHY, 0.75)
    assert (after.storage_waiting, after.storage_wait_seconds) == ("", 1.75)
    assert waited == records.StorageWaited(started_utc=START, seconds=1.75, reason=WHY)


def test_a_replica_that_ends_before_its_next_pulse_says_it_too(tmp_path: Path) -> None:
    life, paths = life_on(FullHost(), tmp_path)
    assert life.run() == PREFLIGHT_STATUS
    history = RunHistory.read(paths)
    ((who, wait),) = history.storage_waits
    assert (who, wait.started_utc, wait.seconds, wait.reason) == ("r0", START, 1.75, WHY)
    assert history.replicas["r0"].storage_wait_seconds == 1.75


def test_a_replica_tells_what_it_and_its_other_ranks_run_on(tmp_path: Path) -> None:
    host = FullHost()
    _, paths = life_on(host, tmp_path)
    manifest = RunManifest.load(paths)
    others = [rank("n0", None), rank("n1", node())]
    with three_ranks(*(other.model_dump_json() for other in others)) as ranks:
        life = Replica(paths, manifest, Identity("r0", FIRST), host, ranks)
        with JournalWriter(paths.replica_journal("r0"), clock=host.clock) as journal:
            life._describe(journal)
            life._describe_others(journal)
    history = RunHistory.read(paths)
    told = history.replicas["r0"].described
    assert [told[1], told[2]] == others
    assert told[0].node is not None
    (held,) = told[0].node.file_systems
    assert (held.use, held.path) == ("run", str(tmp_path.resolve()))
    assert told[0].process.cores == host.cores


def test_a_run_that_recorded_the_sum_alone_still_has_it(tmp_path: Path) -> None:
    _, paths = life_on(FullHost(), tmp_path)
    with JournalWriter(paths.replica_journal("r0")) as journal:
        journal.append(
            records.Heartbeat(
                phase=TimePhase.TRAIN, cpu_percent=1.0, memory_bytes=1, storage_wait_seconds=33.0
            )
        )
    history = RunHistory.read(paths)
    assert history.replicas["r0"].storage_wait_seconds == 33.0
    assert history.storage_waits == []
