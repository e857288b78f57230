"""Forgeries of time."""

from __future__ import annotations

from tests.forgery.forger import (
    ForgedRun,
    at,
    event,
    forgeries,
    forgery,
    like,
    of,
    shift,
    without,
)


def _scale(run: ForgedRun, factor: float) -> None:
    """Let all that happened have taken a share of its time."""
    start = run.primary[0]["utc"]
    for lines in run.everywhere():
        for line in lines:
            line["mono"] *= factor
            line["utc"] = start + (line["utc"] - start) * factor
            seconds = line["event"].get("seconds")
            if isinstance(seconds, dict):
                line["event"]["seconds"] = {k: v * factor for k, v in seconds.items()}


@forgery("time", "time")
def a_clock_at_half_its_speed(run: ForgedRun) -> None:
    """The run ends because its time is over, after half of it."""
    _scale(run, 0.5)


@forgery("time")
def a_clock_at_half_its_speed_and_half_the_hours(run: ForgedRun) -> None:
    _scale(run, 0.5)
    run.set(lambda values: values.update(hours=values["hours"] / 2))
    for line in of(run.primary, "run_started"):
        line["event"]["hours"] /= 2


@forgery("time", "time")
def an_end_at_the_best_moment(run: ForgedRun) -> None:
    """The run ended earlier, for no reason but that its time was over."""
    ended = run.primary[-1]
    del run.primary[len(run.primary) // 2 :]
    run.primary.append(like(run.primary[-1], ended["event"], 1.0))


@forgery("time", "clocks")
def utc_times_alone(run: ForgedRun) -> None:
    for line in run.trainer()[20:]:
        line["utc"] -= 60.0


@forgery("time", "launches")
def a_start_after_the_start_of_the_replicas(run: ForgedRun) -> None:
    """The time until the first sample is taken off; nothing was executed by then."""
    first = of(run.trainer(), "training_started")[0]["utc"]
    for line in run.primary:
        if line["utc"] < first:
            shift([line], first - line["utc"])


def _queued(run: ForgedRun, start: float) -> None:
    """Let a scheduler have kept the run waiting until then."""
    first = run.primary[0]
    first["event"]["clock_starts"] = "first"
    said = next(n for n, line in enumerate(run.primary) if line["utc"] > start)
    times = {"start_utc": start, "submitted_utc": first["utc"], "granted_utc": start}
    event = {"type": "clock_started", "replica": "r0", **times}
    run.primary.insert(said, like(run.primary[said], event))


@forgery("time", "clock")
def a_queue_until_the_first_training(run: ForgedRun) -> None:
    """Nothing was executed by then, but a node was there."""
    _queued(run, of(run.trainer(), "training_started")[0]["utc"])


@forgery("time", "clock")
def a_node_that_the_scheduler_gave_late(run: ForgedRun) -> None:
    """The scheduler is made to say so, too; the replica began before."""
    start = of(run.trainer(), "training_started")[0]["utc"]
    _queued(run, start)
    for line in of(run.primary, "job_state"):
        line["event"]["started_utc"] = start


@forgery("time", "order")
def a_queue_until_the_second_trial(run: ForgedRun) -> None:
    _queued(run, of(run.trainer(), "trial_started")[1]["utc"])


@forgery("time", "time")
def half_of_the_waiting_left_out(run: ForgedRun) -> None:
    for line in of(run.trainer(), "time_spent"):
        seconds = line["event"]["seconds"]
        seconds["train"] = seconds.get("train", 0.0) / 2


@forgery("time", "heartbeats")
def no_heartbeats_of_a_working_primary(run: ForgedRun) -> None:
    """It records other things; one that records nothing at all may have been suspended."""
    for line in of(run.primary, "primary_heartbeat"):
        line["event"] = {"type": "scheduler_state", "reachable": True, "detail": ""}


@forgery("time")
def a_pause_of_all_taken_out(run: ForgedRun) -> None:
    """Ten seconds in which everybody waited, by all their clocks; the end comes as much later."""
    cut = run.primary[0]["utc"] + 400.0
    for lines in run.everywhere():
        for line in lines:
            if line["utc"] > cut + 10.0:
                shift([line], -10.0)
    for name in ("r0", "r1", "r2"):
        later = [e for e in of(run.trainer(name), "time_spent") if e["utc"] > cut]
        seconds = later[0]["event"]["seconds"]
        seconds["train"] -= 10.0
    run.set(lambda values: values.update(hours=values["hours"] - 10.0 / 3600.0))
    for line in of(run.primary, "run_started"):
        line["event"]["hours"] = run.settings["hours"]


@forgery("time")
def the_whole_run_an_hour_earlier(run: ForgedRun) -> None:
    for lines in run.everywhere():
        for line in lines:
            line["utc"] -= 3600.0


@forgery("time", "states")
def patience_that_had_run_out(run: ForgedRun) -> None:
    """A trial went on although its loss had not been lower for long; more was executed so."""
    run.set(lambda values: values["config"]["training"].update(patience=1))
    for line in of(run.trainer(), "evaluated"):
        line["event"]["validation_loss"] = 2.0
    lines = run.trainer()
    last = at(lines, "evaluated", 1)
    lines.insert(last + 1, like(lines[last], {**lines[last]["event"], "epoch": 3}))


@forgery("time", "config")
def more_hours_in_the_configuration(run: ForgedRun) -> None:
    run.set(lambda values: values.update(hours=values["hours"] * 10))


@forgery("time", "config")
def more_hours_in_the_records(run: ForgedRun) -> None:
    run.primary[0]["event"]["hours"] *= 10


forgeries(
    "time",
    {
        # No comparison with it fails.
        "a monotonic time that is not a number":
            ("journals", lambda run: run.trainer()[20].update(mono="NaN")),
        "an infinite monotonic time":
            ("journals", lambda run: run.trainer()[20].update(mono="Infinity")),
        "a start after the first samples": ("order", lambda run: shift(run.primary, 60.0)),
        "no time split": ("time", without("time_spent")),
        "more time than there was": ("time", event("time_spent", "seconds", train=1e6)),
        "the run started again after its end":
            ("order", lambda run: run.primary.append(
                like(run.primary[-1], {**run.primary[0]["event"]}, 1.0))),
        "the run ended twice":
            ("order", lambda run: run.primary.append(
                like(run.primary[-1], {**run.primary[-1]["event"]}, 1.0))),
        "seconds below zero in a record":
            ("journals", event("dataset_loaded", staged_seconds=-30.0)),
        "no heartbeats": ("heartbeats", without("heartbeat")),
        # Its journal alone, which ends too early then.
        "a pause of one replica taken out":
            ("time", lambda run: shift(run.trainer()[40:], -60.0)),
    },
)  # fmt: skip
