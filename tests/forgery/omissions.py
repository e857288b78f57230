"""Records that this version always writes, left out of a real run, and its digests made again."""

from __future__ import annotations

from tests.forgery.forger import (
    COMPLETE,
    Forge,
    ForgedRun,
    Line,
    at,
    forgeries,
    forgery,
    of,
    run_yaml,
)
from tests.forgery.witnessed import OF_HEADS, take_heads

KIND = "omissions"


def with_digests(forge: Forge) -> Forge:
    """Return a change after which all digests of journals are made again."""

    def change(run: ForgedRun) -> None:
        forge(run)
        run.save()
        run.forget()
        take_heads(run, lambda _head, _utc: None)
        run.forget()

    return change


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


forgeries(
    KIND,
    {
        "the launcher of a simulation": ("config", with_digests(_a_simulation)),
        "the format of an earlier version": ("config", with_digests(run_yaml(schema_version=1))),
    },
    COMPLETE,
)
