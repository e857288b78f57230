"""How alike the networks of repeated runs predict, where their predictions were kept."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Sequence

import numpy as np

from aiperf_hpc.analysis.measured import NotMeasuredError
from aiperf_hpc.analysis.measures.repeatability import jaccard
from aiperf_hpc.analysis.training_log import TrainingLog
from aiperf_hpc.trial import Value

MOST_RUNS = 64
"""The first runs are compared, each with each: of more, the pairs would be too many."""


class Similarity(Value):
    """The Jaccard similarity of predictions, over all pairs of runs."""

    runs: tuple[str, ...]
    """The trials whose networks predicted, by their runs."""
    pairs: int
    mean: float
    least: float
    most: float


def similarity_of(logs: Sequence[TrainingLog]) -> Similarity | None:
    """Compare the predictions of all runs that kept them; None where fewer than two did.

    Raises:
        NotMeasuredError: they predict different numbers of samples.
    """
    kept = [(log, log.predicted) for log in logs if log.predicted is not None][:MOST_RUNS]
    if len(kept) < 2:
        return None
    if len({predicted.samples for _, predicted in kept}) > 1:
        raise NotMeasuredError("the kept predictions are of different numbers of samples")
    classes = [np.frombuffer(predicted.classes, "<u4") for _, predicted in kept]
    found = [jaccard(one, other) for one, other in itertools.combinations(classes, 2)]
    return Similarity(
        runs=tuple(f"{log.source}: {predicted.trial}" for log, predicted in kept),
        pairs=len(found),
        mean=statistics.fmean(found),
        least=min(found),
        most=max(found),
    )
