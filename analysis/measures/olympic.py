"""Which trainings of an entry count: the fastest and the slowest do not.

[training_policies, training_rules.adoc, Benchmark results; hpc_training_rules.adoc, the same;
mlcommons/logging, benchmark_meta.py and result_summarizer]
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from aiperf_hpc.analysis.measured import NotMeasuredError

REQUIRED_RUNS = {
    "cosmoflow": 10, "deepcam": 5, "oc20": 5, "openfold": 10,
    "bert": 10, "dlrm": 5, "dlrm_dcnv2": 10, "gnmt": 10, "gpt3": 3, "maskrcnn": 5, "minigo": 10,
    "ncf": 10, "resnet": 5, "rnnt": 10, "ssd": 5, "stable_diffusion": 10, "transformer": 10,
    "unet3d": 40,
}  # fmt: skip
"""Runs of an entry by benchmark."""
_OF_ROUND = {("ncf", "training-0.5"): 100}
"""Where a round differs: v0.5 wanted 100 runs of a benchmark as short as that."""


class Kept(NamedTuple):
    """The trainings that count."""

    places: tuple[int, ...]
    """Of the trainings, from the fastest to the slowest."""
    valid: bool
    """Whether the rules admit a result."""
    problems: tuple[str, ...]


def required_runs(benchmark: str, round_: str | None) -> int | None:
    """Return how many runs an entry needs, None for a benchmark that is not known."""
    return _OF_ROUND.get((benchmark, round_ or ""), REQUIRED_RUNS.get(benchmark))


def left_out(benchmark: str) -> int:
    """Return how many of the fastest, and of the slowest, runs do not count."""
    return 4 if benchmark == "unet3d" else 1


def kept_runs(times: Sequence[float | None], drop: int = 1, lost: int = 0) -> Kept:
    """Return the runs that count: all but the ``drop`` fastest and the ``drop`` slowest.

    A run that failed, whose time is None, or that was lost is slower than all others; of those
    there may be ``drop``. With more, and with too few runs to leave any out, all that succeeded
    are kept: the result is not valid where one failed, and else not by the rules.
    """
    order = sorted(
        (place for place, time in enumerate(times) if time is not None),
        key=lambda place: (times[place], place),
    )
    runs = len(times) + lost
    failed = runs - len(order)
    if failed > drop:
        problem = f"{failed} of {runs} runs failed, and {drop} may: not a valid result"
        return Kept(tuple(order), False, (problem,))
    kept = order[drop : len(order) - (drop - failed)]
    if kept:
        return Kept(tuple(kept), True, ())
    few = f"too few runs, {runs}, to leave out the fastest and the slowest: all count"
    return Kept(tuple(order), failed == 0, (few,))


def count_problem(benchmark: str, round_: str | None, runs: int) -> str | None:
    """Return in words that an entry has another number of runs than the rules want."""
    wanted = required_runs(benchmark, round_)
    if wanted is None or wanted == runs:
        return None
    return f"{runs} runs, and the rules want {wanted} of {benchmark}"


def mean_without_extremes(values: Sequence[float], drop: int = 1) -> float:
    """Return the mean without the ``drop`` smallest and the ``drop`` largest values.

    Raises:
        NotMeasuredError: nothing is left.
    """
    kept = sorted(values)[drop : len(values) - drop]
    if not kept:
        raise NotMeasuredError(f"{len(values)} values are too few to leave out {2 * drop}")
    return sum(kept) / len(kept)
