"""One process at a time controls a run, however many claim it."""

from __future__ import annotations

import errno
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.support.clock import Clock
from tests.support.present import present
from tests.support.rules import verify
from tests.support.run_factory import configuration
from tests.support.run_manifest import run_manifest
from tests.support.run_writer import MACHINE, RunWriter, replica_started, run_ended, run_started

from aiperf_hpc import cli
from aiperf_hpc.cli import control, primary
from aiperf_hpc.errors import RunDirectoryError, UsageError
from aiperf_hpc.host.processes import ProcessId, this_machine, this_process
from aiperf_hpc.primary.control import claim as claims
from aiperf_hpc.primary.control.claim import Claimed, ClaimedError, Holder, LostClaimError, take
from aiperf_hpc.primary.control.resume import all_have_ended
from aiperf_hpc.results.views.run_view import RunView
from aiperf_hpc.run.history import RunHistory
from aiperf_hpc.run.journal import JournalReader, JournalWriter
from aiperf_hpc.run.manifest import RunManifest
from aiperf_hpc.run.paths import RunPaths
from aiperf_hpc.run.records import PrimaryHeartbeat
from aiperf_hpc.run.storage import no_retry

RACERS, ROUNDS = 8, 25
BEAT = 1.0
Says = dict[str, object]


def history_of(folder: Path) -> RunHistory:
    return RunHistory(RunPaths(folder))


def claimed_by(folder: Path, number: int = 1, **changes: object) -> None:
    """Write the claim of a process that is gone, but for what is said of it."""
    me = this_process()
    holder = Holder(
        command="resume",
        host="elsewhere",
        process=me.model_copy(update={"started": me.started - 1}),
        utc=time.time(),
    ).model_copy(update=changes)
    path = RunPaths(folder).claims / f"{number:04d}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(holder.model_dump_json())


ELSEWHERE = ProcessId(machine="another", pid=1, started=1)


class Racers:
    """Processes that are told, all at once, to take a run."""

    def __init__(self, count: int) -> None:
        command = [sys.executable, "-m", "tests.primary.control.claimants"]
        self.processes = [
            subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            for _ in range(count)
        ]
        self.pids = [said["pid"] for said in self._said()]

    def take(self, folder: Path) -> list[Says]:
        return self._told(str(folder))

    def let_go(self) -> None:
        assert self._told("let go") == [{}] * len(self.processes)

    def _told(self, line: str) -> list[Says]:
        for process in self.processes:
            assert process.stdin is not None
            process.stdin.write(f"{line}\n")
            process.stdin.flush()
        return self._said()

    def _said(self) -> list[Says]:
        said = []
        for process in self.processes:
            said.append(json.loads(present(process.stdout).readline()))
        return said

    def close(self) -> None:
        for process in self.processes:
            process.kill()
            process.communicate()


@pytest.fixture
def racers() -> Iterator[Callable[[int], Racers]]:
    started: list[Racers] = []

    def start(count: int) -> Racers:
        started.append(Racers(count))
        return started[-1]

    yield start
    for each in started:
        each.close()


def test_one_of_many_claimants_wins(racers: Callable[[int], Racers], tmp_path: Path) -> None:
    racing = racers(RACERS)
    for number in range(ROUNDS):
        folder, before = tmp_path / str(number), number % 3
        for gone in range(before):
            claimed_by(folder, gone + 1)
        said = racing.take(folder)
        got = [place for place, each in enumerate(said) if "number" in each]
        assert len(got) == 1, said
        assert said[got[0]]["number"] == before + 1
        holder = f"process {racing.pids[got[0]]} on {socket.gethostname()} since 20"
        assert all(holder in str(each.get("refused", holder)) for each in said), said
        racing.let_go()
        files = sorted(path.name for path in RunPaths(folder).claims.iterdir())
        assert files == [f"{n + 1:04d}.json" for n in range(before + 1)]


def test_a_dead_holder_is_replaced(racers: Callable[[int], Racers], tmp_path: Path) -> None:
    racing = racers(1)
    assert racing.take(tmp_path) == [{"number": 1}]
    with pytest.raises(ClaimedError, match=f"its primary is running, as process {racing.pids[0]}"):
        take(history_of(tmp_path), BEAT, "resume")
    racing.close()
    assert take(history_of(tmp_path), BEAT, "resume").number == 2


def test_a_claim_that_was_let_go_of_is_free_for_every_host_at_once(tmp_path: Path) -> None:
    claimed_by(tmp_path, process=ELSEWHERE)
    with pytest.raises(ClaimedError, match=r"process 1 on elsewhere since .*; it wrote \d+ s ago"):
        take(history_of(tmp_path), BEAT, "resume")
    claimed_by(tmp_path, process=ELSEWHERE, released=True)
    with take(history_of(tmp_path), BEAT, "resume") as claim:
        assert claim.number == 2
    assert take(history_of(tmp_path), BEAT, "resume").number == 3


def test_a_holder_elsewhere_has_the_run_until_it_has_been_silent_for_long(tmp_path: Path) -> None:
    long = 3 * BEAT + 60.0
    claimed_by(tmp_path, process=ELSEWHERE, utc=time.time() - long - 1.0)
    with JournalWriter(
        RunPaths(tmp_path).primary_journal, clock=Clock(time.time() - long + 30.0)
    ) as journal:
        journal.append(PrimaryHeartbeat())
    with pytest.raises(ClaimedError, match=r"until it has been silent for 63 s"):
        take(history_of(tmp_path), BEAT, "resume")
    RunPaths(tmp_path).primary_journal.unlink()
    assert take(history_of(tmp_path), BEAT, "resume").number == 2


def test_another_name_of_the_run_directory_is_the_same_run(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "link").symlink_to("run")
    with take(history_of(tmp_path / "run"), BEAT, "start"), pytest.raises(ClaimedError):
        take(history_of(tmp_path / "link"), BEAT, "resume")


def started_by(folder: Path, host: str, pid: int, ago: float) -> None:
    """Write what a primary recorded from before there were claims."""
    with JournalWriter(RunPaths(folder).primary_journal, clock=Clock(time.time() - ago)) as journal:
        journal.append(run_started().model_copy(update={"host": host, "pid": pid}))


def test_a_run_from_before_there_were_claims(tmp_path: Path) -> None:
    here = socket.gethostname()
    with subprocess.Popen(
        [sys.executable, "-c", "input()", "aiperf"], stdin=subprocess.PIPE
    ) as alive:
        started_by(tmp_path / "alive", here, alive.pid, 1000.0)
        with pytest.raises(ClaimedError, match=f"as process {alive.pid} on {here}$"):
            take(history_of(tmp_path / "alive"), BEAT, "resume")
        assert not RunPaths(tmp_path / "alive").claims.exists()
        alive.kill()
    assert take(history_of(tmp_path / "alive"), BEAT, "resume").number == 1
    started_by(tmp_path / "recent", "elsewhere", 1, 10.0)
    with pytest.raises(ClaimedError, match=r"as process 1 on elsewhere; it wrote \d+ s ago"):
        take(history_of(tmp_path / "recent"), BEAT, "resume")
    started_by(tmp_path / "silent", "elsewhere", 1, 64.0)
    assert take(history_of(tmp_path / "silent"), BEAT, "resume").number == 1


def test_a_primary_that_was_cut_off_writes_no_more_once_it_is_replaced(tmp_path: Path) -> None:
    """It was silent for so long that another host took it for dead."""
    paths = RunPaths(tmp_path)
    with (
        take(history_of(tmp_path), 0.0, "start") as claim,  # Any silence is too long.
        JournalWriter(paths.primary_journal, retry=Claimed(claim, no_retry)) as mine,
    ):
        mine.append(PrimaryHeartbeat())
        mine.append(PrimaryHeartbeat())
        claimed_by(tmp_path, claim.number + 1, process=ELSEWHERE)
        with pytest.raises(LostClaimError, match="process 1 on elsewhere has taken control"):
            mine.append(PrimaryHeartbeat())
    assert len(list(JournalReader(paths.primary_journal).read())) == 2
    with pytest.raises(ClaimedError):  # What it let go of is not the run.
        take(history_of(tmp_path), BEAT, "resume")


def test_a_hung_write_is_no_heartbeat(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Others saw nothing of it while it hung, and judge by the time that it says."""
    clock = Clock()
    monkeypatch.setattr(claims, "_now", lambda: (clock.utc(), clock.monotonic()))
    hangs = [0.0]
    with (
        take(history_of(tmp_path), BEAT, "start") as claim,
        JournalWriter(
            RunPaths(tmp_path).primary_journal,
            clock=clock,
            retry=Claimed(claim, no_retry),
            sync=lambda file: clock.advance(hangs[0]),
            recorded=claim.recorded,
        ) as journal,
    ):
        for hangs[0] in (0.0, 2 * BEAT, 100 * BEAT):
            journal.append(PrimaryHeartbeat())
        assert claim.number == 1
        claimed_by(tmp_path, 2, process=ELSEWHERE)
        for _ in range(2):
            with pytest.raises(LostClaimError):
                journal.append(PrimaryHeartbeat())


def test_a_primary_that_is_not_silent_asks_for_nothing(tmp_path: Path) -> None:
    with take(history_of(tmp_path), 1000.0, "start") as claim:
        Claimed(claim, no_retry)(lambda: None, "nothing")
        assert claim.number == 1


def test_records_before_a_claim_are_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another took it, ended it and let go of it after its records had been read."""
    look = claims.check_free

    def ended_by_another(history: RunHistory, heartbeat_seconds: float) -> int:
        claimed_by(tmp_path, released=True)
        RunWriter(tmp_path).primary(0.0, run_ended())
        return look(history, heartbeat_seconds)

    monkeypatch.setattr(claims, "check_free", ended_by_another)
    history = history_of(tmp_path)
    assert take(history, BEAT, "stop").number == 2
    assert history.run_ended is not None


def always_failing(number: int) -> Callable[..., None]:
    """Return a system call that fails with this error."""

    def fail(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    return fail


def test_a_link_reported_as_failed_is_ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a soft mount while its server starts again; then the name cannot be removed either."""
    link = os.link

    def made_and_denied(source: Path, target: Path) -> None:
        link(source, target)
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with take(history_of(tmp_path), 0.0, "start") as claim:  # Any silence is too long.
        with monkeypatch.context() as patch:
            patch.setattr(os, "link", made_and_denied)
            patch.setattr(Path, "unlink", always_failing(errno.EIO))
            with pytest.raises(OSError, match="Input/output"):
                claim.confirm()
        claim.confirm()
        assert claim.number == 2


def test_a_repeated_link_is_ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    link = os.link

    def twice(source: Path, target: Path) -> None:
        link(source, target)
        link(source, target)

    monkeypatch.setattr(os, "link", twice)
    assert take(history_of(tmp_path), BEAT, "start").number == 1


def test_a_claim_not_yet_visible_is_awaited(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on NFS: the server refuses the link, and the name's absence is still in the cache."""
    claimed_by(tmp_path, process=this_process())
    path = RunPaths(tmp_path).claims / "0001.json"
    monkeypatch.setattr(claims, "_newest", lambda folder: 0)
    hidden = path.rename(tmp_path / "hidden")
    monkeypatch.setattr(os, "link", always_failing(errno.EEXIST))
    monkeypatch.setattr(time, "sleep", lambda seconds: hidden.rename(path))
    with pytest.raises(ClaimedError, match=f"process {os.getpid()} on elsewhere"):
        take(history_of(tmp_path), BEAT, "resume")


def test_damaged_claims_and_missing_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    claimed_by(tmp_path)
    (RunPaths(tmp_path).claims / "0001.json").write_text("{")
    with pytest.raises(RunDirectoryError, match=r"0001\.json is damaged: .*if no process"):
        take(history_of(tmp_path), BEAT, "resume")
    monkeypatch.setattr(os, "link", always_failing(errno.EPERM))
    with pytest.raises(RunDirectoryError, match=r"has no hard links .* with --run-dir"):
        take(history_of(tmp_path / "new"), BEAT, "start")


def test_a_process_of_another_boot_cannot_be_seen() -> None:
    me = this_process()
    assert me.gone is False
    assert me.model_copy(update={"started": me.started + 1}).gone is True
    assert me.model_copy(update={"machine": "another"}).gone is None
    with subprocess.Popen([sys.executable, "-c", ""]) as child:
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)  # A zombie, until it is waited for.
        zombie = ProcessId(machine=this_machine(), pid=child.pid, started=started_ticks(child.pid))
        assert zombie.gone is True


def started_ticks(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])


# The commands.


@pytest.fixture
def dead_run(tmp_path: Path) -> RunPaths:
    """A run that was started by a primary which is gone, and whose replicas never came."""
    paths = RunPaths(tmp_path / "run")
    run_manifest(configuration()).save(paths)
    started_by(paths.root, socket.gethostname(), 2**22 + 1, 10.0)
    claimed_by(paths.root, command="start")
    return paths


def test_stop_records_the_end_once_and_not_while_another_has_the_run(dead_run: RunPaths) -> None:
    view = RunView.read(dead_run)
    with take(history_of(dead_run.root), BEAT, "resume"):
        control._end_for_its_primary(view)
        view.refresh()
        assert view.history.run_ended is None
    control._end_for_its_primary(view)
    control._end_for_its_primary(view)
    kinds = [r.event.type for r in JournalReader(dead_run.primary_journal).read()]
    assert kinds == ["run_started", "taken_over", "digests_recorded", "run_ended"]
    found = {each.rule: each.failures for each in verify(RunView(dead_run))}
    assert found["clocks"] == ()  # The dead primary's counted from the boot of another host.
    assert found["digests"] == ()


def test_stop_ends_a_run_whose_digests_cannot_be_written(
    dead_run: RunPaths, capsys: pytest.CaptureFixture[str]
) -> None:
    dead_run.journal_digests.mkdir()
    control._end_for_its_primary(view := RunView.read(dead_run))
    view.refresh()
    assert view.history.run_ended is not None
    said = capsys.readouterr().err
    assert "no final digests were recorded, so `aiperf verify` will fail: " in said
    assert "digests" in {each.rule for each in verify(view) if each.failures}


def test_a_run_is_resumed_without_digests_whose_file_is_damaged(
    dead_run: RunPaths, capsys: pytest.CaptureFixture[str]
) -> None:
    manifest, history = RunManifest.load(dead_run), RunHistory(dead_run)
    with JournalWriter(dead_run.primary_journal) as journal:
        with primary._journal_digests(manifest, history, journal, no_retry) as digests:
            assert digests is not None
        dead_run.journal_digests.unlink()
        dead_run.journal_digests.mkdir()
        with primary._journal_digests(manifest, history, journal, no_retry) as digests:
            assert digests is None
    assert (
        "no journal digests are recorded, so `aiperf verify` will fail: " in capsys.readouterr().err
    )


def test_conduct_refuses_a_started_run(
    dead_run: RunPaths, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["conduct", str(dead_run.root)]) == UsageError.exit_status
    assert "this run was already started; see `aiperf resume`" in capsys.readouterr().err
    with take(history_of(dead_run.root), BEAT, "stop"):
        assert cli.main(["conduct", str(dead_run.root)]) == UsageError.exit_status
    assert f"`aiperf stop` is ending it, as process {os.getpid()} on" in capsys.readouterr().err


def test_replicas_are_found_by_any_name_of_the_run(tmp_path: Path) -> None:
    for name in ("run", "run1"):
        (tmp_path / name).mkdir()
    (tmp_path / "link").symlink_to("run1")
    command = [sys.executable, "-c", "input()", str(tmp_path / "run1")]
    with subprocess.Popen(command, stdin=subprocess.PIPE) as replica:
        writer = RunWriter(tmp_path / "run1")
        machine = MACHINE.model_copy(update={"host": socket.gethostname()})
        here = {"pid": replica.pid, "machine": machine}
        started = replica_started().model_copy(update=here)
        writer.primary(0, run_ended())
        for name in ("run", "run1"):
            RunWriter(tmp_path / name).replica(1, started)
        ended = {
            name: all_have_ended(RunHistory.read(RunPaths(tmp_path / name)))
            for name in ("link", "run")
        }
        replica.kill()
    assert ended == {"link": False, "run": True}
    assert all_have_ended(RunHistory.read(RunPaths(tmp_path / "link")))
