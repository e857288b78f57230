"""``aiperf logs``: events of the journals in chronological order, and output of the processes."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

from aiperf_hpc.cli.output import say, say_lines
from aiperf_hpc.cli.parameters import Run, flag, option
from aiperf_hpc.errors import UsageError
from aiperf_hpc.formatting import utc_text
from aiperf_hpc.host.processes import ending_early, interruptible
from aiperf_hpc.run.journal import JournalReader
from aiperf_hpc.run.manifest import RunManifest
from aiperf_hpc.run.paths import RunPaths
from aiperf_hpc.run.records import Record, RunEnded
from aiperf_hpc.untrusted.files import last_lines_inside

LOOK_SECONDS = 1.0
PERIODIC = ("progress", "heartbeat", "primary_heartbeat", "time_spent", "step_times")
"""Periodic records, which are no events."""
MOST_OUTPUT_BYTES = 4 * 2**20
"""Bytes at the end of an output file that are read: 1,000 lines, and progress bars."""
LONGEST = 120
"""Maximum characters of a value; longer ones, e.g. descriptions of nodes, are omitted."""
Replica = Annotated[str | None, option("--replica", "N", "Show only this replica, e.g. 0 or r0.")]
Lines = Annotated[
    int,
    option(
        "--lines",
        "N",
        "Number of lines to show of each output, and number of events.",
        min=1,
    ),
]
Follow = Annotated[bool, flag("--follow", "Follow the events until the run ends.")]


def logs(run: Run, replica: Replica = None, lines: Lines = 20, follow: Follow = False) -> int:
    """Show a run's events and the output of its processes.

    Prints each output file's name and last lines, then the events from all journals in
    chronological order (UTC). Periodic records are omitted.

    Examples:
      $ aiperf logs last
      $ aiperf logs last --replica 0 --lines 100
      $ aiperf logs last --follow
    """
    paths = RunPaths(run)
    RunManifest.load(paths)
    only = None if replica is None else f"r{replica.removeprefix('r')}"
    if only is not None and not paths.replica(only).is_dir():
        raise UsageError(f"{run} has no replica {only}")
    for file in _outputs(paths, only):
        last = last_lines_inside(paths.root, file, lines, MOST_OUTPUT_BYTES)
        if last:
            say_lines([f"==> {file} <==", *last, ""])
    readers: dict[Path, JournalReader] = {}
    events = _new(paths, only, readers)
    for record, who in events[-lines:]:
        say(event_line(record, who))
    if follow and not any(isinstance(record.event, RunEnded) for record, _ in events):
        _follow(paths, only, readers)
    return 0


def _follow(paths: RunPaths, only: str | None, readers: dict[Path, JournalReader]) -> None:
    message = f"no longer followed; `aiperf status {paths.root}` shows the state of the run"
    ended = False
    with ending_early(lambda: message), interruptible():
        while not ended:
            time.sleep(LOOK_SECONDS)
            for record, who in _new(paths, only, readers):
                say(event_line(record, who))
                ended |= isinstance(record.event, RunEnded)


def _new(
    paths: RunPaths, only: str | None, readers: dict[Path, JournalReader]
) -> list[tuple[Record, str]]:
    """Return the events since the last call, sorted by time, with their journals."""
    found = []
    for path in {paths.primary_journal, *paths.journals(only)}:
        reader = readers.setdefault(path, JournalReader(path))
        who = "primary" if path == paths.primary_journal else path.parent.parent.name
        found += [(record, who) for record in reader.read() if _tells(record)]
    return sorted(found, key=lambda each: (each[0].utc, each[1], each[0].seq))


def _tells(record: Record) -> bool:
    return record.event.type not in PERIODIC and "sample" not in record.event.type


def event_line(record: Record, who: str) -> str:
    """Return an event in one line: time, source, event, and its short values."""
    values = record.event.model_dump(mode="json", exclude={"type"}, exclude_defaults=True)
    short = {name: str(value) for name, value in values.items() if value not in (None, "")}
    values_text = "  ".join(f"{n}={value}" for n, value in short.items() if len(value) <= LONGEST)
    what = record.event.type.replace("_", " ")
    return f"{utc_text(record.utc)}  {who}  {what}  {values_text}".rstrip()


def _outputs(paths: RunPaths, only: str | None) -> Iterator[Path]:
    """Yield the existing output files of the processes and of the scheduler."""
    if only is not None:
        yield paths.replica_log(only)
        return
    yield paths.primary_log
    if paths.replicas.is_dir():
        for folder in sorted(paths.replicas.iterdir(), key=lambda each: (len(each.name), each)):
            yield paths.replica_log(folder.name)
