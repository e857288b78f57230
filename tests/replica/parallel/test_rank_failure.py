"""A wait that times out ends the process, after its reason is recorded."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from contextlib import nullcontext
from pathlib import Path
from typing import NoReturn

import numpy as np
import pytest
from tests.replica.parallel.team import Quadratic, initial_state, numbered
from tests.replica.parallel.threads import Table, Threads, run_ranks
from tests.support.waiting import PATIENCE_SECONDS, until

from aiperf_hpc.errors import UNEXPECTED_STATUS
from aiperf_hpc.objective import CLASSIFICATION
from aiperf_hpc.replica.parallel import rank_failure
from aiperf_hpc.replica.parallel.collectives import ALONE, Array
from aiperf_hpc.replica.parallel.data_parallel import DataParallelNetwork
from aiperf_hpc.replica.parallel.rank_failure import RankFailureReporter, Watch, WatchedCollective
from aiperf_hpc.run.journal import JournalReader, JournalWriter
from aiperf_hpc.run.records import RanksLost

HOSTS = ("n1", "n2", "n3")


class _Over(Exception):  # noqa: N818
    """Raised in place of the end of the process."""


def end(status: int) -> NoReturn:
    assert status == UNEXPECTED_STATUS
    raise _Over


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rank_failure, "GRACE_SECONDS", 0.3)
    monkeypatch.setattr(rank_failure, "WRITING_SECONDS", 0.1)


@pytest.mark.parametrize(
    ("waiting", "file", "lost", "reason"),
    [
        ((0, 2), "journal.jsonl", (1,), "rank 1 on n2 died or hangs"),
        ((1, 2), "rank-1.jsonl", (0,), "rank 0 on n1 died or hangs"),
        ((0, 1, 2), "journal.jsonl", (), "the ranks wait for each other"),
    ],
)
def test_the_first_remaining_rank_records_the_lost_ones(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    waiting: tuple[int, ...],
    file: str,
    lost: tuple[int, ...],
    reason: str,
) -> None:
    """Rank 0 in the replica's journal, another rank in its own."""

    def run(rank: int) -> None:
        own = JournalWriter(tmp_path / "journal.jsonl") if rank == 0 else None
        with pytest.raises(_Over), own or nullcontext():
            RankFailureReporter(tmp_path, rank, HOSTS, own, end).end("no answer for 25 s")

    run_ranks(run, waiting)
    reason += ": no answer for 25 s"
    (record,) = JournalReader(tmp_path / file).read()
    assert record.event == RanksLost(ranks=lost, reason=reason)
    assert [path.name for path in tmp_path.glob("*.jsonl")] == [file]
    printed = capsys.readouterr().err
    assert all(f"aiperf: rank {rank}: {reason}\n" in printed for rank in waiting)


def test_a_process_that_cannot_write_ends_too(tmp_path: Path) -> None:
    with pytest.raises(_Over):
        RankFailureReporter(tmp_path / "gone", 1, HOSTS, end_process=end).end("no answer")


@pytest.mark.parametrize(
    ("call", "given", "what"),
    [
        ("allreduce_sum", (np.zeros(1),), "an agreement of all ranks"),
        ("barrier", (), "a barrier"),
        ("gather", (np.zeros(1),), "a comparison of all ranks"),
        ("broadcast", (np.zeros(1),), "a broadcast"),
        ("command", (np.zeros(1),), "a command"),
    ],
)
def test_a_wait_of_rank_0_times_out(call: str, given: tuple[Array, ...], what: str) -> None:
    late: list[str] = []
    table = Table(2)
    collective = WatchedCollective(Threads(table, 0, 2), Watch(0.3, late.append))
    waiting = threading.Thread(target=lambda: getattr(collective, call)(*given), daemon=True)
    waiting.start()
    until(lambda: late)
    assert late[0] == f"no answer for 0.3 s to {what}"
    getattr(Threads(table, 1, 2), call)(*given)
    waiting.join(PATIENCE_SECONDS)
    assert not waiting.is_alive()


def test_an_answer_ends_the_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rank_failure, "LOOK_SECONDS", 0.01)
    late: list[str] = []
    watch = Watch(0.05, late.append)
    with watch.waiting("an answer"):
        until(lambda: late)
    time.sleep(0.5)  # A timeout at the moment of the answer has been reported by now.
    before = len(late)
    time.sleep(0.3)
    assert len(late) == before


def test_a_following_rank_waits_for_a_command_without_a_timeout(
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


START = """
import sys
from aiperf_hpc.replica.parallel import start_ranks
start_ranks.GRACE_SECONDS = 0.1
sys.exit(start_ranks.main())
"""


def start_ranks(ranks: int, script: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", START, "--collective", "torch", "--ranks", str(ranks)]
    command += ["--", sys.executable, "-c", script]
    return subprocess.run(
        command, capture_output=True, text=True, check=False, timeout=PATIENCE_SECONDS
    )


def test_started_ranks_have_their_number_and_a_rendezvous_address() -> None:
    line = "' '.join(os.environ[name] for name in ('RANK', 'WORLD_SIZE', 'MASTER_PORT')) + '\\n'"
    done = start_ranks(3, f"import os; os.write(1, ({line}).encode())")
    assert done.returncode == 0, done.stderr
    rows = sorted(line.split() for line in done.stdout.splitlines())
    assert [row[:2] for row in rows] == [["0", "3"], ["1", "3"], ["2", "3"]]
    assert len({row[2] for row in rows}) == 1


@pytest.mark.parametrize(
    ("what", "status"), [("sys.exit(78)", 78), ("os.kill(os.getpid(), 9)", 137)]
)
def test_a_failed_rank_ends_the_others_and_its_status_is_returned(what: str, status: int) -> None:
    script = f"import os, sys, time\nif os.environ['RANK'] == '1': {what}\ntime.sleep(3600)\n"
    assert start_ranks(2, script).returncode == status


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
def test_a_wait_for_a_device_whose_reduction_hangs_times_out(
    monkeypatch: pytest.MonkeyPatch, blocked: str, calls: tuple[str, ...], what: str
) -> None:
    monkeypatch.setattr(rank_failure, "LOOK_SECONDS", 0.01)
    late: list[str] = []
    over = threading.Event()

    def report(reason: str) -> None:
        late.append(reason)
        over.set()

    collective, state = WatchedCollective(ALONE, Watch(0.05, report)), initial_state()
    local = Quadratic(state.graph, state.weights)
    network = DataParallelNetwork(local, state, collective, CLASSIFICATION)
    later = blocked == "checksum"  # Its result waits.
    real = local.checksum() if later else getattr(local, blocked)

    def hangs(*given: object) -> object:
        over.wait(PATIENCE_SECONDS)
        return real(*given)

    monkeypatch.setattr(local, blocked, (lambda: hangs) if later else hangs)
    batch = next(numbered().train(1, 8, 0))
    given: dict[str, tuple[object, ...]] = {
        "train_step": (lambda: batch, 0.1),
        "evaluate_step": (lambda: batch,),
    }
    for call in calls:
        getattr(network, call)(*given.get(call, ()))
    assert late[0] == f"no answer for 0.05 s to its device's {what} steps"
