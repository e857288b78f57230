"""Who saw a run, in a line: for the terminal, the service, the report and the ranking."""

from __future__ import annotations

from pathlib import Path

from tests.rules.consistency.test_witness import URL, WitnessedRun

from aiperf_hpc.results.views.run_view import RunView
from aiperf_hpc.results.views.witnesses import witness_line, witnesses_of
from aiperf_hpc.run.records import WitnessState


def line(run: WitnessedRun, *, ended: bool) -> str:
    view = RunView.read(run.paths)
    return witness_line(witnesses_of(view.history), ended=ended)


def test_a_run_that_nobody_saw_is_unwitnessed(tmp_path: Path) -> None:
    run = WitnessedRun(tmp_path)
    run.turn()
    assert line(run, ended=False) == "unwitnessed"
    run.primary.append(WitnessState(url=URL, reachable=False, detail="timed out"))
    assert line(run, ended=False) == f"unwitnessed; {URL} does not respond: timed out"
    run.log.close()


def test_by_whom_since_when_until_when_and_with_which_gap(tmp_path: Path) -> None:
    run = WitnessedRun(tmp_path)
    run.shown_turn()
    run.shown_turn(90.0)
    key = run.log.key.public.fingerprint
    said = (
        f"witnessed by {key} ({URL}) from 2025-06-15T15:07:10Z to 2025-06-15T15:08:40Z, "
        "2 times, longest gap 1 min 30 s"
    )
    assert line(run, ended=False) == said
    run.end()
    assert line(run, ended=True) == f"{said}, not the end"
    run.pass_by(2.0)
    run.show()
    assert line(run, ended=True).endswith("3 times, longest gap 1 min 30 s")
    run.log.close()
