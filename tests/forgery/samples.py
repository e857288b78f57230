"""Forgeries of the samples that were executed."""

from __future__ import annotations

from tests.forgery.forger import ForgedRun, at, event_of, forgery, like, of


def _progress(run: ForgedRun) -> dict[str, int]:
    event: dict[str, int] = event_of(run.trainer(), "progress", train_samples=2048)
    return event


@forgery("samples", "samples")
def one_more_sample(run: ForgedRun) -> None:
    _progress(run)["train_samples"] += 1


@forgery("samples", "samples")
def an_epoch_twice(run: ForgedRun) -> None:
    _progress(run)["train_samples"] *= 2


@forgery("samples", "samples")
def a_record_of_samples_twice(run: ForgedRun) -> None:
    lines = run.trainer()
    place = at(lines, "progress")
    lines.insert(place, {**lines[place]})


@forgery("samples", "samples")
def samples_of_a_further_epoch(run: ForgedRun) -> None:
    """A trial executes an epoch more than its evaluations tell of."""
    lines = run.trainer()
    last = at(lines, "evaluated", 1)
    samples = lines[at(lines, "progress")]["event"]
    lines.insert(last + 1, like(lines[last], {**samples, "epoch": samples["epoch"] + 2}))


@forgery("samples", "samples")
def samples_after_the_end_of_their_trial(run: ForgedRun) -> None:
    lines = run.trainer()
    end = at(lines, "trial_ended")
    lines.insert(end + 1, like(lines[end], {**lines[at(lines, "progress")]["event"]}, 0.5))


@forgery("samples", "samples")
def validation_samples_for_training_samples(run: ForgedRun) -> None:
    event = _progress(run)
    event["train_samples"] -= 512
    event["validation_samples"] += 512


@forgery("samples", "journals")
def samples_of_a_trial_that_there_was_not(run: ForgedRun) -> None:
    lines = run.trainer()
    place = at(lines, "progress")
    event = {**lines[place]["event"], "trial": "r0-t99"}
    lines.insert(place, like(lines[place], event))


@forgery("samples", "journals")
def samples_of_another_replicas_trial(run: ForgedRun) -> None:
    lines = run.trainer()
    place = at(lines, "progress")
    lines.insert(place, like(lines[place], {**lines[place]["event"], "trial": "r1-t1"}))


@forgery("samples", "writers")
def samples_in_a_search_workers_journal(run: ForgedRun) -> None:
    lines, search = run.trainer(), run.search()
    place = at(lines, "trial_ended") - 1
    search.append({**lines[place], "event": {**lines[at(lines, "progress")]["event"]}})


@forgery("samples", "writers")
def samples_in_the_primarys_journal(run: ForgedRun) -> None:
    lines = run.trainer()
    run.primary.insert(-1, like(run.primary[-2], {**lines[at(lines, "progress")]["event"]}))


@forgery("samples", "journals")
def samples_below_zero(run: ForgedRun) -> None:
    _progress(run)["train_samples"] = -1


@forgery("samples", "journals")
def half_a_sample(run: ForgedRun) -> None:
    run.trainer()[at(run.trainer(), "progress")]["event"]["train_samples"] = 2048.5


@forgery("samples", "samples")
def an_evaluation_without_its_samples(run: ForgedRun) -> None:
    lines = run.trainer()
    del lines[at(lines, "progress", validation_samples=512)]


@forgery("samples", "samples")
def a_cut_epoch_that_was_nearly_whole(run: ForgedRun) -> None:
    """What the end of the run cut had executed more; no evaluation tells how many there were."""
    last = of(run.trainer(), "progress")[-1]["event"]
    last["train_samples"] += 77


@forgery("samples")
def a_batch_more_in_a_cut_epoch(run: ForgedRun) -> None:
    last = of(run.trainer(), "trial_started")[-1]["event"]["hyperparameters"]
    of(run.trainer(), "progress")[-1]["event"]["train_samples"] += last["batch_size"]
