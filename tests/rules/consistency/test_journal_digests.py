"""The rule on journal digests: what is rewritten in one journal, others contradict."""

from __future__ import annotations

import errno
import json
import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.support.clock import Clock
from tests.support.heads import HeadedRun, headed_run
from tests.support.rules import check_rule
from tests.support.run_factory import configuration
from tests.support.run_writer import progress, replica_started, run_ended, run_started

from aiperf_hpc.errors import JournalError
from aiperf_hpc.primary.control.journal_digests import JournalDigests
from aiperf_hpc.primary.control.resume import LOST_UNKNOWN, lost_before_resume
from aiperf_hpc.results.views.run_view import RunView
from aiperf_hpc.rules.consistency.evidence import Evidence
from aiperf_hpc.run.history import RunHistory
from aiperf_hpc.run.journal import JournalWriter
from aiperf_hpc.run.paths import Incarnation, RunPaths
from aiperf_hpc.run.records import DigestsRecorded, PrimaryHeartbeat, ReplicaLaunched, TakenOver
from aiperf_hpc.verification.audit import evidence_of

R1 = "replicas/r1/0.0/journal.jsonl"


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> RunPaths:
    return headed_run(tmp_path_factory.mktemp("heads") / "run")


@pytest.fixture
def run(written: RunPaths, tmp_path: Path) -> RunPaths:
    """Return a copy of the run, to be changed."""
    return RunPaths(shutil.copytree(written.root, tmp_path / "run"))


def evidence(paths: RunPaths) -> Evidence:
    return evidence_of(RunView(paths))


def failures(paths: RunPaths) -> list[str]:
    return list(check_rule("digests", paths).failures)


def test_a_run_whose_heads_were_taken_keeps_the_rule(written: RunPaths) -> None:
    assert failures(written) == []
    # The primary's, and what each replica saw.
    assert check_rule("digests", written).checked == 5 + 2 * 4


def test_a_resumed_primary_begins_its_heads_anew(tmp_path: Path) -> None:
    run = HeadedRun(tmp_path / "run")
    run.turn()
    run.take_in_hand()
    run.turn()
    run.end()
    assert failures(run.paths) == []
    assert run.paths.journal_digests.read_text("utf-8").count('"new_primary":true') == 2


def test_an_earlier_runs_file_has_another_name(run: RunPaths) -> None:
    run.journal_digests.rename(run.root / "primary" / "heads.jsonl")
    assert failures(run) == []
    (run.root / "primary" / "heads.jsonl").unlink()
    assert failures(run) != []


def test_a_run_that_goes_on_is_what_was_seen_of_it_so_far(tmp_path: Path) -> None:
    run = HeadedRun(tmp_path / "run")
    run.turn()
    run.replicas["r0"].append(progress("t1", train=1))
    assert failures(run.paths) == []


def test_each_byte_that_is_changed_is_found(run: RunPaths) -> None:
    """Each changed to another digit, so that most changes leave a record in its place."""
    rng = random.Random(0)  # noqa: S311 -- to draw places
    journals = [run.primary_journal, run.journal_digests, *map(run.replica_journal, ("r0", "r1"))]
    for _ in range(40):
        path = rng.choice(journals)
        content = path.read_bytes()
        digits = [at for at, byte in enumerate(content) if chr(byte).isdigit()]
        covered = content.rfind(b"\n", 0, -1) if path == run.primary_journal else len(content)
        at = rng.choice([at for at in digits if at < covered])
        other = b"7" if content[at : at + 1] != b"7" else b"3"
        path.write_bytes(content[:at] + other + content[at + 1 :])
        changed = evidence(run)
        found = [*check_rule("digests", changed).failures, *changed.history.problems]
        path.write_bytes(content)
        assert found, (path, at)


def test_a_journal_that_is_rewritten_is_named_with_the_time(run: RunPaths) -> None:
    path = run.root / R1
    content = path.read_bytes()
    first = len(b"".join(content.splitlines(keepends=True)[:2]))
    path.write_bytes(content.replace(b'"train_samples":10', b'"train_samples":99'))
    assert failures(run) == [
        f"{R1} differs from what the primary had read by 2025-06-15T15:07:10.000Z "
        f"(its first {first} bytes)"
    ]


def test_heads_made_again_contradict_what_the_replicas_saw(run: RunPaths, tmp_path: Path) -> None:
    """A forger who makes the primary's files again has to make each replica's journal again."""
    other = HeadedRun(tmp_path / "other")
    other.turn(29.0)
    for _ in range(3):
        other.turn()
    other.end()
    for name in ("primary_journal", "journal_digests"):
        getattr(run, name).write_bytes(getattr(other.paths, name).read_bytes())
    found = failures(run)
    assert any(f"{R1} saw another journal of the primary by" in each for each in found)


def cut(path: Path) -> None:
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:-2]))


def add(path: Path) -> None:
    """Add a record to a journal, stamped as the one before it."""
    lines = path.read_bytes().splitlines(keepends=True)
    last = json.loads(lines[-1])
    event = progress("t1", train=1_000_000).model_dump()
    lines.append(json.dumps({**last, "seq": last["seq"] + 1, "event": event}).encode() + b"\n")
    path.write_bytes(b"".join(lines))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (cut, "differs from what the primary had read"),
        (Path.unlink, "is missing"),
        (add, "did not exist when the run ended"),
    ],
)
def test_what_is_taken_away_or_added_is_found(
    run: RunPaths, change: Callable[[Path], None], said: str
) -> None:
    change(run.root / R1)
    assert any(said in each and R1 in each for each in failures(run))


def test_a_journal_that_is_added_is_found(run: RunPaths) -> None:
    path = run.replica_journal("r2")
    path.parent.mkdir(parents=True)
    path.write_bytes((run.root / R1).read_bytes().replace(b"r1", b"r2"))
    assert any("replicas/r2/" in each and "did not exist" in each for each in failures(run))


@pytest.mark.parametrize("taken_over", [False, True])
def test_an_end_without_digests_is_found(tmp_path: Path, *, taken_over: bool) -> None:
    run = HeadedRun(tmp_path / "run")
    run.turn()
    run.clock.advance(10.0)
    if taken_over:
        run.primary.append(TakenOver(command="stop", host="h", pid=1))
    run.primary.append(run_ended())
    assert failures(run.paths) == ["the run ended without final digests of the journals"]


def beat(run: HeadedRun, seconds: float, every: float) -> None:
    """Let the primary record heartbeats, but no digests."""
    for _ in range(round(seconds / every)):
        run.clock.advance(every)
        run.primary.append(PrimaryHeartbeat())


@pytest.mark.parametrize("first", [False, True])
def test_a_working_primary_that_records_no_digests_is_found(tmp_path: Path, *, first: bool) -> None:
    run = HeadedRun(tmp_path / "run")
    if not first:
        run.turn()
    beat(run, 140.0, 10.0)
    assert failures(run.paths) == []
    beat(run, 40.0, 10.0)
    run.end()
    (found,) = failures(run.paths)
    assert found.startswith("the primary worked for 18")
    assert "at most 150 s are allowed" in found


@pytest.mark.parametrize(("pauses", "passed"), [(3, True), (5, True), (6, False)])
def test_regular_pauses_do_not_hide_missing_digests(
    tmp_path: Path, pauses: int, *, passed: bool
) -> None:
    run = HeadedRun(tmp_path / "run")
    run.turn()
    beat(run, pauses * 61.0, 61.0)
    run.end()
    assert (failures(run.paths) == []) is passed


def test_a_suspended_and_a_killed_primary_record_no_digests(tmp_path: Path) -> None:
    run = HeadedRun(tmp_path / "run")
    run.turn()
    beat(run, 100.0, 10.0)
    run.clock.advance(900.0)  # The machine was suspended.
    run.primary.append(PrimaryHeartbeat())
    beat(run, 40.0, 10.0)
    run.clock.advance(50.0)  # The primary was killed, and resumed.
    run.primary.append(run_started())
    beat(run, 140.0, 10.0)
    run.end()
    assert failures(run.paths) == []


@pytest.mark.parametrize("first", [False, True])
def test_digests_continue_after_a_failed_write(tmp_path: Path, *, first: bool) -> None:
    run, failing = HeadedRun(tmp_path / "run"), first

    def sync(file: int) -> None:
        if failing:
            raise OSError(errno.EACCES, "denied")
        os.fsync(file)

    own = JournalWriter(run.paths.journal_digests, clock=run.clock, sync=sync)
    run.taker = JournalDigests(run.history, run.primary, own, seconds=30.0)
    if not first:
        run.turn()
        failing = True
    run.replicas["r2"] = run.journal(run.paths.replica_journal("r2"))
    run.replicas["r2"].append(replica_started("r2"))
    with pytest.raises(JournalError):
        run.heads()
    assert not run.taker.is_due(run.clock.monotonic())
    failing = False
    run.turn()
    run.end()
    assert failures(run.paths) == []


def test_damaged_digests_do_not_prevent_resuming(tmp_path: Path) -> None:
    run = HeadedRun(tmp_path / "run")
    run.turn()
    path = run.paths.journal_digests
    names = ("/etc/x", "../x", "replicas/../0.0/journal.jsonl")
    for name in names:
        path.write_bytes(path.read_bytes().replace(R1.encode(), name.encode()))
        assert lost_before_resume(RunHistory.read(run.paths)) == []
        path.write_bytes(path.read_bytes().replace(name.encode(), R1.encode()))
    path.unlink()
    path.mkdir()
    (found,) = lost_before_resume(RunHistory.read(run.paths))
    assert (found.file, found.remedy) == ("primary/journal_digests.jsonl", LOST_UNKNOWN)


def test_a_simulated_run_records_no_digests(tmp_path: Path) -> None:
    run = HeadedRun(tmp_path / "run")
    beat(run, 300.0, 10.0)
    run.primary.append(run_ended())
    text = run.paths.manifest.read_text("utf-8")
    run.paths.manifest.write_text(text.replace("launcher: local", "launcher: simulated"))
    assert failures(run.paths) == []
    found = check_rule("config", run.paths).failures
    assert any(each.startswith("run.yaml states a simulated run of engine") for each in found)


def test_digests_are_recorded_at_the_interval_of_the_witnesses() -> None:
    named: dict[str, object] = {"urls": ["https://w.example.org"], "interval_seconds": 10.0}
    assert configuration({"witness": named}).digest_seconds == 10.0
    assert configuration({"timestamps": named}).digest_seconds == 10.0
    assert configuration({"witness": {**named, "urls": []}}).digest_seconds == 30.0


def test_the_primary_states_how_many_journals_its_digests_cover(run: RunPaths) -> None:
    journal = run.primary_journal
    stated = journal.read_bytes()
    assert stated.count(b'"journals":2') == 5
    other = stated.replace(b'"journals":2', b'"journals":3', 1)
    journal.write_bytes(other)
    assert any("has 2 journals, the primary recorded 3" in each for each in failures(run))


def test_a_replica_whose_time_is_moved_is_found_though_its_bytes_are_its_own(
    tmp_path: Path,
) -> None:
    run = HeadedRun(tmp_path / "run")
    run.clock.advance(100.0)
    run.replicas["r1"].append(replica_started("r1"))
    run.clock.advance(-70.0)
    run.turn(0.0)
    found = failures(run.paths)
    assert len(found) == 1
    assert "has 2025-06-15T15:08:20.000Z in the part that the primary had read by" in found[0]


def test_a_run_of_an_earlier_version_has_no_digests(tmp_path: Path) -> None:
    run = HeadedRun(tmp_path / "run")
    beat(run, 300.0, 10.0)
    text = run.paths.manifest.read_text("utf-8")
    run.paths.manifest.write_text(text.replace("schema_version: 2", "schema_version: 1"))
    assert failures(run.paths) == []
    assert check_rule("digests", run.paths).checked == 0
    primary = (
        "primary/journal.jsonl, record 0: its format is version 2, that of run.yaml is version 1"
    )
    assert primary in check_rule("config", run.paths).failures
    assert isinstance(run.heads(), DigestsRecorded)


def test_what_was_written_since_the_journals_were_read_is_for_another_time(
    tmp_path: Path,
) -> None:
    run = HeadedRun(tmp_path / "run")
    run.turn()
    r1 = run.replicas["r1"].path
    unseen = r1.read_bytes()
    run.turn()
    later = r1.read_bytes()
    r1.write_bytes(unseen)
    read = evidence(run.paths)
    r1.write_bytes(later)
    assert list(check_rule("digests", read).failures) == []
    r1.write_bytes(later.replace(b'"train_samples":10', b'"train_samples":99', 1))
    assert list(check_rule("digests", read).failures) != []


def test_a_journal_that_was_lost_in_the_run_is_noted_if_the_next_primary_said_so(
    tmp_path: Path,
) -> None:
    """The digests of others are compared, but for sums over the lost one."""
    run = HeadedRun(tmp_path / "run")
    run.turn()
    shutil.rmtree(run.paths.replica("r1"))
    (lost,) = lost_before_resume(RunHistory.read(run.paths))
    assert lost.file == R1
    run.history = RunHistory(run.paths)
    run.take_in_hand()
    del run.replicas["r1"]
    run.turn()
    run.end()
    assert failures(run.paths) == [f"{R1} is missing, of which the primary had read"]
    run = HeadedRun(tmp_path / "noted")
    run.turn()
    shutil.rmtree(run.paths.replica("r1"))
    run.primary.append(lost)
    assert lost_before_resume(RunHistory.read(run.paths)) == []
    run.history = RunHistory(run.paths)
    run.take_in_hand()
    del run.replicas["r1"]
    run.turn()
    run.end()
    assert failures(run.paths) == []
    (note,) = check_rule("journals", run.paths).notes
    assert R1 in note
    assert note.endswith("the journal is missing; restore it; it was lost during the run")
    r0 = run.paths.replica_journal("r0")
    r0.write_bytes(r0.read_bytes().replace(b'"train_samples":10', b'"train_samples":99'))
    assert "r0/0.0/journal.jsonl differs from what the primary had read" in failures(run.paths)[0]


@pytest.mark.parametrize("ahead", [0.0, 20.0])
def test_a_new_attempts_journal_may_be_listed_after_the_end_if_it_was_launched_just_before(
    tmp_path: Path, ahead: float
) -> None:
    """The primary's clock may have been set back since."""
    run = HeadedRun(tmp_path / "run")
    run.turn()
    right = run.primary.clock
    run.primary.clock = Clock(right.utc() + ahead)
    run.primary.append(ReplicaLaunched(replica="r1", job="again"))
    run.primary.clock = right
    late = run.journal(run.paths.replica_journal("r1", Incarnation(1, 0)))
    run.end()
    clock = late.clock
    late.clock = Clock(clock.utc() - 5.0)
    late.append(replica_started("r1"))
    (note,) = check_rule("digests", run.paths).notes
    assert note == (
        "replicas/r1/1.0/journal.jsonl was not yet visible to the primary when the run ended"
    )
    assert failures(run.paths) == []
