"""A wait that takes too long ends the process, and what is known about it is written down."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import NoReturn

import numpy as np
import pytest
from tests.replica.parallel.team import GRAPH, USED, Numbered, Quadratic
from tests.replica.parallel.threads import Table, Threads, run_ranks
from tests.support.waiting import PATIENCE_SECONDS

from aiperf_hpc.errors import UNEXPECTED_STATUS
from aiperf_hpc.morphism.weights.weight_file import initial_weights
from aiperf_hpc.objective import CLASSIFICATION
from aiperf_hpc.replica.engines.base import NetworkState
from aiperf_hpc.replica.parallel import rank_failure
from aiperf_hpc.replica.parallel.collectives.base import ALONE, Array
from aiperf_hpc.replica.parallel.data_parallel import DataParallelNetwork
from aiperf_hpc.replica.parallel.rank_failure import RankFailureReporter, Watch, WatchedCollective
from aiperf_hpc.run.journal import JournalReader, JournalWriter
from aiperf_hpc.run.records import RanksLost

HOSTS = ("n1", "n2", "n3")


class _Over(Exception):  # noqa: N818
    """This process would have ended."""


def end(status: int) -> NoReturn:
    assert status == UNEXPECTED_STATUS
    raise _Over


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rank_failure, "GRACE_SECONDS", 0.3)
    monkeypatch.setattr(rank_failure, "WRITING_SECONDS", 0.1)


def wait_in_vain(folder: Path, *ranks: int, journal: JournalWriter | None = None) -> None:
    """Let these ranks wait in vain, at once."""

    def run(rank: int) -> None:
        own = journal if rank == 0 else None
        with pytest.raises(_Over):
            RankFailureReporter(folder, rank, HOSTS, own, end).end("no answer for 25 s")

    run_ranks(run, ranks)


def said(path: Path) -> list[RanksLost]:
    events = [record.event for record in JournalReader(path).read()]
    assert all(isinstance(event, RanksLost) for event in events)
    return [event for event in events if isinstance(event, RanksLost)]


def test_rank_0_writes_down_which_rank_is_gone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with JournalWriter(tmp_path / "journal.jsonl") as journal:
        wait_in_vain(tmp_path, 0, 2, journal=journal)
    (lost,) = said(tmp_path / "journal.jsonl")
    assert lost.ranks == (1,)
    assert lost.reason == "rank 1 on n2 died or hangs: no answer for 25 s"
    assert not (tmp_path / "rank-2.jsonl").exists()
    assert "aiperf: rank 2: rank 1 on n2 died or hangs" in capsys.readouterr().err


def test_where_rank_0_is_gone_the_first_that_is_there_has_a_journal_of_its_own(
    tmp_path: Path,
) -> None:
    wait_in_vain(tmp_path, 1, 2)
    (lost,) = said(tmp_path / "rank-1.jsonl")
    assert lost.ranks == (0,)
    assert not (tmp_path / "rank-2.jsonl").exists()


def test_ranks_that_are_all_there_wait_for_each_other(tmp_path: Path) -> None:
    with JournalWriter(tmp_path / "journal.jsonl") as journal:
        wait_in_vain(tmp_path, 0, 1, 2, journal=journal)
    (lost,) = said(tmp_path / "journal.jsonl")
    assert lost.ranks == ()
    assert lost.reason == "the ranks wait for each other: no answer for 25 s"


def test_a_process_that_can_write_nothing_ends_all_the_same(tmp_path: Path) -> None:
    with pytest.raises(_Over):
        RankFailureReporter(tmp_path / "gone", 1, HOSTS, end_process=end).end("no answer")


@pytest.mark.parametrize(
    ("call", "given", "what"),
    [
        ("allreduce_sum", (np.zeros(1),), "an agreement of all ranks"),
        ("barrier", (), "a barrier"),
        ("gather", (np.zeros(1),), "a comparison of all ranks"),
        ("broadcast", (np.zeros(1),), "a broadcast"),
        ("command", (np.zeros(1),), "a command"),  # Rank 0's.
    ],
)
def test_a_wait_that_takes_too_long_is_noticed_while_the_thread_waits(
    call: str, given: tuple[Array, ...], what: str
) -> None:
    late: list[str] = []
    watch = Watch(0.3, late.append)
    table = Table(2)
    collective = WatchedCollective(Threads(table, 0, 2), watch)
    waiting = threading.Thread(target=lambda: getattr(collective, call)(*given), daemon=True)
    waiting.start()
    until = time.monotonic() + PATIENCE_SECONDS
    while not late and time.monotonic() < until:
        time.sleep(0.05)
    assert late[0] == f"no answer for 0.3 s to {what}"
    getattr(Threads(table, 1, 2), call)(*given)
    waiting.join(PATIENCE_SECONDS)
    assert not waiting.is_alive()


def test_nothing_is_noticed_after_an_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rank_failure, "LOOK_SECONDS", 0.01)
    late: list[str] = []
    watch = Watch(0.05, late.append)
    end = time.monotonic() + PATIENCE_SECONDS
    with watch.waiting("an answer"):
        while not late and time.monotonic() < end:
            time.sleep(0.01)
    time.sleep(0.5)  # What was noticed at the moment of the answer has been said by now.
    said = len(late)
    time.sleep(0.3)
    assert len(late) == said > 0


def test_a_command_may_be_waited_for_as_long_as_the_leader_likes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(rank_failure, "LOOK_SECONDS", 0.01)
    late: list[str] = []
    table = Table(2)
    collective = WatchedCollective(Threads(table, 1, 2), Watch(0.05, late.append))
    waiting = threading.Thread(target=lambda: collective.command(np.zeros(1)))
    waiting.start()
    time.sleep(0.3)
    Threads(table, 0, 2).command(np.zeros(1))
    waiting.join(PATIENCE_SECONDS)
    assert late == []


START = [sys.executable, "-m", "aiperf_hpc.replica.parallel.start_ranks", "--collective", "torch"]


def start_ranks(ranks: int, script: str) -> subprocess.CompletedProcess[str]:
    command = [*START, "--ranks", str(ranks), "--", sys.executable, "-c", script]
    return subprocess.run(
        command, capture_output=True, text=True, check=False, timeout=PATIENCE_SECONDS
    )


def test_ranks_are_told_their_number_and_where_to_meet() -> None:
    line = "' '.join(os.environ[name] for name in ('RANK', 'WORLD_SIZE', 'MASTER_PORT')) + '\\n'"
    done = start_ranks(3, f"import os; os.write(1, ({line}).encode())")
    assert done.returncode == 0, done.stderr
    rows = sorted(line.split() for line in done.stdout.splitlines())
    assert [row[:2] for row in rows] == [["0", "3"], ["1", "3"], ["2", "3"]]
    assert len({row[2] for row in rows}) == 1


@pytest.mark.parametrize(
    ("what", "status"),
    [("sys.exit(78)", 78), ("os.kill(os.getpid(), 9)", 137)],
)
def test_a_rank_that_ends_badly_ends_the_others_and_its_status_is_told(
    what: str, status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = f"import os, sys, time\nif os.environ['RANK'] == '1': {what}\ntime.sleep(3600)\n"
    done = start_ranks(2, script)  # It ends by itself: the other rank sleeps for an hour.
    assert done.returncode == status


@pytest.mark.parametrize(
    ("blocked", "calls", "what"),
    [
        ("drain_training", ("drain_training",), "training"),
        ("drain_evaluation", ("drain_evaluation",), "evaluation"),
        ("await_room", ("train_step",), "training"),
        ("apply", ("train_step",), "training"),
        ("await_room", ("evaluate_step",), "evaluation"),
        ("statistics", ("train_step", "evaluate_step"), "training"),
        ("checksum", ("train_step", "evaluate_step"), "training"),
    ],
)
def test_a_device_whose_reduction_hangs_is_noticed_where_it_is_waited_for(
    monkeypatch: pytest.MonkeyPatch, blocked: str, calls: tuple[str, ...], what: str
) -> None:
    monkeypatch.setattr(rank_failure, "LOOK_SECONDS", 0.01)
    late: list[str] = []
    over = threading.Event()

    def noticed(reason: str) -> None:
        late.append(reason)
        over.set()

    collective = WatchedCollective(ALONE, Watch(0.05, noticed))
    weights = initial_weights(GRAPH, np.random.default_rng(0))
    local = Quadratic(GRAPH, weights)
    state = NetworkState(GRAPH, weights, USED)
    network = DataParallelNetwork(local, state, collective, CLASSIFICATION)
    later = blocked == "checksum"  # It returns what waits.
    real = local.checksum() if later else getattr(local, blocked)

    def hangs(*given: object) -> object:
        over.wait(PATIENCE_SECONDS)
        return real(*given)

    monkeypatch.setattr(local, blocked, (lambda: hangs) if later else hangs)
    batch = next(Numbered().train(1, 8, 0))
    given: dict[str, tuple[object, ...]] = {
        "train_step": (lambda: batch, 0.1),
        "evaluate_step": (lambda: batch,),
    }
    for call in calls:
        getattr(network, call)(*given.get(call, ()))
    assert late[0] == f"no answer for 0.05 s to its device's {what} steps"
