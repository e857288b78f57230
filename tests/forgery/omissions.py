"""Records that this version always writes, left out of a real run, and its digests made again."""

from __future__ import annotations

import tarfile
from pathlib import Path

from tests.forgery.forger import (
    COMPLETE,
    Forge,
    ForgedRun,
    Line,
    at,
    both,
    event_of,
    forgeries,
    forgery,
    of,
    run_yaml,
)
from tests.forgery.witnessed import OF_HEADS, take_heads

from aiperf_hpc.run.paths import FIRST, RunPaths

KIND = "omissions"
DATA = Path(__file__).parents[1] / "data"


def make_digests_again(run: ForgedRun) -> None:
    """Make all digests of journals again."""
    run.save()
    run.forget()
    take_heads(run, lambda _head, _utc: None)
    run.forget()


def recorded(archive: Path, root: Path) -> RunPaths:
    """Unpack a run that was recorded, without its report."""
    with tarfile.open(archive) as file:
        file.extractall(root.parent, filter="data")
    return RunPaths(root)


def complete(root: Path) -> RunPaths:
    """Unpack a run of this version, and make its digests again for the lines that a forger writes.

    Heartbeats take the place of what replicas saw of the digests, as if they had read none.
    """
    run = ForgedRun(recorded(DATA / "complete_run.tar.gz", root))
    heartbeat = event_of(run.trainer(), "heartbeat")
    for line in of(run.trainer(), "primary_digest_seen"):
        line["event"] = heartbeat
    make_digests_again(run)
    return run.paths


@forgery(KIND, "digests", COMPLETE)
def no_digests_and_a_longer_journal(run: ForgedRun) -> None:
    """The primary recorded no digests, so that records can be added later."""
    run.primary[:] = [line for line in run.primary if line["event"]["type"] not in OF_HEADS]
    run.paths.journal_digests.unlink()
    lines = run.trainer()
    last = at(lines, "progress", -1)
    lines.insert(last, {**lines[last], "event": {**lines[last]["event"], "train_samples": 1}})


@forgery(KIND, "digests", COMPLETE)
def an_end_by_a_command_instead_of_the_primary(run: ForgedRun) -> None:
    """Such an end recorded no digests in earlier versions."""
    lines = run.primary
    end = at(lines, "run_ended")
    taken: Line = {"type": "taken_over", "command": "stop", "host": "node1", "pid": 1}
    lines[at(lines, "digests_recorded", -1)] = {**lines[end], "event": taken}


def _a_simulation(run: ForgedRun) -> None:
    run_yaml(launcher="simulated")(run)
    for line in of(run.primary, "run_started"):
        line["event"]["launcher"] = "simulated"


def _without(kind: str) -> Forge:
    """Leave out all records of a kind."""

    def change(run: ForgedRun) -> None:
        for lines in run.everywhere():
            lines[:] = [line for line in lines if line["event"]["type"] != kind]

    return both(change, make_digests_again)


def _no_digest_of_run_yaml(run: ForgedRun) -> None:
    for line in (line for lines in run.everywhere() for line in lines):
        if "manifest_sha256" in line["event"]:
            line["event"]["manifest_sha256"] = ""


def _no_study(run: ForgedRun) -> None:
    run.paths.study("r0", FIRST).unlink()


forgeries(
    KIND,
    {
        "no reading of clocks": ("timekeeping", _without("clocks_read")),
        "no description of systems": ("machines", _without("system_described")),
        "no best epochs": ("best epochs", _without("best_epoch_saved")),
        "no digest of the manifest of the run": (
            "config",
            both(_no_digest_of_run_yaml, make_digests_again),
        ),
        "no study": ("study", both(_no_study, make_digests_again)),
        "the launcher of a simulation": ("config", both(_a_simulation, make_digests_again)),
        "the format of an earlier version": (
            "config",
            both(run_yaml(schema_version=1), make_digests_again),
        ),
    },
    COMPLETE,
)
