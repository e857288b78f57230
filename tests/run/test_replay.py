"""What several processes read apart is what one process reads."""

from __future__ import annotations

import dataclasses
import os
import pickle
import tempfile
from array import array
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel
from tests.support.run_writer import (
    FIRST,
    SECOND,
    START,
    evaluated,
    progress,
    proposed,
    replica_started,
    run_ended,
    run_started,
    trial_ended,
    trial_started,
)
from tests.support.telemetry import ACCELERATORS, equipment, sample

from aiperf_hpc.errors import JournalError
from aiperf_hpc.objective import QUALITY_METRICS
from aiperf_hpc.run import records
from aiperf_hpc.run.history import RunHistory, replay
from aiperf_hpc.run.history.replay import Replay
from aiperf_hpc.run.paths import RunPaths
from aiperf_hpc.run.records import AnyEvent, Record
from aiperf_hpc.trial import JobPhase, TimePhase

Journal = Callable[[RunPaths], Path]
Entry = tuple[Journal, float, AnyEvent | bytes]
"""A journal, seconds since START, and what is added: an event, or a line that is no record."""


def journal(name: str, life: object = FIRST) -> Journal:
    return lambda paths: paths.replica_journal(name, life)  # type: ignore[arg-type]


PRIMARY: Journal = lambda paths: paths.primary_journal  # noqa: E731
STRAY: Journal = lambda paths: paths.replica("r1") / "journal.jsonl"  # noqa: E731
REPLICAS = ("r0", "r1", "r2")


def events_of_primary() -> list[AnyEvent | bytes]:
    told: list[AnyEvent | bytes] = [run_started(), run_ended(), b"{", records.PrimaryHeartbeat()]
    for name in REPLICAS:
        told += [
            records.ReplicaLaunched(replica=name, job=name),
            records.JobState(replica=name, phase=JobPhase.REQUEUED, detail="node failed"),
            records.NodeChecked(replica=name, host="n", clock_ahead_seconds=None),
            records.ReplicaExited(replica=name, status=1),
        ]
    return told


def events_of(name: str) -> list[AnyEvent | bytes]:
    """Return what a replica may say, of its own trials and of another's."""
    told: list[AnyEvent | bytes] = [
        replica_started(name),
        records.Heartbeat(phase=TimePhase.TRAIN, cpu_percent=1.0, memory_bytes=1),
        records.TelemetryStarted(equipment=equipment("n", ACCELERATORS)),
        records.TelemetrySampled(sample=sample((12_000.0, 15_000.0))),
        records.FileProblem(file="f", problem="gone", remedy="without"),
        records.StorageWaited(started_utc=START, seconds=1.0, reason="full"),
        records.CompilerFailed(problem="ended after 600 s"),
        records.ModulesImported(rank=0, package_sha256="0" * 64, foreign={"/a": "0" * 64}),
        records.RanksLost(ranks=(1,), reason="gone"),
        records.ReplicaEnded(reason="stop"),
        b'{"v":1}',
        b"\xff",
    ]
    for trial in (f"{name}-1", f"{name}-2", "r0-1"):
        own = trial.startswith(name)
        told += [trial_started(trial, proposal="r1-p" if trial == "r2-2" else None)] if own else []
        told += [
            records.TrainingStarted(trial=trial),
            progress(trial, train=3),
            progress(trial, train=2**63 - 1),
            evaluated(trial, correct=50),
            evaluated(trial, correct=60),
            records.TimeSpent(trial=trial, seconds={TimePhase.TRAIN: 1.5}),
            trial_ended(trial),
            records.CheckpointDeleted(trial=trial),
        ]
    return told


def events_between(name: str) -> list[AnyEvent | bytes]:
    """Return what a replica may say of another's trial or candidate, and of what those are."""
    return [
        records.SearchFailed(reason="lost", lost_parent="r1-1"),
        records.ProposalRejected(proposal="r1-p", reason="damaged"),
        proposed(f"{name}-p"),
        trial_started(f"{name}-3", proposal="r1-p"),
        trial_ended(f"{name}-1"),
    ]


def entries(journals: list[Journal], events: list[AnyEvent | bytes]) -> st.SearchStrategy[Entry]:
    seconds = st.integers(0, 9).map(float)
    return st.tuples(st.sampled_from(journals), seconds, st.sampled_from(events))


BETWEEN = st.lists(
    st.one_of(*(entries([journal(name)], events_between(name)) for name in REPLICAS)),
    min_size=4,
    max_size=12,
)
ENTRIES = st.lists(
    st.one_of(
        entries([PRIMARY], events_of_primary()),
        *(
            entries([journal(name), journal(name), journal(name, SECOND), STRAY], events_of(name))
            for name in REPLICAS
        ),
    ),
    min_size=10,
    max_size=60,
)

OPENING: list[Entry] = [(journal(name), 0.0, trial_started(f"{name}-1")) for name in REPLICAS]
CLASHES: list[list[Entry]] = [
    [],
    [],
    [(journal("r2"), 1.0, trial_started("r0-1"))],
    [(journal("r2"), 1.0, proposed("r0-p")), (journal("r0"), 1.0, proposed("r0-p"))],
]
"""What two replicas call by one name."""


def write(paths: RunPaths, added: list[Entry], numbers: dict[Path, int]) -> None:
    for journal_of, seconds, event in added:
        path = journal_of(paths)
        path.parent.mkdir(parents=True, exist_ok=True)
        line = event
        if not isinstance(line, bytes):
            number = numbers[path] = numbers.get(path, -1) + 1
            record = Record(seq=number, utc=START + seconds, mono=seconds, event=event)
            line = record.model_dump_json().encode()
        with path.open("ab") as file:
            file.write(line + b"\n")


def told(thing: object) -> object:
    """Return all that an object holds, to be compared; of dicts the order too."""
    if isinstance(thing, array):
        return repr(thing)  # nan is not equal to itself.
    if isinstance(thing, dict):
        return [(key, told(value)) for key, value in thing.items()]
    if isinstance(thing, list | tuple):
        return [told(one) for one in thing]
    if isinstance(thing, BaseModel) or callable(thing):
        return thing
    if dataclasses.is_dataclass(thing):
        return {one.name: told(getattr(thing, one.name)) for one in dataclasses.fields(thing)}
    return told(vars(thing)) if hasattr(thing, "__dict__") else thing


def all_of(history: RunHistory) -> dict[str, object]:
    """Return all of a history but how often it read again, and in which order proposals wait."""
    tail, state = history._replay.tail, history._replay.state
    waiting = {name: dict(sorted(found.items())) for name, found in state.waiting.items()}
    held = {one.name: getattr(state, one.name) for one in dataclasses.fields(state)}
    held["waiting"] = dict(sorted(waiting.items()))
    return {"tail": told({**vars(tail), "_retry": None}), "state": told(held)}


class Here:
    """A pool that works at once and here; all goes through pickle."""

    def submit(self, work: Callable[..., object], *arguments: object) -> Future[object]:
        done: Future[object] = Future()
        try:
            done.set_result(pickle.loads(pickle.dumps(work(*arguments))))  # noqa: S301
        except Exception as error:  # noqa: BLE001 -- as a pool does
            done.set_exception(error)
        return done


@contextmanager
def here(_: int) -> Iterator[Here]:
    yield Here()


@pytest.fixture
def apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let each replica's journals be read apart, however little they are."""
    monkeypatch.setattr(replay, "POOL_BYTES", 0)
    monkeypatch.setattr(replay, "SHARE_BYTES", 0)
    monkeypatch.setattr(replay, "_pool", here)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})


def read(paths: RunPaths, *, several: bool) -> RunHistory:
    history = RunHistory(paths)
    with pytest.MonkeyPatch.context() as patched:
        if not several:
            patched.setattr(replay, "POOL_BYTES", 2**60)
        history.refresh()
    return history


@pytest.mark.usefixtures("apart")
def test_journals_that_are_read_apart_tell_one_history() -> None:
    together = 0

    @settings(max_examples=30, derandomize=True)
    @given(st.sampled_from(CLASHES), BETWEEN, ENTRIES, ENTRIES)
    def check(
        clash: list[Entry], between: list[Entry], first: list[Entry], then: list[Entry]
    ) -> None:
        nonlocal together
        with tempfile.TemporaryDirectory() as folder:
            paths, numbers = RunPaths(Path(folder)), dict[Path, int]()
            write(paths, [*OPENING, *clash, *between, *first], numbers)
            one, several = read(paths, several=False), read(paths, several=True)
            found = apart_from(paths)
            together += found is not None and len(found.state.trials) > 1
            assert all_of(several) == all_of(one)
            write(paths, then, numbers)
            one.refresh()
            several.refresh()
            assert all_of(several) == all_of(one)

    check()
    assert together > 5


def apart_from(paths: RunPaths) -> Replay | None:
    """Return what several processes read of a run."""
    return replay.read_apart(paths, RunHistory(paths)._replay.tail)


def small(paths: RunPaths, trial: str = "r{}-1") -> None:
    """Write a run of two replicas, each with a trial."""
    added: list[Entry] = [(PRIMARY, 0.0, run_started())]
    for number in (0, 1):
        name = trial.format(number)
        added += [
            (journal(f"r{number}"), 1.0, event)
            for event in (trial_started(name), progress(name, train=5), evaluated(name, correct=9))
        ]
    write(paths, added, {})


def test_processes_of_their_own_read_what_one_reads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, apart: None
) -> None:
    monkeypatch.setattr(replay, "_pool", POOL)
    paths = RunPaths(tmp_path)
    small(paths)
    found = apart_from(paths)
    assert found is not None
    assert set(found.state.trials) == {"r0-1", "r1-1"}
    assert all_of(read(paths, several=True)) == all_of(read(paths, several=False))


POOL = replay._pool


@pytest.mark.usefixtures("apart")
def test_a_trial_of_two_replicas_is_told_apart_by_one_process(tmp_path: Path) -> None:
    paths = RunPaths(tmp_path)
    small(paths, "t")
    assert apart_from(paths) is None
    (problem, *_) = read(paths, several=True).problems
    assert "trial t starts a second time" in str(problem)


@pytest.mark.usefixtures("apart")
def test_what_cannot_be_read_apart_is_said_as_ever(tmp_path: Path) -> None:
    paths = RunPaths(tmp_path)
    small(paths)
    path = journal("r1")(paths)
    path.unlink()
    path.mkdir()
    with pytest.raises(JournalError, match=str(path)):
        read(paths, several=True)


def test_a_process_that_is_killed_costs_time_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, apart: None
) -> None:
    def killed(paths: RunPaths, share: list[Path]) -> None:
        raise BrokenProcessPool

    monkeypatch.setattr(replay, "read_share", killed)
    small(RunPaths(tmp_path))
    assert read(RunPaths(tmp_path), several=True).record_count == 7


def test_little_is_read_by_one_process(tmp_path: Path) -> None:
    small(RunPaths(tmp_path))
    assert apart_from(RunPaths(tmp_path)) is None


def test_shares_keep_a_replicas_journals_together_and_in_order(tmp_path: Path) -> None:
    paths = RunPaths(tmp_path)
    journals = [
        paths.primary_journal,
        paths.replica_journal("r0"),
        paths.replica_journal("r0", SECOND),
        paths.replica_journal("r1"),
        paths.replica_journal("r2"),
    ]
    for path in journals:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x" * 10)
    by_size = {most: [len(share) for share in replay.shares_of(journals, most)] for most in (0, 20)}
    assert by_size == {0: [2, 1, 1], 20: [2, 2]}
    shares = replay.shares_of(journals, 20)
    assert [path for share in shares for path in share] == journals[1:]


@pytest.mark.parametrize("name", sorted(QUALITY_METRICS))
def test_a_measure_is_the_same_in_another_process(name: str) -> None:
    assert pickle.loads(pickle.dumps(QUALITY_METRICS[name])) is QUALITY_METRICS[name]  # noqa: S301
