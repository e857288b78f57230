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


def with_digests(forge: Forge) -> Forge:
    """Return a change after which all digests of journals are made again."""

    def change(run: ForgedRun) -> None:
        forge(run)
        run.save()
        run.forget()
        take_heads(run, lambda _head, _utc: None)
        run.forget()

    return change


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
    with_digests(lambda _run: None)(run)
    return run.paths


def _without_digests(run: ForgedRun) -> None:
    run.primary[:] = [line for line in run.primary if line["event"]["type"] not in OF_HEADS]
    run.paths.journal_digests.unlink()


@forgery(KIND, "digests", COMPLETE)
def no_digests_and_a_longer_journal(run: ForgedRun) -> None:
    """The primary recorded no digests, so that records can be added later."""
    _without_digests(run)
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


def _without(*kinds: str) -> Forge:
    """Leave out all records of these kinds."""

    def change(run: ForgedRun) -> None:
        for lines in run.everywhere():
            lines[:] = [line for line in lines if line["event"]["type"] not in kinds]

    return with_digests(change)


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
        "no digest of the manifest of the run": ("config", with_digests(_no_digest_of_run_yaml)),
        "no study": ("study", with_digests(_no_study)),
        "the launcher of a simulation": ("config", with_digests(_a_simulation)),
        "the format of an earlier version": ("config", with_digests(run_yaml(schema_version=1))),
    },
    COMPLETE,
)
