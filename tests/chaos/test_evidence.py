"""The independent count of the chaos runs detects lost, changed and repeated records."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.chaos.evidence import ChaosCounts, gather

START = 1000.0
TRIAL = {"trial": "t1", "train_operations": 30, "validation_operations": 10}


def record(seq: int, utc: float, kind: str, **event: object) -> dict[str, Any]:
    return {"v": 1, "seq": seq, "utc": START + utc, "mono": utc, "event": {"type": kind, **event}}


def progress(seq: int, utc: float) -> dict[str, Any]:
    return record(seq, utc, "progress", trial="t1", train_samples=2, validation_samples=1)


class MadeRun:
    """A run directory of a few lines: two lives of a replica, of which the first ran on."""

    def __init__(self, folder: Path) -> None:
        self.root, self.notes = folder / "run", folder / "acknowledged"
        self.notes.mkdir()
        self.primary = self._write(
            "primary/journal.jsonl",
            [record(0, 0.0, "run_started"), record(1, 10.0, "run_ended")],
        )
        self._write("primary/digest.jsonl", [])
        self.first = self._write(
            "replicas/r0/0.0/journal.jsonl",
            [
                record(0, 1.0, "replica_started"),
                record(1, 2.0, "trial_started", **TRIAL),
                progress(2, 3.0),
                record(3, 3.5, "evaluated", sums={"correct": 3}, samples=4),
                progress(4, 6.0),  # After the second life's start.
            ],
        )
        self._write("replicas/r0/0.0/search-0.jsonl", [record(0, 2.0, "search_started")])
        self.second = self._write(
            "replicas/r0/0.1/journal.jsonl",
            [record(0, 5.0, "replica_started"), progress(1, 7.0), progress(2, 11.0)],
        )

    def _write(self, name: str, records: list[dict[str, Any]]) -> Path:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(f"{json.dumps(r)}\n" for r in records), "utf-8")
        return path

    def acknowledge(self, path: Path) -> None:
        """Let the writer of a journal have been promised all that is in it now."""
        lines = path.read_bytes().splitlines()
        promised = [f"{hashlib.sha256(li).hexdigest()} {n} {path}\n" for n, li in enumerate(lines)]
        (self.notes / "1-1").write_text("".join(promised), "utf-8")

    def gather(self) -> ChaosCounts:
        return gather(self.root, self.notes, [])


@pytest.fixture
def made(tmp_path: Path) -> MadeRun:
    return MadeRun(tmp_path)


def test_the_clock_of_a_queued_run_starts_with_its_first_node(made: MadeRun) -> None:
    begun = record(0, 0.0, "run_started", clock_starts="first")
    clock = record(1, 6.0, "clock_started", start_utc=START + 4.0)
    again = record(2, 7.0, "run_started", clock_starts="first")
    lines = [begun, clock, again, record(3, 10.0, "run_ended")]
    made.primary.write_text("".join(f"{json.dumps(line)}\n" for line in lines), "utf-8")
    assert made.gather().elapsed == 6.0


def test_fenced_records_are_not_counted_and_the_score_is_of_the_others(made: MadeRun) -> None:
    made.acknowledge(made.second)
    found = made.gather()
    assert found.problems == []
    assert (found.lines, found.counted, found.fenced) == (11, 10, 1)
    assert found.acknowledged == 3
    # Two of the four: one is fenced, one is later than the end of the run.
    assert found.operations == 2 * (2 * 30 + 1 * 10)
    assert found.elapsed == 10.0
    assert found.regulated == pytest.approx(-math.log(0.25) * 14.0)


def drop_acknowledged(made: MadeRun) -> None:
    made.acknowledge(made.second)
    lines = made.second.read_bytes().splitlines(keepends=True)
    made.second.write_bytes(b"".join(lines[:-1]))


def change_acknowledged(made: MadeRun) -> None:
    made.acknowledge(made.second)
    made.second.write_bytes(made.second.read_bytes().replace(b"1007.0", b"1007.5"))


def cut_within(made: MadeRun) -> None:
    made.first.write_bytes(made.first.read_bytes().replace(b'"seq": 3', b'"seq" 3'))


def repeat_a_number(made: MadeRun) -> None:
    made.first.write_bytes(made.first.read_bytes().replace(b'"seq": 3', b'"seq": 2'))


def tear_after_the_end(made: MadeRun) -> None:
    with made.primary.open("ab") as file:
        file.write(b'{"v": 1, ')


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (drop_acknowledged, "record 2 was acknowledged and is not there"),
        (change_acknowledged, "record 1 was acknowledged and is not there"),
        (cut_within, "line 4: no JSON"),
        (repeat_a_number, "line 4: number 2, not 3"),
        (tear_after_the_end, "unfinished line although its writer ended in order"),
    ],
)
def test_losses_and_damage(made: MadeRun, damage: Callable[[MadeRun], None], said: str) -> None:
    damage(made)
    problems = made.gather().problems
    assert len(problems) == 1
    assert said in problems[0]


def test_a_killed_writer_may_leave_an_unfinished_line_and_tracebacks_count(made: MadeRun) -> None:
    with made.second.open("ab") as file:
        file.write(b'{"v": 1, ')
    log = made.root / "replicas" / "r0" / "output.log"
    log.write_text("Traceback (most recent call last):\n", "utf-8")
    found = made.gather()
    assert found.problems == []
    assert (found.unfinished, found.tracebacks) == (1, 1)
