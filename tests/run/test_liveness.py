"""One set of constants decides when a process counts as silent, gone or dead."""

from __future__ import annotations

import re
import time
from pathlib import Path

import pytest
from tests.support.clock import START
from tests.support.run_factory import Plan, Primary, write_manifest
from tests.support.source_tree import package_texts

from aiperf_hpc.primary.control.claim import ClaimedError, check_free
from aiperf_hpc.results.views.run_view import RunState, RunView
from aiperf_hpc.run import liveness
from aiperf_hpc.run.history import RunHistory
from aiperf_hpc.run.paths import RunPaths

ONE = Plan(replicas=1)


@pytest.mark.parametrize("beat", [0.5, 10.0, 600.0])
def test_a_primary_doubts_itself_before_others_take_its_run(beat: float) -> None:
    own, silent, gone = (
        limit(beat) for limit in (liveness.own_limit, liveness.silent_limit, liveness.gone_limit)
    )
    assert own <= silent < gone <= liveness.tolerated_limit(beat)


def test_status_and_control_ask_the_same_constants(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = RunPaths(tmp_path)
    write_manifest(paths, ONE)
    with Primary(paths, ONE) as primary:
        primary.start()
    view, history = RunView.read(paths), RunHistory.read(paths)
    monkeypatch.setattr(liveness, "primary_is_gone", lambda start: None)
    monkeypatch.setattr(time, "time", lambda: START + 280.0)
    beat = view.manifest.config.journal.heartbeat_interval_seconds
    assert view.status(START + 280.0).state is RunState.SILENT
    monkeypatch.setattr(liveness, "MISSED_BEATS", 300.0 / beat)
    assert view.status(START + 280.0).state is RunState.RUNNING
    with pytest.raises(ClaimedError, match="until it has been silent for 360 s"):
        check_free(history, beat)


def test_no_other_module_counts_missed_heartbeats() -> None:
    counted = re.compile(r"\* *[\w.]*(?:heartbeat_seconds|\bbeat\b)|heartbeat_seconds *\*")
    found = {name for name, text in package_texts().items() if counted.search(text)}
    assert found == {"src/aiperf_hpc/run/liveness.py", "rules/consistency/replicas.py"}
