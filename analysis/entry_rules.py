"""What the rules of MLPerf say of an entry: which of its trainings count, and what is amiss."""

from __future__ import annotations

from collections.abc import Iterator

from aiperf_hpc.analysis.measured import NotMeasuredError
from aiperf_hpc.analysis.measures.olympic import Kept, count_problem, kept_runs, left_out
from aiperf_hpc.analysis.measures.time_to_solution import (
    run_seconds,
    staging_spans,
    time_to_solution,
)
from aiperf_hpc.analysis.training_log import Entry, TrainingLog

OUTSIDE_FROM = 3.0
"""The round of MLPerf HPC from which staging may lie outside of the run. [hpc_3.0.0/common.yaml]"""


def kept_of(entry: Entry) -> Kept:
    """Return which trainings of an entry count in all of its measures.

    The fastest and the slowest do not, in strong scaling of MLPerf; otherwise all do.
    """
    everything = tuple(range(len(entry.logs)))
    if entry.format != "mllog" or entry.scenario == "weak":
        return Kept(everything, True, ())
    times = [_time(log) for log in entry.logs]
    if len(times) + entry.lost == 1:
        return Kept(everything, True, ("one run only: no mean, no deviation",))
    return kept_runs(times, left_out(entry.benchmark), entry.lost)


def _time(log: TrainingLog) -> float | None:
    """Return a training's time to solution, None where it failed."""
    try:
        return time_to_solution(log)
    except NotMeasuredError:
        return None


def rule_problems(entry: Entry) -> Iterator[str]:
    """Yield what the rules say against an entry of MLPerf."""
    if entry.format != "mllog":
        return
    runs = len(entry.logs) + entry.lost
    if entry.scenario == "strong" and runs > 1:
        problem = count_problem(entry.benchmark, entry.round, runs)
        if problem is not None:
            yield problem
    yield from _staging_problems(entry)


def staging_place(entry: Entry) -> str | None:
    """Return where staging lies by the logs' own times: ``inside`` the run, ``outside``, ``both``.

    None where no log has a whole staging and a whole run.
    """
    places = {place for log in entry.logs for place in _staging_places(log)}
    return None if not places else places.pop() if len(places) == 1 else "both"


def _staging_places(log: TrainingLog) -> Iterator[str]:
    """Yield where each staging of a log lies, by its middle."""
    try:
        spans, seconds = staging_spans(log), run_seconds(log)
    except NotMeasuredError:
        return
    if log.run is None:
        return
    for started, ended in spans:
        middle = (started + ended) / 2
        within = log.run.started <= middle <= log.run.started + seconds
        yield "inside" if within else "outside"


def _staging_problems(entry: Entry) -> Iterator[str]:
    """Yield that staging is not timed in a round that wants it to be."""
    name, _, version = (entry.round or "").partition("-")
    if name != "hpc" or float(version) >= OUTSIDE_FROM:
        return
    outside = sum("outside" in _staging_places(log) for log in entry.logs)
    if outside:
        yield f"staging lies outside the run in {outside} logs; {entry.round} wants it timed"
