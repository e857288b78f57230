"""What a run shows while it lasts: on a real pseudo-terminal of any width, and in a file."""

from __future__ import annotations

import errno
import io
import os
import re
import signal
import threading
import unicodedata
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

import pytest
from tests.support.clock import START
from tests.support.run_factory import (
    Plan,
    Primary,
    Worker,
    configuration,
    write_manifest,
    write_run,
)
from tests.support.scripted_launcher import DONE, RUNNING, ScriptedLauncher
from tests.support.terminal import Terminal
from tests.support.waiting import until

from aiperf_hpc.cli import control, main
from aiperf_hpc.cli.primary import finish
from aiperf_hpc.host.processes import Interrupts
from aiperf_hpc.primary.control.context import PrimaryContext, Timing
from aiperf_hpc.primary.control.controller import Controller
from aiperf_hpc.primary.launchers.base import ReplicaState
from aiperf_hpc.results.terminal import progress as progress_module
from aiperf_hpc.results.terminal.progress import ProgressDisplay
from aiperf_hpc.results.terminal.status_line import status_line
from aiperf_hpc.results.views.cached_view import CachedView
from aiperf_hpc.results.views.replica_status import StorageStatus
from aiperf_hpc.results.views.run_view import RunState, RunView
from aiperf_hpc.run import records, storage
from aiperf_hpc.run.journal import JournalWriter
from aiperf_hpc.run.manifest import RunManifest
from aiperf_hpc.run.paths import RunPaths
from aiperf_hpc.run.search_digest import DigestWriter
from aiperf_hpc.run.storage import BackoffRetry
from aiperf_hpc.trial import JobPhase, TimePhase

KILLED = ReplicaState(JobPhase.FAILED, "n1", "CANCELLED")


@pytest.fixture
def terminal() -> Iterator[Terminal]:
    terminal = Terminal(80)
    yield terminal
    terminal.close()


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress_module, "LINE_SECONDS", 0.0)
    monkeypatch.setattr(progress_module, "LOG_SECONDS", 0.0)
    monkeypatch.setattr(progress_module, "ALERT_SECONDS", 0.01)


def columns_of(text: str) -> int:
    return sum(2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in text)


@pytest.fixture
def at_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Show runs as they are at their last record, however long ago that is."""
    status = RunView.status
    monkeypatch.setattr(RunView, "status", lambda view: status(view, view.until))


def shown(view: RunView, terminal: Terminal) -> ProgressDisplay:
    return ProgressDisplay(CachedView(view, fresh=0.0), terminal.output)


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> RunPaths:
    """A run of many replicas that is under way."""
    plan = Plan(replicas=7, trials=5, ended=False)
    return write_run(tmp_path_factory.mktemp("large"), plan)


@pytest.mark.usefixtures("at_its_end")
def test_nothing_is_wider_than_the_window_at_any_width(large: RunPaths, terminal: Terminal) -> None:
    progress = shown(RunView(large), terminal)
    for columns in (*range(200, 0, -1), 80):
        terminal.resize(columns)
        progress.tick()
        assert max(map(columns_of, terminal.new()), default=0) < columns
    rows = terminal.rows()
    assert [row for row in rows if "under way" in row or " left" in row][-1] in rows[-9:]
    progress.end()
    assert not any(" left" in row for row in terminal.rows()[-9:])


@pytest.mark.usefixtures("at_its_end")
def test_what_changes_takes_the_place_of_what_was_there_and_what_ended_stays_above(
    large: RunPaths, terminal: Terminal
) -> None:
    view = RunView(large)
    progress = shown(view, terminal)
    for _ in range(40):
        progress.tick()
    rows = terminal.rows()
    times = [number for number, row in enumerate(rows) if " min left" in row]
    assert times == [len(rows) - 9]  # One, of the block at the end: two lines and seven trials.
    names = [row.split()[0] for row in rows[times[0] + 2 :]]
    assert names == [trial.id for trial in view.history.under_way]
    assert all(re.search(r"━ +epoch 4 of 60  +[0-9.]+%  batch 64", row) for row in rows[-7:])
    above = [row.split()[0] for row in rows[: times[0]] if row.startswith("  r")]
    assert above == [trial.id for trial in view.history.ended]
    assert len(rows[: times[0]]) == len(above), "one line each, though the window is narrow"
    for row, trial in zip(rows, view.history.ended, strict=False):
        assert row.startswith(f"  {trial.id}  {trial.state}")
        assert (" epochs  " in row) if trial.best else (trial.reason[:20] in row)


@pytest.mark.usefixtures("at_its_end")
def test_an_ascii_terminal_without_colors_gets_neither(
    large: RunPaths, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    terminal = Terminal(100, encoding="ascii")
    progress = shown(RunView(large), terminal)
    progress.tick()
    assert terminal.rows()[-1].split()[1].strip("-") == ""
    assert not re.search(r"\x1b\[[0-9;]*[34][0-9]", terminal.raw)
    progress.end()
    terminal.close()


@pytest.mark.usefixtures("at_its_end")
def test_a_dumb_terminal_is_written_to_like_a_file(
    large: RunPaths, terminal: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TERM", "dumb")
    progress = shown(RunView(large), terminal)
    for _ in range(3):
        progress.tick()
    assert "\x1b[" not in terminal.raw
    assert "trials" in terminal.text


@pytest.mark.usefixtures("at_its_end")
def test_no_more_than_one_line_is_said_at_a_time_and_the_rest_is_counted(
    large: RunPaths, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress_module, "MOST_QUEUED", 12)
    monkeypatch.setattr(progress_module, "LAST_LINES", 5)
    monkeypatch.setattr(progress_module, "LOG_SECONDS", 3600.0)
    output, view = io.StringIO(), RunView(large)
    progress = ProgressDisplay(CachedView(view, fresh=0.0), output)
    for said in range(1, 5):
        progress.tick()
        assert output.getvalue().count("\n") == said
    left_out = len(view.history.ended) - 12
    lines = output.getvalue().splitlines()
    assert "trials" in lines[0]
    assert lines[1] == f"  {left_out} lines omitted: one per second is shown"
    progress.end()
    lines = output.getvalue().splitlines()[5:]
    assert lines[0] == "  4 lines omitted"
    assert [line.split()[0] for line in lines[1:]] == [t.id for t in view.history.ended[-5:]]


@pytest.mark.usefixtures("at_its_end")
@pytest.mark.parametrize("columns", [200, 80, 40, 10])
def test_what_matters_most_is_kept(large: RunPaths, terminal: Terminal, columns: int) -> None:
    terminal.resize(columns)
    view = RunView(large)
    shown(view, terminal).tick()
    time, score = terminal.rows()[-9:-7]
    whole = status_line(view.status())
    now, ops = whole.split(" of ")[0], re.findall(r"[0-9.]+ [kMGTPE]?OPS", whole)[0]
    accuracy = re.findall(r"best accuracy ([0-9.]+%)", whole)[0]
    assert time.startswith(now[: columns - 1])
    assert ("━" in time) == (columns >= 80)
    assert score.startswith(ops[: columns - 1])
    assert (accuracy in score) == (columns >= 40)
    assert ("r0 train" in score) == (columns >= 80)
    assert ("r0 train r1 train r2 silent r3 silent +3" in score) == (columns == 200)


def test_a_message_of_wide_characters_is_cut_too(tmp_path: Path, terminal: Terminal) -> None:
    paths = write_run(tmp_path / "计算机性能\n测试", Plan(replicas=1, ended=False))
    paths.replica_journal("r7").mkdir(parents=True)
    progress = shown(RunView(paths), terminal)
    for columns in range(250, 0, -7):
        terminal.resize(columns)
        progress.tick()
        assert max(map(columns_of, terminal.new()), default=0) < columns


@pytest.mark.usefixtures("at_its_end")
def test_a_terminal_that_does_not_know_its_size_is_taken_for_one_of_80(
    large: RunPaths, terminal: Terminal
) -> None:
    terminal.resize(0)
    shown(RunView(large), terminal).tick()
    assert 60 < max(map(columns_of, terminal.new())) < 80


def test_an_unforeseen_error_of_the_display_is_said_once_and_the_display_goes_on(
    large: RunPaths, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    faults, by_state, output = [1, 2, 3], RunView._by_state, io.StringIO()

    def odd(view: RunView) -> dict[str, int]:
        if faults:
            faults.pop()
            raise ZeroDivisionError("a fault")
        return by_state(view)

    monkeypatch.setattr(RunView, "_by_state", odd)
    view = RunView(large)
    progress = ProgressDisplay(CachedView(view, fresh=0.0), output)
    for _ in range(3):
        progress.tick()
    said = capsys.readouterr().err
    line = "progress cannot be shown: unexpected ZeroDivisionError: a fault; the run continues"
    assert said.count(f"aiperf: {line}\n") == 1
    assert "Traceback" in said
    assert output.getvalue() == ""
    progress.tick()
    assert "trials" in output.getvalue()


def run_of(tmp_path: Path, replicas: int) -> RunPaths:
    paths = RunPaths(tmp_path)
    manifest = write_manifest(paths, Plan(replicas=replicas))
    manifest.model_copy(update={"hours": 1.0}).save(paths)
    return paths


def conducted(
    paths: RunPaths,
    launcher: ScriptedLauncher,
    output: io.TextIOBase,
    *,
    watch: Callable[[], None] = lambda: None,
    sync: storage.Sync = storage.to_stable_storage,
) -> RunView:
    """Conduct a run as the command line does, until the launcher says that it is over."""
    view = RunView(paths)
    progress = ProgressDisplay(CachedView(view), output)  # type: ignore[arg-type]
    interrupts = Interrupts()
    patience = BackoffRetry(interrupts.at_once)
    with (
        JournalWriter(paths.primary_journal, retry=patience, sync=sync) as journal,
        JournalWriter(paths.digest) as digest,
        progress.alert(interrupts, patience),
    ):
        context = PrimaryContext(
            manifest=RunManifest.load(paths),
            journal=journal,
            history=view.history,
            digest=DigestWriter(view.history, digest),
            retry=patience,
        )
        timing = Timing(poll=0.01, look=0.01)
        controller = Controller(
            context, launcher, timing=timing, interrupts=interrupts, say=progress.say
        )
        controller.run(watch)
    progress.end()
    view.refresh()
    return view


FIRST = "stopping: finishing the steps, then scoring; Ctrl-C again stops immediately"
SECOND = "stopping immediately: the replicas are killed"


@pytest.mark.parametrize("tty", [True, False])
def test_ctrl_c_is_answered_at_once_and_who_is_waited_for_is_named(
    tmp_path: Path, terminal: Terminal, tty: bool
) -> None:
    told = ScriptedLauncher({"r0": RUNNING, "r1": RUNNING})
    plain = io.StringIO()
    sent = 0

    def text() -> str:
        return terminal.text if tty else plain.getvalue()

    def interrupt() -> None:
        nonlocal sent
        sent += 1
        os.kill(os.getpid(), signal.SIGINT)

    def watch() -> None:
        if sent == 0:
            interrupt()
        # The replicas go on until the user was told, both times.
        elif sent == 1 and FIRST in text() and "waiting for r0, r1" in text():
            told.left = [{"r0": DONE, "r1": RUNNING}]
            interrupt()
        elif SECOND in text() and "killing r1" in text():
            told.left = [{"r0": DONE, "r1": KILLED}]

    view = conducted(run_of(tmp_path, 2), told, terminal.output if tty else plain, watch=watch)
    assert view.status().reason == "interrupted by the user"
    assert text().count(FIRST) == 1
    assert text().count(SECOND) == 1
    assert told.calls[:2] == ["stop", "kill"]


class Full:
    """Stable storage that is full until the user was told something."""

    def __init__(self, told: Callable[[], bool]) -> None:
        self.told = told
        self.failures = 0
        self.full = False

    def __call__(self, file: int) -> None:
        if self.full and not self.told():
            self.failures += 1
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self.full = False
        storage.to_stable_storage(file)


@pytest.mark.parametrize("tty", [True, False])
def test_a_primary_that_waits_for_storage_says_so_meanwhile_and_records_it_afterwards(
    tmp_path: Path, terminal: Terminal, tty: bool
) -> None:
    terminal.resize(1_000)  # So that nothing is folded.
    paths, plain = run_of(tmp_path, 1), io.StringIO()
    why = f"cannot write the journal {paths.primary_journal}: No space left on device"

    def text() -> str:
        return (terminal.text if tty else plain.getvalue()).replace("\r\n", "\n")

    full = Full(lambda: f"waiting for storage: {why}\n" in text())
    again = "storage is available again after"
    told = ScriptedLauncher({"r0": RUNNING})

    def watch() -> None:
        if not full.failures:
            full.full = True
            told.left = [{"r0": replace(RUNNING, detail="a change, which is recorded")}]
        elif again in text():
            told.left = [{"r0": DONE}]

    output = terminal.output if tty else plain
    view = conducted(paths, told, output, watch=watch, sync=full)
    assert full.failures > 0
    ((who, wait),) = view.history.storage_waits
    assert (who, wait.reason) == ("primary", why)
    assert wait.seconds >= storage.FIRST_PAUSE * 0.9
    (said,) = view.status().storage
    assert (said.component, said.seconds, said.count) == ("primary", wait.seconds, 1)
    assert 0.0 <= (said.last_started_seconds or -1.0) < view.status().elapsed_seconds


def test_ctrl_c_is_answered_while_the_primary_waits_for_storage(tmp_path: Path) -> None:
    output, told = io.StringIO(), ScriptedLauncher({"r0": RUNNING})
    full = Full(lambda: FIRST in output.getvalue())

    def sync(file: int) -> None:
        if full.full and full.failures == 0:
            os.kill(os.getpid(), signal.SIGINT)
        full(file)

    def watch() -> None:
        if not full.failures:
            full.full = True
            told.left = [{"r0": replace(RUNNING, detail="a change, which is recorded")}]
        elif "stop" in told.calls:
            told.left = [{"r0": DONE}]

    view = conducted(run_of(tmp_path, 1), told, output, watch=watch, sync=sync)
    assert full.failures > 0
    assert view.status().reason == "interrupted by the user"


def test_a_replica_that_waits_for_storage_is_shown_while_it_does_and_afterwards(
    tmp_path: Path,
) -> None:
    plan = Plan(replicas=1, ended=False)
    paths = write_run(tmp_path, plan)
    view, output = RunView(paths), io.StringIO()
    progress = ProgressDisplay(CachedView(view, fresh=0.0), output)
    why = "cannot write a checkpoint: No space left on device"
    beat = records.Heartbeat(phase=TimePhase.STORE, cpu_percent=1.0, memory_bytes=1)
    with Worker(paths, "r0", configuration()) as worker:
        worker.clock.now = view.until + 600.0
        worker.write(beat.model_copy(update={"storage_wait_seconds": 20.0, "storage_waiting": why}))
        progress.tick()
        progress.tick()
        waits = f"  r0 waits for storage: {why}\n"
        assert output.getvalue().count(waits) == 1
        assert "r0: waiting for storage  " in output.getvalue()
        assert view.status().storage == (
            StorageStatus(
                component="r0",
                seconds=20.0,
                count=1,
                last_started_seconds=None,
                last_reason=why,
                waiting=True,
            ),
        )
        waited = records.StorageWaited(started_utc=START + 300.0, seconds=33.0, reason=why)
        worker.write(waited, after=13.0)
        worker.write(beat.model_copy(update={"storage_wait_seconds": 33.0}))
        output.truncate(0)
        progress.tick()
        progress.tick()
    assert output.getvalue().count(f"  r0 waited 33.0 s for storage: {why}\n") == 1
    assert "waiting" not in output.getvalue()
    (said,) = view.status().storage
    assert (said.seconds, said.last_started_seconds, said.waiting) == (33.0, 300.0, False)


def test_a_run_that_stops_names_who_goes_on(tmp_path: Path) -> None:
    plan = Plan(replicas=5, trials=5, ended=False)
    paths = write_run(tmp_path, plan)
    with Primary(paths, plan) as primary:
        primary.clock.now = RunView(paths).until + 900.0
        primary.write(records.StopRequested(reason="enough"))
        primary.write(records.ReplicaExited(replica="r0", status=0))
    view = RunView.read(paths)
    status = view.status(primary.clock.now)
    assert status.state is RunState.STOPPING
    assert status_line(status).startswith(
        "stopping, waiting for r1, r2, r3 and 1 more  0.0 s of 15 min"
    )
    assert status_line(status, 39).startswith("stopping, 4 left  0.0 s ")


def test_aiperf_stop_says_what_it_waits_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan, output = Plan(replicas=2, trials=5, ended=False), io.StringIO()
    paths = write_run(tmp_path, plan)
    monkeypatch.setattr("sys.stderr", output)
    monkeypatch.setattr(control, "finish", lambda view, as_json: 0)

    def end() -> None:
        until(lambda: "\nwaiting for r0, r1\n" in output.getvalue())
        with Primary(paths, plan) as primary:
            primary.end("asked to")

    thread = threading.Thread(target=end)
    thread.start()
    assert main(["stop", str(tmp_path)]) == 0
    thread.join()
    assert output.getvalue().startswith(
        "stopping: finishing the current steps, then computing the score\n"
    )
    assert paths.stop_request.exists()


def test_a_replica_that_ended_in_order_is_no_trouble_though_its_primary_never_saw_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = Plan(replicas=1, trials=5)
    paths = write_run(tmp_path, plan)
    with Primary(paths, plan) as primary:
        primary.write(records.ReplicaLaunched(replica="r0", job="200"))
        primary.write(records.JobState(replica="r0", phase=JobPhase.RUNNING))
    monkeypatch.setattr(
        "aiperf_hpc.results.report.writer.write_report", lambda view, key: paths.report_html
    )
    assert finish(RunView(paths), as_json=False) == 0
    assert capsys.readouterr().err == ""


def test_a_reader_that_went_away_does_not_end_the_run(large: RunPaths) -> None:
    class Gone(io.StringIO):
        writes = 0

        def write(self, text: str) -> NoReturn:
            self.writes += 1
            raise BrokenPipeError

    gone = Gone()
    progress = ProgressDisplay(CachedView(RunView(large), fresh=0.0), gone)
    progress.tick()
    progress.say("a line")
    progress.end()
    assert gone.writes == 1
