"""What replicas measured of a predictor that has learnt nothing."""

from __future__ import annotations

import math
from collections.abc import Iterator

from aiperf_hpc.run.records import BaselineMeasured
from aiperf_hpc.verification.evidence import Evidence, Failures
from aiperf_hpc.verification.rules.work import numbers_a_sample
from aiperf_hpc.workloads.registry import workload_of

DIGITS = 1e-9
"""By which sums may differ: ranks add them up in another order."""


def baselines(run: Evidence) -> Failures:
    """Each is of the run's measure and of all validation samples, and says what all others say.

    What it follows from are the targets alone, which all replicas share. ``--execute`` measures it
    again.
    """
    measure = workload_of(run.config).objective.measure
    told = list(_told(run))
    for who, event in told:
        if event.measure != measure:
            yield f"{who} measured the {event.measure} of a baseline, the run has {measure}"
        for wanted in {dataset.validation_samples for dataset in run.datasets}:
            if event.samples != wanted:
                yield f"{who} measured a baseline on {event.samples} samples, there are {wanted}"
        values, due = event.sums.get("values"), event.samples * numbers_a_sample(run)
        if values is not None and values != due:
            yield f"{who} measured a baseline on {values:g} values, there must be {due}"
        if not _alike(event, told[0][1]):
            yield f"{who} measured another baseline than {told[0][0]}"
    if told and run.config.search.searches:
        yield f"{told[0][0]} measured a baseline, though a network was searched for"


def measured(run: Evidence) -> int:
    """Return how many lives of replicas measured it."""
    return len(list(_told(run)))


def _told(run: Evidence) -> Iterator[tuple[str, BaselineMeasured]]:
    for replica in run.history.replicas.values():
        for life, journal in run.lives(replica).items():
            for _, event in journal.told(BaselineMeasured):
                yield f"{replica.id}, life {life},", event


def _alike(one: BaselineMeasured, other: BaselineMeasured) -> bool:
    return one.sums.keys() == other.sums.keys() and all(
        math.isclose(value, other.sums[name], rel_tol=DIGITS) for name, value in one.sums.items()
    )
