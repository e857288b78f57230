"""The end of a run whose replicas failed."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.support.run_factory import Plan, write_manifest
from tests.support.run_writer import (
    RunWriter,
    replica_started,
    run_ended,
    run_started,
    trial_ended,
    trial_started,
)

from aiperf_hpc.cli import main
from aiperf_hpc.cli.primary import say_score, status_of
from aiperf_hpc.results.views.run_view import RunView
from aiperf_hpc.run import records
from aiperf_hpc.trial import JobPhase, TrialState

ABORTED = """\
--------------------------------------------------------------------------
It looks like MPI runtime init failed for some reason; your parallel process is
*** An error occurred in MPI_Init_thread on a NULL communicator
--------------------------------------------------------------------------

"""


def failed_run(root: Path, replicas: int) -> RunWriter:
    """Write a run whose replicas have failed."""
    run = RunWriter(root)
    write_manifest(run.paths, Plan(replicas=replicas))
    run.primary(0, run_started())
    for number in range(replicas):
        launched = records.ReplicaLaunched(replica=f"r{number}", job=f"25_{number}")
        failed = records.JobState(
            replica=f"r{number}", phase=JobPhase.FAILED, node="n1", detail="FAILED: exit status 14"
        )
        run.primary(5, launched, failed)
    run.primary(6, run_ended())
    return run


@pytest.mark.parametrize(
    ("output", "words"),
    [
        (None, "it wrote no record: can its node access {root}?"),
        (b"", "it wrote no record: can its node access {root}?"),
        (
            ABORTED.encode(),
            "its output is in {log}, and ends with '*** An error occurred in MPI_Init_thread on a "
            "NULL communicator'",
        ),
        (b"\x1b[31mr\xff" + b"x" * 1000, "its output is in {log}, and ends with '" + "x" * 500),
    ],
)
def test_the_last_words_of_a_replica_without_a_record(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], output: bytes | None, words: str
) -> None:
    run = failed_run(tmp_path / "run", 1)
    log = run.paths.replica_log("r0")
    if output is not None:
        log.parent.mkdir(parents=True, exist_ok=True)
        log.write_bytes(output)
    say_score(RunView.read(run.paths), as_json=True)
    said = capsys.readouterr().err
    expected = words.format(root=run.paths.root, log=log)
    assert f"r0 (job 25_0 on n1) failed: FAILED: exit status 14; {expected}" in said
    assert len(said.splitlines()) == 1


def test_the_end_of_a_run_fits_a_terminal_with_the_score_last(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.chdir(tmp_path)
    run = failed_run(tmp_path / "runs" / "20250615-150640-quickstart-f67e", 8)
    view = RunView.read(run.paths)
    say_score(view, as_json=False)
    said = capsys.readouterr()
    shown = said.out.splitlines()
    assert max(map(len, shown)) <= 80
    assert shown[-1].startswith("Score  ")
    whole = " ".join(said.out.split())
    report = f"runs/{run.paths.root.name}/report/report.html"
    assert f"Report {report} " in whole
    rules = list(dict.fromkeys(v.rule for v in view.violations()))
    assert f"{len(rules)} rules violated ({', '.join(rules)}); " in whole
    assert f"`aiperf report {run.paths.root.name}` lists the reasons" in whole
    failures = said.err.splitlines()
    assert failures[-1] == (
        f"aiperf: 6 more replicas failed; `aiperf logs {run.paths.root.name}` shows why"
    )
    assert len(shown) + sum(-(-len(line) // 80) for line in failures) <= 24
    assert main(["report", run.paths.root.name]) == 0
    listed = capsys.readouterr().out.splitlines()
    assert max(map(len, listed)) <= 80
    assert len(listed) < 24  # With the prompt, a window of 80x24.
    assert listed[-1].startswith("Score  ")
    firsts = {v.rule: v.reason for v in reversed(view.violations())}
    folded = " ".join(" ".join(listed).split())
    assert all(f"{rule} {reason}" in folded for rule, reason in firsts.items())
    every = (run.paths.report / "result.txt").read_text("utf-8")
    assert all(each.reason in every for each in view.violations())


@pytest.mark.parametrize(
    ("states", "status"),
    [
        ((), 0),
        ((TrialState.FAILED, TrialState.COMPLETED), 0),
        ((TrialState.FAILED, TrialState.FAILED), 1),
    ],
    ids=["none", "one of two", "all"],
)
def test_all_trials_failed(tmp_path: Path, states: tuple[TrialState, ...], status: int) -> None:
    run = RunWriter(tmp_path / "run")
    write_manifest(run.paths, Plan(replicas=1))
    run.primary(0, run_started())
    run.replica(1, replica_started())
    for number, state in enumerate(states, 2):
        trial = f"t{number}"
        run.replica(number, trial_started(trial), trial_ended(trial, state))
    run.replica(8, records.ReplicaEnded(reason=records.TRAININGS_DONE))
    run.primary(9, run_ended())
    assert status_of(RunView.read(run.paths)) == status
