"""Forgeries of trials: which there were, their names, rounds, hyperparameters and ends."""

from __future__ import annotations

from tests.forgery.forger import ForgedRun, at, event_of, forgery, like


@forgery("trials", "writers")
def a_trial_in_a_search_workers_journal(run: ForgedRun) -> None:
    lines, search = run.trainer(), run.search()
    first, last = at(lines, "trial_started"), at(lines, "trial_ended")
    for line in lines[first : last + 1]:
        event = {**line["event"]}
        if "trial" in event:
            event["trial"] = "r0-t77"
        search.append({**line, "event": event})


@forgery("trials", "rounds")
def a_batch_size_that_nobody_may_choose(run: ForgedRun) -> None:
    started = event_of(run.trainer(), "trial_started", phase="hpo")
    started["hyperparameters"]["batch_size"] = 64
    started["planned_batch_size"] = None
    started["notes"] = []


@forgery("trials", "rounds")
def a_learning_rate_that_nobody_may_choose(run: ForgedRun) -> None:
    event_of(run.trainer(), "trial_started")["hyperparameters"]["learning_rate"] = 0.5


@forgery("trials", "rounds")
def a_round_of_hpo_as_one_of_warm_up(run: ForgedRun) -> None:
    event_of(run.trainer(), "trial_started", phase="hpo")["phase"] = "warm-up"


@forgery("trials", "rounds")
def more_epochs_than_configured(run: ForgedRun) -> None:
    event_of(run.trainer(), "trial_started")["epoch_limit"] = 90


@forgery("trials", "journals")
def a_trial_twice(run: ForgedRun) -> None:
    lines = run.trainer()
    place = at(lines, "trial_started")
    lines.insert(place, like(lines[place], {**lines[place]["event"]}))


@forgery("trials", "states")
def a_trial_completed_early(run: ForgedRun) -> None:
    lines = run.trainer()
    evaluated = at(lines, "evaluated", 1)
    del lines[evaluated - 2 : evaluated + 1]


@forgery("trials", "states")
def a_failed_trial_without_a_reason(run: ForgedRun) -> None:
    event_of(run.trainer(), "trial_ended", 2).update(state="failed", reason="")


@forgery("trials", "states")
def a_trial_that_is_still_in_training_at_its_end(run: ForgedRun) -> None:
    event_of(run.trainer(), "trial_ended", 2)["state"] = "training"


@forgery("trials", "states")
def a_trial_without_its_end(run: ForgedRun) -> None:
    lines = run.trainer()
    del lines[at(lines, "trial_ended", 2)]


@forgery("trials", "order")
def two_trials_at_once(run: ForgedRun) -> None:
    """The second one begins while the first one is trained."""
    lines = run.trainer()
    first, second = at(lines, "training_started"), at(lines, "trial_started", 1)
    lines.insert(first + 1, like(lines[first], lines.pop(second)["event"]))


@forgery("trials", "writers")
def records_after_the_end_of_a_replica(run: ForgedRun) -> None:
    lines = run.trainer()
    lines.append(like(lines[-1], {**lines[at(lines, "time_spent")]["event"]}, 1.0))


@forgery("trials", "writers")
def records_after_the_end_of_the_run(run: ForgedRun) -> None:
    run.primary.append(like(run.primary[-1], {"type": "primary_heartbeat"}, 1.0))
