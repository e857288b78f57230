"""A run whose heads were taken and witnessed while it lasted, and what a cheat makes of them later.

Heads have no key, so that a cheat takes all of them anew; what a witness signed stays as it is.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

from tests.forgery.forger import ForgedRun, Line
from tests.support.clock import Clock

from aiperf_hpc.primary.control.journal_digests import JournalDigests
from aiperf_hpc.run.journal import JournalWriter
from aiperf_hpc.run.journal_digest import JournalDigest, new_hash
from aiperf_hpc.run.paths import write_whole
from aiperf_hpc.run.records import Witnessed
from aiperf_hpc.service.witness_server.log import WitnessLog

SECONDS: Final = 30.0
"""Between two heads."""
URL: Final = "https://witness.example.org"
OF_HEADS: Final = ("digests_recorded", "witnessed")

Show = Callable[[JournalDigest, float], Line | None]
"""What shows a head at a time, UTC seconds, and returns the answer as an event, if there is one."""


class Witness:
    """A witness of one run, with the run's own time."""

    def __init__(self, folder: Path, run_id: str) -> None:
        self.clock = Clock()
        self.log = WitnessLog(folder, most_bytes=10**7, utc=self.clock.utc)
        self.key = self.log.key.public
        self._run_id = run_id

    def show(self, head: JournalDigest, utc: float) -> Line:
        self.clock.advance(utc - self.clock.utc())
        (statement,) = self.log.add(self._run_id, "t" * 32, head, 0)[-1:]
        event = Witnessed(url=URL, key=self.key.fingerprint, statement=statement)
        return event.model_dump(mode="json")


def said_before(run: ForgedRun) -> Show:
    """Return what gives a witness's answers again, whatever it is shown: nobody else can sign."""
    answers = iter([line["event"] for line in run.primary if line["event"]["type"] == "witnessed"])
    return lambda _head, _utc: next(answers, None)


def take_heads(run: ForgedRun, show: Show) -> None:
    """Take the heads of a run's journals as if it grew, and write the primary's anew."""
    paths = run.paths
    lines = [line for line in run.primary if line["event"]["type"] not in OF_HEADS]
    others = {path: _Journal(path) for path in paths.journals() if path != paths.primary_journal}
    history = SimpleNamespace(paths=paths, lock=threading.RLock(), hashes={})
    paths.journal_digests.unlink(missing_ok=True)
    clock, made = Clock(), _Primary()
    with JournalWriter(paths.journal_digests, clock=clock) as own:
        taker = JournalDigests(history, own, own, seconds=SECONDS)  # type: ignore[arg-type]
        for before, after, at in _turns(lines):
            made.add(*before)
            clock.advance(at["utc"] - clock.utc())
            history.hashes = {path: each.until(at["utc"]) for path, each in others.items()}
            taken = taker.take(at["utc"]).model_dump(mode="json")
            made.add({**at, "event": taken}, *after)
            answer = show(made.head, at["utc"])
            if answer is not None:
                made.add({**at, "event": answer})
    write_whole(paths.primary_journal, made.text)


def _turns(lines: list[Line]) -> Iterator[tuple[list[Line], list[Line], Line]]:
    """Yield the primary's records before each head and with it, and one of the same time."""
    begin, due = 0, lines[0]["utc"] + SECONDS
    for number, line in enumerate(lines):
        if line["event"]["type"] == "run_ended":
            yield lines[begin:number], lines[number:], line
            return
        if line["utc"] >= due:
            yield lines[begin : number + 1], [], line
            begin, due = number + 1, line["utc"] + SECONDS


class _Journal:
    """A journal that grows."""

    def __init__(self, path: Path) -> None:
        self._left = path.read_bytes().splitlines(keepends=True)
        self._at, self._size, self._sha = 0, 0, new_hash()

    def until(self, utc: float) -> tuple[int, Any]:
        while self._at < len(self._left) and json.loads(self._left[self._at])["utc"] <= utc:
            self._sha.update(self._left[self._at])
            self._size += len(self._left[self._at])
            self._at += 1
        return self._size, self._sha


class _Primary:
    """The primary's journal as it is written."""

    def __init__(self) -> None:
        self.text = ""
        self._count = 0

    def add(self, *lines: Line) -> None:
        for line in lines:
            self.text += f"{json.dumps({**line, 'seq': self._count})}\n"
            self._count += 1

    @property
    def head(self) -> JournalDigest:
        content, sha = self.text.encode(), new_hash()
        sha.update(content)
        return JournalDigest(bytes=len(content), sha256=sha.hexdigest())


def witnessed(base: ForgedRun, folder: Path, run_id: str) -> Witness:
    """Let a run have been witnessed; return by whom."""
    witness = Witness(folder, run_id)
    take_heads(base, witness.show)
    return witness
