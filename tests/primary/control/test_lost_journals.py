"""A journal that is lost is recorded by one primary."""

from __future__ import annotations

import shutil
from pathlib import Path

from tests.primary.control.test_controller import replica_says, run
from tests.support.told_launcher import DONE, RUNNING, Told

from aiperf_hpc.run import records
from aiperf_hpc.run.paths import RunPaths


def test_a_lost_journal_is_not_recorded_again_by_later_primaries(tmp_path: Path) -> None:
    replica_says(tmp_path, "SIGTERM")
    folder = RunPaths(tmp_path).replica("r0")
    for _ in range(3):
        told = Told(*[{"r0": RUNNING}] * 3, {"r0": DONE})
        _, events = run(
            tmp_path,
            told,
            watch=lambda: shutil.rmtree(folder, ignore_errors=True),
            digest_seconds=0.01,
        )
    (lost,) = (each for each in events if isinstance(each, records.FileProblem))
    assert lost.file == "replicas/r0/0.0/journal.jsonl"
