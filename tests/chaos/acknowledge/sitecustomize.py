"""Writes down, outside of the run, each record of which a journal's writer said that it is kept.

Python runs this at its start where it is on the path: so every process of a run has it, and the
code under test is what it is. The line is written after ``append_all`` has returned; a process
that is killed in between has been promised one record more than is written down here.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Sequence

from aiperf_hpc.run.journal import JournalWriter
from aiperf_hpc.run.records import AnyEvent, Record

_append_all = JournalWriter.append_all
_files: list[int] = []


def _file() -> int:
    if not _files:
        folder = os.environ["AIPERF_CHAOS_ACKNOWLEDGED"]
        name = f"{folder}/{os.getpid()}-{time.time_ns()}"
        _files.append(os.open(name, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644))
    return _files[0]


def _acknowledged(self: JournalWriter, events: Sequence[AnyEvent]) -> list[Record]:
    written = _append_all(self, events)
    for record in written:
        digest = hashlib.sha256(record.model_dump_json().encode()).hexdigest()
        os.write(_file(), f"{digest} {record.seq} {self.path}\n".encode())
    return written


JournalWriter.append_all = _acknowledged  # type: ignore[method-assign]
