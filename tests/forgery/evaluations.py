"""Forgeries of evaluations."""

from __future__ import annotations

from tests.forgery.forger import ForgedRun, at, event_of, forgery, like, of


@forgery("evaluations")
def an_accuracy_that_was_not_reached(run: ForgedRun) -> None:
    """Nobody but who evaluates again can tell."""
    of(run.trainer(), "evaluated")[-1]["event"]["sums"]["correct"] = 510.0


@forgery("evaluations")
def all_accuracies_a_little_better(run: ForgedRun) -> None:
    for name in ("r0", "r1", "r2"):
        for line in of(run.trainer(name), "evaluated"):
            sums = line["event"]["sums"]
            sums["correct"] = min(512.0, sums["correct"] + 51.0)


@forgery("evaluations")
def a_loss_that_was_not_reached(run: ForgedRun) -> None:
    event_of(run.trainer(), "evaluated")["validation_loss"] *= 0.9


@forgery("evaluations", "journals")
def more_right_than_there_are(run: ForgedRun) -> None:
    event_of(run.trainer(), "evaluated")["sums"]["correct"] = 513.0


@forgery("evaluations", "evaluations")
def an_evaluation_of_a_part(run: ForgedRun) -> None:
    event_of(run.trainer(), "evaluated").update(samples=100, sums={"correct": 100.0})


@forgery("evaluations", "evaluations")
def an_evaluation_twice(run: ForgedRun) -> None:
    lines = run.trainer()
    place = at(lines, "evaluated")
    lines.insert(place, {**lines[place]})


@forgery("evaluations", "evaluations")
def an_epoch_that_was_not_evaluated(run: ForgedRun) -> None:
    lines = run.trainer()
    del lines[at(lines, "evaluated")]


@forgery("evaluations", "samples")
def an_evaluation_without_training(run: ForgedRun) -> None:
    lines = run.trainer()
    del lines[at(lines, "progress", validation_samples=0)]


@forgery("evaluations", "evaluations")
def an_evaluation_past_the_last_epoch(run: ForgedRun) -> None:
    lines = run.trainer()
    last = at(lines, "evaluated", 1)
    lines.insert(last + 1, like(lines[last], {**lines[last]["event"], "epoch": 3}))


@forgery("evaluations", "evaluations")
def another_measure(run: ForgedRun) -> None:
    event_of(run.trainer(), "evaluated").update(
        measure="mean_absolute_error", sums={"absolute_error": 1.0, "values": 2048.0}
    )


@forgery("evaluations", "evaluations")
def a_loss_that_is_not_a_number(run: ForgedRun) -> None:
    event_of(run.trainer(), "evaluated")["validation_loss"] = "NaN"


@forgery("evaluations", "journals")
def an_evaluation_of_another_replicas_trial(run: ForgedRun) -> None:
    event_of(run.trainer(), "evaluated")["trial"] = "r1-t1"


@forgery("evaluations", "evaluations")
def the_best_epoch_first(run: ForgedRun) -> None:
    lines = run.trainer()
    one, other = (line["event"] for line in of(lines, "evaluated", trial="r0-t1")[:2])
    one["epoch"], other["epoch"] = other["epoch"], one["epoch"]


@forgery("evaluations", "predictions")
def predictions_that_were_not_kept(run: ForgedRun) -> None:
    lines = run.trainer()
    place = at(lines, "trial_ended")
    kept = {"type": "predictions_kept", "trial": "r0-t1", "epoch": 2, "samples": 512}
    lines.insert(place, like(lines[place], {**kept, "sha256": "0" * 64}))


@forgery("evaluations")
def a_predicted_accuracy_that_nobody_predicted(run: ForgedRun) -> None:
    """It moves the search alone, no score."""
    event_of(run.trainer(), "trial_ended")["predicted_accuracy"] = 1.0
