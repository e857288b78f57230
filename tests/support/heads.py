"""A short run whose journal digests are recorded while it is written."""

from __future__ import annotations

from pathlib import Path

from tests.support.clock import START, Clock
from tests.support.present import present
from tests.support.run_factory import Plan, write_manifest
from tests.support.run_writer import progress, replica_started, run_ended, run_started

from aiperf_hpc.primary.control.journal_digests import JournalDigests
from aiperf_hpc.run import records
from aiperf_hpc.run.history import RunHistory
from aiperf_hpc.run.journal import JournalWriter
from aiperf_hpc.run.journal_digest import publish, published
from aiperf_hpc.run.paths import RunPaths
from aiperf_hpc.run.storage import no_retry

SECONDS = 30.0
"""Between two heads."""


class HeadedRun:
    """A primary and two replicas that write in turn, on one clock."""

    def __init__(self, root: Path, clock: Clock | None = None) -> None:
        self.paths = RunPaths(root)
        write_manifest(self.paths, Plan())
        self.clock = clock or Clock()
        self.primary = self.journal(self.paths.primary_journal)
        self.replicas = {n: self.journal(self.paths.replica_journal(n)) for n in ("r0", "r1")}
        self.history = RunHistory(self.paths)
        self.primary.append(run_started())
        for name, journal in self.replicas.items():
            journal.append(replica_started(name))
        self.take_in_hand()

    def journal(self, path: Path) -> JournalWriter:
        return JournalWriter(path, clock=self.clock)

    def take_in_hand(self) -> None:
        """Let another primary take the heads from now on."""
        own = self.journal(self.paths.journal_digests)
        self.taker = JournalDigests(self.history, self.primary, own, seconds=SECONDS)

    def heads(self) -> records.DigestsRecorded:
        self.history.refresh()
        return self.taker.take(self.clock.monotonic())

    def turn(self, seconds: float = SECONDS) -> None:
        """Let time pass, in which each replica trains and sees the primary's head."""
        self.clock.advance(seconds)
        for journal in self.replicas.values():
            journal.append(progress("t1", train=10))
        self.primary.append(self.heads())
        self.taker.publish(no_retry)
        digest = present(published(self.paths))
        for journal in self.replicas.values():
            journal.append(records.PrimaryDigestSeen(digest=digest))

    def end(self) -> None:
        self.clock.advance(1.0)
        for journal in self.replicas.values():
            journal.append(records.ReplicaEnded(reason="asked to stop"))
        self.clock.advance(1.0)
        self.primary.append_all([self.heads(), run_ended()])


def headed_run(root: Path) -> RunPaths:
    """Write a run that has ended, and return where it is."""
    run = HeadedRun(root)
    for _ in range(4):
        run.turn()
    run.end()
    return run.paths


__all__ = ["SECONDS", "START", "HeadedRun", "headed_run", "publish"]
