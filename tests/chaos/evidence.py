"""An independent evaluation of a run's records, without the code that writes or reads them.

Plain JSON and sums. The rule of fencing is written again here from docs/decisions/fencing.md:
a record of a life counts if its UTC time is earlier than the first record of every greater life
of the same replica.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

Replica = tuple[int, int]
ENDS = ("replica_ended", "search_ended", "run_ended")
TRACEBACK = b"Traceback (most recent call last)"


@dataclass
class Journal:
    """One file: its whole lines, and what follows the last of them."""

    path: Path
    replica: str
    """Empty for the primary's."""
    life: Replica
    lines: list[bytes]
    torn: bytes
    records: list[dict[str, Any]] = field(default_factory=list)


@dataclass
class ChaosCounts:
    """What was found in one run."""

    lines: int = 0
    """Whole lines in the primary's, the replicas' and the search workers' journals."""
    counted: int = 0
    fenced: int = 0
    unfinished: int = 0
    """Last lines without an end, of writers that were killed."""
    set_aside: int = 0
    """Unfinished lines that a later writer moved to a file of their own."""
    acknowledged: int = 0
    """Records of which a writer was told that they are on stable storage."""
    tracebacks: int = 0
    operations: int = 0
    elapsed: float = 0.0
    regulated: float | None = None
    problems: list[str] = field(default_factory=list)

    @property
    def ops(self) -> float:
        """Operations a second."""
        return self.operations / self.elapsed if self.elapsed > 0 else 0.0


def gather(root: Path, acknowledged: Path, outputs: list[Path]) -> ChaosCounts:
    """Read all that a run has left.

    Args:
        root: the run directory.
        acknowledged: where its processes wrote down what they were promised.
        outputs: what its primaries said, besides the replicas' own logs.
    """
    found = ChaosCounts()
    journals = [_journal(path, root) for path in sorted(root.glob("replicas/*/*/*.jsonl"))]
    primary = _journal(root / "primary" / "journal.jsonl", root)
    digest = _journal(root / "primary" / "digest.jsonl", root)
    for journal in (primary, digest, *journals):
        found.problems += _parse(journal)
    _count(found, [primary, *journals])
    found.set_aside = len(list(root.rglob("*.torn-*")))
    _promises(found, {j.path: j for j in (primary, digest, *journals)}, acknowledged)
    _score(found, primary, journals)
    logs = [*outputs, *root.glob("replicas/*/output.log"), *root.glob("primary/output.log")]
    found.tracebacks = sum(log.read_bytes().count(TRACEBACK) for log in logs)
    return found


def _journal(path: Path, root: Path) -> Journal:
    *lines, torn = path.read_bytes().split(b"\n")
    replica, life = "", (0, 0)
    if path.is_relative_to(root / "replicas"):
        launch, restart = path.parent.name.split(".")
        replica, life = path.parent.parent.name, (int(launch), int(restart))
    return Journal(path, replica, life, lines, torn)


def _parse(journal: Journal) -> Iterator[str]:
    """Read the lines as JSON; yield what is wrong with them."""
    for number, line in enumerate(journal.lines):
        try:
            record = json.loads(line)
        except ValueError:
            yield f"{journal.path}, line {number + 1}: no JSON: {line[:80]!r}"
            continue
        if record["seq"] != number:
            yield f"{journal.path}, line {number + 1}: number {record['seq']}, not {number}"
        journal.records.append(record)
    last = journal.records[-1]["event"]["type"] if journal.records else ""
    if journal.torn and last in ENDS:
        yield f"{journal.path}: an unfinished line although its writer ended in order"


def _count(found: ChaosCounts, journals: list[Journal]) -> None:
    fences = _fences(journals)
    for journal in journals:
        found.lines += len(journal.lines)
        found.unfinished += bool(journal.torn)
        fence = fences(journal)
        journal.records = [r for r in journal.records if r["utc"] < fence]
        found.counted += len(journal.records)
    found.fenced = found.lines - found.counted


class _fences:  # noqa: N801 -- used as a function
    """From when on the records of a journal do not count, UTC seconds."""

    def __init__(self, journals: list[Journal]) -> None:
        self._first: dict[str, dict[Replica, float]] = defaultdict(dict)
        for journal in journals:
            if journal.replica and journal.records:
                lives = self._first[journal.replica]
                first = journal.records[0]["utc"]
                lives[journal.life] = min(first, lives.get(journal.life, math.inf))

    def __call__(self, journal: Journal) -> float:
        later = (u for life, u in self._first[journal.replica].items() if life > journal.life)
        return min(later, default=math.inf)


def _promises(found: ChaosCounts, journals: dict[Path, Journal], acknowledged: Path) -> None:
    """Require every record that a writer was promised to be in its place, byte for byte."""
    for path in acknowledged.iterdir():
        for line in path.read_text("utf-8").splitlines():
            digest, number, name = line.split(" ", 2)
            journal = journals.get(Path(name))
            if journal is None:
                continue  # Of another run.
            found.acknowledged += 1
            seq = int(number)
            kept = journal.lines[seq] if seq < len(journal.lines) else b""
            if hashlib.sha256(kept).hexdigest() != digest:
                found.problems.append(f"{name}: record {seq} was acknowledged and is not there")


def _score(found: ChaosCounts, primary: Journal, journals: list[Journal]) -> None:
    """Sum what counts, from the start of the run's clock to its last end."""
    begun = [r for r in primary.records if r["event"]["type"] == "run_started"]
    starts = [r["utc"] for r in begun if r["event"].get("clock_starts", "now") == "now"]
    events = [r["event"] for r in primary.records]
    starts += [e["start_utc"] for e in events if e["type"] == "clock_started"]
    ends = [r["utc"] for r in primary.records if r["event"]["type"] == "run_ended"]
    if not starts or not ends:
        found.problems.append(f"{primary.path}: the run has {len(starts)} starts, {len(ends)} ends")
        return
    found.elapsed = ends[-1] - starts[0]
    events = [r["event"] for journal in journals for r in journal.records if r["utc"] <= ends[-1]]
    trials = {e["trial"]: e for e in events if e["type"] == "trial_started"}
    right: list[float] = []
    for event in events:
        if event["type"] == "progress":
            trial = trials[event["trial"]]
            found.operations += event["train_samples"] * trial["train_operations"]
            found.operations += event["validation_samples"] * trial["validation_operations"]
        elif event["type"] == "evaluated":
            # Never better than one sample wrong: docs/decisions/score.md.
            right.append(min(event["sums"]["correct"], event["samples"] - 1) / event["samples"])
    if right:
        found.regulated = -math.log(1.0 - max(right)) * found.ops
