"""Forgeries of trials: which there were, their names, rounds, hyperparameters and ends."""

from __future__ import annotations

from functools import partial
from typing import Any

from tests.forgery.forger import (
    ForgedRun,
    Line,
    at,
    both,
    event,
    event_of,
    forgeries,
    forgery,
    like,
    of,
    removed,
    repeated,
    settings,
)

from aiperf_hpc.run.records import TRAININGS_DONE

HPO: Line = {"phase": "hpo"}


@forgery("trials", "writers")
def a_trial_in_a_search_workers_journal(run: ForgedRun) -> None:
    lines, search = run.trainer(), run.search()
    first, last = at(lines, "trial_started"), at(lines, "trial_ended")
    for line in lines[first : last + 1]:
        event = {**line["event"]}
        if "trial" in event:
            event["trial"] = "r0-t77"
        search.append({**line, "event": event})


@forgery("trials", "states")
def a_trial_completed_early(run: ForgedRun) -> None:
    lines = run.trainer()
    evaluated = at(lines, "evaluated", 1)
    del lines[evaluated - 2 : evaluated + 1]


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


def _shrunk(run: ForgedRun) -> dict[str, Any]:
    """Return the start of a trial whose batches were smaller than planned."""
    lines = run.trainer()
    found = [e["event"] for e in of(lines, "trial_started") if e["event"]["planned_batch_size"]]
    assert found
    started: dict[str, Any] = found[0]
    return started


@forgery("trials", "batches")
def a_batch_size_excused_by_memory_that_is_there(run: ForgedRun) -> None:
    """The note is the program's own; what it says is not so."""
    started = _shrunk(run)
    planned = started["planned_batch_size"]
    started["hyperparameters"]["batch_size"] = 2
    started["notes"] = [f"batch size {planned} does not fit in memory; 2 is used"]


@forgery("trials", "batches")
def a_batch_size_that_did_not_fit(run: ForgedRun) -> None:
    """It is said to have been trained as planned."""
    started = _shrunk(run)
    started["hyperparameters"]["batch_size"] //= 2


@forgery("trials", "batches")
def a_batch_size_halved_of_a_trial_that_fitted(run: ForgedRun) -> None:
    lines = run.trainer()
    one, other = (e["event"] for e in of(lines, "trial_started", phase="hpo")[:2])
    half = one["hyperparameters"]["batch_size"] // 2
    other["hyperparameters"] = {**one["hyperparameters"], "batch_size": half}
    other["planned_batch_size"] = None
    other["notes"] = [
        f"{one['trial']} did not fit on the accelerator in batches of {2 * half}; "
        f"{half} with the same learning rate"
    ]
    other["seed"] = one["seed"]


def _without(run: ForgedRun, trial: str) -> None:
    """Take all records of a trial out of its replica's journal."""
    lines = run.trainer()
    lines[:] = [line for line in lines if line["event"].get("trial") != trial]


@forgery("trials", "names")
def a_trial_left_out(run: ForgedRun) -> None:
    """Its time is said to have been spent on waiting."""
    spent = event_of(run.trainer(), "time_spent", trial="r0-t5")["seconds"]
    _without(run, "r0-t5")
    other = event_of(run.trainer(), "time_spent", trial="r0-t6")["seconds"]
    other["search wait"] = other.get("search wait", 0.0) + sum(spent.values())


@forgery("trials", "names")
def a_trial_left_out_and_the_others_renumbered(run: ForgedRun) -> None:
    """Their seeds are those of their old names."""
    a_trial_left_out(run)
    for line in run.trainer():
        name = line["event"].get("trial")
        if name is not None and int(name.partition("-t")[2]) > 5:
            line["event"]["trial"] = f"r0-t{int(name.partition('-t')[2]) - 1}"


@forgery("trials", "names")
def a_trial_of_another_name(run: ForgedRun) -> None:
    for line in run.trainer():
        if line["event"].get("trial") == "r0-t9":
            line["event"]["trial"] = "r0-best"


@forgery("trials", "names")
def a_round_with_fewer_trials(run: ForgedRun) -> None:
    """The second trial of a round is one of the next round."""
    for line in of(run.trainer(), "trial_started"):
        number = int(line["event"]["trial"].partition("-t")[2])
        if number > 4:
            line["event"]["round"] = number


@forgery("trials", "resumes")
def a_trial_that_begins_in_the_middle(run: ForgedRun) -> None:
    """Its first epoch is left out; no interruption explains it."""
    lines = run.trainer()
    first = at(lines, "trial_started", trial="r0-t5")
    last = at(lines, "evaluated", trial="r0-t5")
    lines[first]["event"]["first_epoch"] = 2
    kept = [e for e in lines[first:last] if e["event"]["type"] not in ("progress", "evaluated")]
    lines[first : last + 1] = kept


@forgery("trials", "resumes")
def a_trial_that_resumes_one_which_had_ended(run: ForgedRun) -> None:
    a_trial_that_begins_in_the_middle(run)
    event_of(run.trainer(), "trial_started", trial="r0-t5")["resumes"] = "r0-t4"


@forgery("trials", "resumes", base="resumed")
def a_trial_resumed_at_an_epoch_that_was_not_reached(run: ForgedRun) -> None:
    """The epochs between are credited to nobody, but its accuracies are of so many epochs."""
    for line in run.trainer("r0", "1.0"):
        event = line["event"]
        if event.get("trial") == "r0-1.0-t1" and "epoch" in event:
            event["epoch"] += 100
    event_of(run.trainer("r0", "1.0"), "trial_started", trial="r0-1.0-t1")["first_epoch"] += 100


@forgery("trials", "resumes", base="resumed")
def a_trial_resumed_with_another_learning_rate(run: ForgedRun) -> None:
    run.set(lambda values: values)
    started = event_of(run.trainer("r0", "1.0"), "trial_started", trial="r0-1.0-t1")
    started["hyperparameters"]["momentum"] = 0.5


@forgery("trials", "resumes", base="resumed")
def a_resumption_hidden(run: ForgedRun) -> None:
    """What went on with an interrupted trial is said to have been a trial of its own."""
    started = event_of(run.trainer("r0", "1.0"), "trial_started", trial="r0-1.0-t1")
    started["resumes"] = None


@forgery("trials", "launches", base="resumed")
def a_resume_of_the_run_hidden(run: ForgedRun) -> None:
    """The second primary's start is left out, with what it launched."""
    second = at(run.primary, "run_started", 1)
    del run.primary[second : second + 3]


@forgery("trials", "launches", base="resumed")
def a_resume_of_the_run_as_a_requeue(run: ForgedRun) -> None:
    """What a second primary launched is said to have been queued again by the first."""
    second = at(run.primary, "run_started", 1)
    del run.primary[second : second + 3]
    for replica in ("r0", "r1"):
        life = run.paths.replica(replica)
        (life / "1.0").rename(life / "0.1")


_hyperparameters = partial(event, "trial_started", "hyperparameters")
_hpo = partial(event, "trial_started", where=HPO)
forgeries(
    "trials",
    {
        "a batch size that nobody may choose":
            ("batches", both(_hyperparameters(where=HPO, batch_size=64),
                             _hpo(planned_batch_size=None, notes=[]))),
        "a batch size excused by any note":
            ("batches", both(_hyperparameters(where=HPO, batch_size=8),
                             _hpo(planned_batch_size=None,
                                   notes=["8 seemed better"]))),
        "a learning rate that nobody may choose": ("rounds", _hyperparameters(learning_rate=0.5)),
        "a round of hpo as one of warm up":
            ("rounds", _hpo(phase="warm-up")),
        "more epochs than configured": ("rounds", event("trial_started", epoch_limit=90)),
        "a trial twice": ("journals", repeated("trial_started")),
        "a failed trial without a reason":
            ("states", event("trial_ended", number=2, state="failed", reason="")),
        "a trial that is still in training at its end":
            ("states", event("trial_ended", number=2, state="training")),
        "a trial without its end": ("states", removed("trial_ended", 2)),
        "an end by trainings that were not requested":
            ("trainings", event("replica_ended", reason=TRAININGS_DONE)),
        "more trainings than requested":
            ("trainings", settings("search", method="fixed", max_trainings=1)),
        "a kernel size outside the search space":
            ("rounds", _hyperparameters(where=HPO, kernel_size=9)),
        "records after the end of the run":
            ("writers", lambda run: run.primary.append(
                like(run.primary[-1], {"type": "primary_heartbeat"}, 1.0))),
        "a seed that was tried until it was good":
            ("names", event("trial_started", where={"trial": "r0-t4"}, seed=42)),
        "a proposals seed that was tried until it was good":
            ("names", lambda run: event_of(run.search(), "proposed").update(seed=42)),
    },
)  # fmt: skip
