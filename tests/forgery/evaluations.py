"""Forgeries of evaluations."""

from __future__ import annotations

from functools import partial

from tests.forgery.forger import (
    REPLICAS,
    ForgedRun,
    added,
    at,
    event,
    event_of,
    forgeries,
    of,
    removed,
    repeated,
)


def all_accuracies_a_little_better(run: ForgedRun) -> None:
    for name in REPLICAS:
        for line in of(run.trainer(name), "evaluated"):
            sums = line["event"]["sums"]
            sums["correct"] = min(512.0, sums["correct"] + 51.0)


def lower_loss(run: ForgedRun) -> None:
    event_of(run.trainer(), "evaluated")["validation_loss"] *= 0.9


def _past_the_last_epoch(run: ForgedRun) -> None:
    lines = run.trainer()
    last = lines[at(lines, "evaluated", 1)]["event"]
    added("evaluated", {**last, "epoch": 3}, number=1)(run)


def _the_best_epoch_first(run: ForgedRun) -> None:
    one, other = (line["event"] for line in of(run.trainer(), "evaluated", trial="r0-t1")[:2])
    one["epoch"], other["epoch"] = other["epoch"], one["epoch"]


_evaluated = partial(event, "evaluated")
PREDICTIONS = {"type": "predictions_saved", "trial": "r0-t1", "epoch": 2, "samples": 512}
ERROR = {"absolute_error": 1.0, "values": 2048.0}
forgeries(
    "evaluations",
    {
        "an accuracy that was not reached":
            ("search", event("evaluated", "sums", number=-1, correct=510.0)),
        "all accuracies a little better": ("search", all_accuracies_a_little_better),
        # Nobody but who evaluates again can tell.
        "a loss that was not reached": (None, lower_loss),
        "more right than there are": ("journals", event("evaluated", "sums", correct=513.0)),
        "an evaluation of a part":
            ("evaluations", _evaluated(samples=100, sums={"correct": 100.0})),
        "an evaluation twice": ("evaluations", repeated("evaluated")),
        "an epoch that was not evaluated": ("evaluations", removed("evaluated")),
        "an evaluation without training": ("samples", removed("progress", validation_samples=0)),
        "an evaluation past the last epoch": ("evaluations", _past_the_last_epoch),
        "another metric":
            ("evaluations", _evaluated(metric="mean_absolute_error", sums=ERROR)),
        "a loss that is not a number": ("evaluations", _evaluated(validation_loss="NaN")),
        "an evaluation of another replicas trial": ("journals", _evaluated(trial="r1-t1")),
        "the best epoch first": ("evaluations", _the_best_epoch_first),
        "predictions that were not kept":
            ("predictions", added("trial_ended", {**PREDICTIONS, "sha256": "0" * 64}, behind=0)),
        # It moves the search alone, no score.
        "a predicted accuracy that nobody predicted":
            ("search", event("trial_ended", predicted_accuracy=1.0)),
    },
)  # fmt: skip
