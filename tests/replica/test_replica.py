"""Records of an attempt about its host, its ranks, its clocks and waits for storage."""

from __future__ import annotations

import argparse
import errno
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from tests.replica.parallel.threads import Table, Threads, run_ranks
from tests.support.clock import START, Clock
from tests.support.nodes import node, rank
from tests.support.run_factory import Plan, Primary, write_manifest
from tests.support.run_writer import MACHINE

from aiperf_hpc.config import RunConfig
from aiperf_hpc.errors import PREFLIGHT_STATUS, UNEXPECTED_STATUS, DeviceLostError, PreflightError
from aiperf_hpc.integrity.release import package_digest
from aiperf_hpc.primary.launchers.base import died
from aiperf_hpc.replica import __main__ as main
from aiperf_hpc.replica.host import Host
from aiperf_hpc.replica.node_check import imported_modules
from aiperf_hpc.replica.parallel.collectives import ALONE
from aiperf_hpc.replica.parallel.handshake import Ranks
from aiperf_hpc.replica.replica import Replica
from aiperf_hpc.replica.runtime.stopping import StopFlag
from aiperf_hpc.run import records
from aiperf_hpc.run.history import ReplicaHistory, RunHistory
from aiperf_hpc.run.journal import JournalReader, JournalWriter
from aiperf_hpc.run.manifest import RunManifest
from aiperf_hpc.run.paths import FIRST, Identity, RunPaths
from aiperf_hpc.run.storage import BackoffRetry
from aiperf_hpc.trial import DevicePeak, TimePhase

WHY = "cannot write a checkpoint: No space left on device"


class FullHost(Host):
    """A host on a simulated clock, whose storage is full for a while before a check that fails."""

    def __init__(self) -> None:
        super().__init__(1)
        self.clock: Clock = Clock()
        self.own = BackoffRetry(lambda: False, clock=self.clock)
        self.meanwhile: Callable[[], None] = lambda: None

    def connect(self, stop: StopFlag) -> None:
        """Install no signal handlers."""

    def patience(self, give_up: Callable[[], bool]) -> BackoffRetry:
        return self.own

    def check(self, manifest: RunManifest) -> None:
        self.fill_the_disk()
        raise PreflightError("node n1 differs")

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


@dataclass
class Attempt:
    """The first attempt of the only replica of a run, and its journal."""

    host: FullHost
    folder: Path
    ranks: Ranks = field(default_factory=lambda: Ranks(ALONE))
    settings: Mapping[str, object] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.paths, plan = RunPaths(self.folder), Plan(replicas=1, config=self.settings)
        manifest = write_manifest(self.paths, plan)
        with Primary(self.paths, plan, self.host.clock) as primary:
            primary.start()
        self.replica = Replica(self.paths, manifest, Identity("r0", FIRST), self.host, self.ranks)

    def journal(self) -> JournalWriter:
        return JournalWriter(self.paths.replica_journal("r0"), clock=self.host.clock)

    @property
    def events(self) -> list[records.AnyEvent]:
        """The events of its journal."""
        return [record.event for record in JournalReader(self.paths.replica_journal("r0")).read()]

    @property
    def recorded(self) -> ReplicaHistory:
        """The replica's history."""
        return RunHistory.read(self.paths).replicas["r0"]


LOST = "PyTorch: CUDA error: an illegal memory access was encountered; this process is done"


class LosingHost(FullHost):
    """A host whose accelerator is lost."""

    def check(self, manifest: RunManifest) -> None:
        raise DeviceLostError(LOST)


def test_an_attempt_without_its_device_records_the_reason_and_exits_for_a_restart(
    tmp_path: Path,
) -> None:
    attempt = Attempt(LosingHost(), tmp_path)
    with pytest.raises(DeviceLostError):
        attempt.replica.run()
    assert attempt.events[-1] == records.ReplicaEnded(reason=f"failed: {LOST}")
    assert DeviceLostError.exit_status == UNEXPECTED_STATUS  # The status of any error in main().
    assert died(UNEXPECTED_STATUS)


@pytest.mark.parametrize("lost", [True, False])
def test_no_command_is_announced_to_ranks_that_wait_for_a_lost_device(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, lost: bool
) -> None:
    """The announcement would wait for them."""
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


class MeasuringHost(FullHost):
    """A host whose device has a peak."""

    def peak(self, config: RunConfig, device: int) -> DevicePeak:
        return PEAK


def test_modules_descriptions_and_peaks_of_all_ranks_are_recorded(tmp_path: Path) -> None:
    """Rank 2 has no known peak."""
    described, table = [rank("n0", None), rank("n1", node())], Table(3)
    settings = {"peaks": {"at_start_seconds": 1.0}}
    attempt = Attempt(MeasuringHost(), tmp_path, Ranks(Threads(table, 0, 3)), settings)

    def run(number: int) -> None:
        if number == 0:
            with attempt.journal() as journal:
                attempt.replica._measure_peak(journal, 0)
                attempt.replica._describe(journal)
                before = attempt.replica._record_modules(journal)
                assert attempt.replica._record_modules(journal, before) == before
                attempt.replica._record_other_ranks(journal)
        else:
            other = Ranks(Threads(table, number, 3))
            other.exchange(imported_modules(number).model_dump_json())
            other.exchange(described[number - 1].model_dump_json())
            other.exchange(PEAK.model_dump_json() if number == 1 else "")

    run_ranks(run, range(3))
    found = attempt.recorded
    assert found.peaks == {0: PEAK, 1: PEAK}
    modules = found.modules[FIRST]
    assert {number: len(own) for number, own in modules.items()} == {0: 1, 1: 1, 2: 1}
    assert modules[2][0].package_sha256 == package_digest()
    assert [found.described[1], found.described[2]] == described
    own = found.described[0]
    assert own.node is not None
    (file_system,) = own.node.file_systems
    assert (file_system.use, file_system.path) == ("run", str(tmp_path.resolve()))
    assert own.process.cores == attempt.host.cores


def test_clocks_are_recorded_at_the_start_and_every_hour(tmp_path: Path) -> None:
    attempt = Attempt(FullHost(), tmp_path)
    attempt.paths.incarnation("r0", FIRST).mkdir(parents=True, exist_ok=True)
    with attempt.journal() as journal:
        attempt.replica._record_start(journal, "torch", MACHINE)
        for _ in range(3):
            attempt.replica._beat(journal, Workers())
            attempt.host.clock.sleep(1800.0)
    recorded = [event.type for event in attempt.events]
    kept = [kind for kind in recorded if kind in ("replica_started", "clocks_read", "heartbeat")]
    assert kept == [
        "replica_started", "clocks_read", "heartbeat", "heartbeat", "clocks_read", "heartbeat",
    ]  # fmt: skip


def test_heartbeats_report_a_wait_for_storage_which_is_recorded_afterwards(tmp_path: Path) -> None:
    attempt = Attempt(FullHost(), tmp_path)
    with attempt.journal() as journal:
        attempt.host.meanwhile = lambda: attempt.replica._beat(journal, Workers())
        attempt.host.fill_the_disk()
        attempt.replica._beat(journal, Workers())
        attempt.replica._beat(journal, Workers())
    kinds = [event.type for event in attempt.events]
    assert kinds == ["heartbeat", "storage_waited", "heartbeat", "heartbeat"]
    during, waited, after, _ = attempt.events
    assert isinstance(during, records.Heartbeat)
    assert isinstance(after, records.Heartbeat)
    assert (during.storage_waiting, during.storage_wait_seconds) == (WHY, 0.75)
    assert (after.storage_waiting, after.storage_wait_seconds) == ("", 1.75)
    assert waited == records.StorageWaited(started_utc=START, seconds=1.75, reason=WHY)


def test_an_attempt_that_ends_before_its_next_heartbeat_records_its_waits(tmp_path: Path) -> None:
    attempt = Attempt(FullHost(), tmp_path)
    assert attempt.replica.run() == PREFLIGHT_STATUS
    ((who, wait),) = RunHistory.read(attempt.paths).storage_waits
    assert (who, wait.started_utc, wait.seconds, wait.reason) == ("r0", START, 1.75, WHY)
    assert attempt.recorded.storage_wait_seconds == 1.75


def test_a_run_that_recorded_only_the_sum_of_waits_has_it(tmp_path: Path) -> None:
    attempt = Attempt(FullHost(), tmp_path)
    beat = records.Heartbeat(
        phase=TimePhase.TRAIN, cpu_percent=1.0, memory_bytes=1, storage_wait_seconds=33.0
    )
    with attempt.journal() as journal:
        journal.append(beat)
    assert attempt.recorded.storage_wait_seconds == 33.0
    assert RunHistory.read(attempt.paths).storage_waits == []
