"""Scored training runs of an MLPerf entry: all except the fastest and the slowest.

[training_policies, training_rules.adoc, Benchmark results; hpc_training_rules.adoc, the same;
mlcommons/logging, benchmark_meta.py and result_summarizer]
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import NamedTuple

from aiperf_hpc.analysis.metric import NotMeasuredError, measured
from aiperf_hpc.analysis.metrics.time_to_solution import (
    run_seconds,
    staging_spans,
    time_to_solution,
)
from aiperf_hpc.analysis.training_log import Entry, TrainingLog

REQUIRED_RUNS = {
    "cosmoflow": 10, "deepcam": 5, "oc20": 5, "openfold": 10,
    "bert": 10, "dlrm": 5, "dlrm_dcnv2": 10, "gnmt": 10, "gpt3": 3, "maskrcnn": 5, "minigo": 10,
    "ncf": 10, "resnet": 5, "rnnt": 10, "ssd": 5, "stable_diffusion": 10, "transformer": 10,
    "unet3d": 40,
}  # fmt: skip
"""Required number of runs of an entry, by benchmark."""
_OF_ROUND = {("ncf", "training-0.5"): 100}
"""Exceptions by round: v0.5 required 100 runs of such a short benchmark."""


class ScoredRuns(NamedTuple):
    """The scored training runs of an entry."""

    indices: tuple[int, ...]
    """Indices of the scored training runs, from the fastest to the slowest."""
    valid: bool
    """Whether the rules permit a result."""
    problems: tuple[str, ...]


def required_runs(benchmark: str, round_: str | None) -> int | None:
    """Return the required number of runs of an entry, or None for an unknown benchmark."""
    return _OF_ROUND.get((benchmark, round_ or ""), REQUIRED_RUNS.get(benchmark))


def runs_dropped(benchmark: str) -> int:
    """Return the number of fastest runs, and of slowest runs, that are not scored."""
    return 4 if benchmark == "unet3d" else 1


def olympic_runs(times: Sequence[float | None], drop: int, lost: int) -> ScoredRuns:
    """Return the scored runs: all except the ``drop`` fastest and the ``drop`` slowest.

    A failed run, whose time is None, or a lost run ranks slower than all others; up to ``drop`` of
    them are permitted. With more of them, or too few runs to omit any, all successful runs are
    scored: the result is invalid if one failed, and otherwise violates the rules.
    """
    order = sorted(
        (place for place, time in enumerate(times) if time is not None),
        key=lambda place: (times[place], place),
    )
    runs = len(times) + lost
    failed = runs - len(order)
    if failed > drop:
        problem = (
            f"{failed} of {runs} runs failed, but at most {drop} may fail: the result is invalid"
        )
        return ScoredRuns(tuple(order), False, (problem,))
    scored = order[drop : len(order) - (drop - failed)]
    if scored:
        return ScoredRuns(tuple(scored), True, ())
    few = f"too few runs ({runs}) to omit the fastest and the slowest: all count"
    return ScoredRuns(tuple(order), failed == 0, (few,))


def mean_without_extremes(values: Sequence[float]) -> float:
    """Return the mean of all except the smallest and the largest value.

    Raises:
        NotMeasuredError: no value remains.
    """
    scored = sorted(values)[1:-1]
    if not scored:
        raise NotMeasuredError(f"{len(values)} values are too few to omit 2")
    return sum(scored) / len(scored)


OUTSIDE_FROM = 3.0
"""First MLPerf HPC round that permits staging outside the run. [hpc_3.0.0/common.yaml]"""


def scored_runs(entry: Entry) -> ScoredRuns:
    """Return the training runs of an entry that are scored in all metrics.

    MLPerf's strong scaling omits the fastest and the slowest; otherwise all are scored.
    """
    everything = tuple(range(len(entry.logs)))
    if entry.format != "mllog" or entry.scenario == "weak":
        return ScoredRuns(everything, True, ())
    times = [measured(partial(time_to_solution, log))[0] for log in entry.logs]
    if len(times) + entry.lost == 1:
        return ScoredRuns(everything, True, ("one run only: no mean, no deviation",))
    return olympic_runs(times, runs_dropped(entry.benchmark), entry.lost)


def rule_problems(entry: Entry) -> Iterator[str]:
    """Yield the violations of MLPerf's rules by an entry."""
    if entry.format != "mllog":
        return
    runs, wanted = len(entry.logs) + entry.lost, required_runs(entry.benchmark, entry.round)
    if entry.scenario == "strong" and runs > 1 and wanted not in (None, runs):
        yield f"{runs} runs; the rules require {wanted} for {entry.benchmark}"
    yield from _staging_problems(entry)


def staging_place(entry: Entry) -> str | None:
    """Return where staging is by the logs' times: ``inside`` the run, ``outside`` or ``both``.

    Return None if no log has a complete staging and a complete run.
    """
    places = {place for log in entry.logs for place in _staging_places(log)}
    return None if not places else places.pop() if len(places) == 1 else "both"


def _staging_places(log: TrainingLog) -> Iterator[str]:
    """Yield the position of each staging of a log, by its midpoint."""
    spans, _ = measured(lambda: staging_spans(log))
    seconds, _ = measured(lambda: run_seconds(log))
    if spans is None or seconds is None or log.run is None:
        return
    for started, ended in spans:
        within = log.run.started <= (started + ended) / 2 <= log.run.started + seconds
        yield "inside" if within else "outside"


def _staging_problems(entry: Entry) -> Iterator[str]:
    """Yield a problem if staging is not timed in a round that requires it."""
    name, _, version = (entry.round or "").partition("-")
    if name != "hpc" or float(version) >= OUTSIDE_FROM:
        return
    outside = sum("outside" in _staging_places(log) for log in entry.logs)
    if outside:
        yield f"staging is outside the run in {outside} logs; {entry.round} requires it inside"
