"""Telemetry in the journals of the trainer, and of the first rank of another node."""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest
from tests.support.waiting import until

from aiperf_hpc.clock import SYSTEM
from aiperf_hpc.replica.runtime.telemetry import journaled_telemetry, node_telemetry, node_tree
from aiperf_hpc.run.journal import JournalReader
from aiperf_hpc.run.paths import RunPaths
from aiperf_hpc.run.records import AnyEvent


def test_one_process_of_a_node_records_its_telemetry_if_requested(tmp_path: Path) -> None:
    paths, others = RunPaths(tmp_path), list[AnyEvent]()
    with node_telemetry(paths, seconds=0.0, clock=SYSTEM, append=others.append):
        pass
    assert others == []
    first, second = paths.telemetry_journal("r0", 4), paths.telemetry_journal("r0", 5)
    with journaled_telemetry(paths, first, seconds=600.0, clock=SYSTEM):
        until(first.exists)
        with journaled_telemetry(paths, second, seconds=600.0, clock=SYSTEM):
            pass
        with node_telemetry(paths, seconds=600.0, clock=SYSTEM, append=others.append):
            pass
    events = [record.event for record in JournalReader(first).read()]
    assert [event.type for event in events] == ["telemetry_started", "telemetry"]
    assert (second.exists(), others) == (False, [])
    assert list(paths.journals("r0")) == [first]


def test_the_process_tree_of_a_node_starts_at_this_processs_parent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    _, together = node_tree().totals()
    monkeypatch.setattr(psutil.Process, "parent", lambda _: None)
    seconds, alone = node_tree().totals()
    assert 0 < alone < together
    assert seconds > 0.0
