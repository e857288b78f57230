"""Forgeries of the samples that were executed."""

from __future__ import annotations

from functools import partial
from typing import Any

from tests.forgery.forger import (
    ForgedRun,
    added,
    at,
    event,
    event_of,
    forgeries,
    like,
    of,
    removed,
    repeated,
)

EPOCH = {"train_samples": 2048}
"""What a record of an epoch's training states."""


_progress = partial(event, "progress", where=EPOCH)


def _first(run: ForgedRun, **values: object) -> dict[str, Any]:
    """Return a copy of the first samples, with other values."""
    return {**event_of(run.trainer(), "progress"), **values}


def _a_further_epoch(run: ForgedRun) -> None:
    """A trial executes an epoch more than its evaluations tell of."""
    epoch = _first(run)["epoch"] + 2
    added("evaluated", _first(run, epoch=epoch), number=1)(run)


def _in_a_search_workers_journal(run: ForgedRun) -> None:
    lines = run.trainer()
    run.search().append({**lines[at(lines, "trial_ended") - 1], "event": _first(run)})


def _a_cut_epoch_that_was_nearly_whole(run: ForgedRun) -> None:
    """What the end of the run cut had executed more; no evaluation tells how many there were."""
    of(run.trainer(), "progress")[-1]["event"]["train_samples"] += 77


def _a_batch_more_in_a_cut_epoch(run: ForgedRun) -> None:
    last = of(run.trainer(), "trial_started")[-1]["event"]["hyperparameters"]
    of(run.trainer(), "progress")[-1]["event"]["train_samples"] += last["batch_size"]


forgeries(
    "samples",
    {
        "one more sample": ("samples", _progress(train_samples=2049)),
        "an epoch twice": ("samples", _progress(train_samples=4096)),
        "a record of samples twice": ("samples", repeated("progress")),
        "samples of a further epoch": ("samples", _a_further_epoch),
        "samples after the end of their trial":
            ("samples", lambda run: added("trial_ended", _first(run), seconds=0.5)(run)),
        "validation samples for training samples":
            ("samples", _progress(train_samples=1536, validation_samples=512)),
        "samples of a trial that there was not":
            ("journals", lambda run: added("progress", _first(run, trial="r0-t99"), behind=0)(run)),
        "samples of another replicas trial":
            ("journals", lambda run: added("progress", _first(run, trial="r1-t1"), behind=0)(run)),
        "samples in a search workers journal": ("writers", _in_a_search_workers_journal),
        "samples in the primarys journal":
            ("writers", lambda run: run.primary.insert(-1, like(run.primary[-2], _first(run)))),
        "samples below zero": ("journals", _progress(train_samples=-1)),
        "half a sample": ("journals", event("progress", train_samples=2048.5)),
        "an evaluation without its samples":
            ("samples", removed("progress", validation_samples=512)),
        "a cut epoch that was nearly whole": ("samples", _a_cut_epoch_that_was_nearly_whole),
        "a batch more in a cut epoch": (None, _a_batch_more_in_a_cut_epoch),
    },
)  # fmt: skip
