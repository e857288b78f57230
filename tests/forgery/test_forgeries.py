"""Each forgery of a finished run, and what finds it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.forgery import (  # noqa: F401 -- they enter their forgeries
    dataset,
    evaluations,
    graphs,
    physics,
    hardware,
    replicas,
    samples,
    software,
    times,
    trials,
)
from tests.forgery.forger import FORGERIES, ForgedRun, Forgery

from aiperf_hpc.primary.monitor.run_view import RunView
from aiperf_hpc.primary.verify.audit import verify
from aiperf_hpc.run.paths import RunPaths

MADE_AGAIN = ("report", "result", "files", "energy")
"""The rules that compare what a cheat makes again with the same code."""


def found(paths: RunPaths) -> dict[str, tuple[str, ...]]:
    """Return the rules that a run breaks, but for those of what is made again of its records."""
    return {
        finding.rule: finding.failures
        for finding in verify(RunView(paths))
        if not finding.passed and finding.rule not in MADE_AGAIN
    }


@pytest.mark.parametrize("base", ["simulated", "resumed", "two-nodes", "several-ranks"])
def test_an_honest_run_is_not_taken_for_a_forged_one(
    copied: Callable[[str], ForgedRun], base: str
) -> None:
    run = copied(base)
    run.save()
    assert found(run.paths) == {}


@pytest.mark.parametrize("forgery", [f for f in FORGERIES if f.rule], ids=str)
def test_records_that_contradict_others_are_found_by_a_rule(
    copied: Callable[[str], ForgedRun], forgery: Forgery
) -> None:
    run = copied(forgery.base)
    forgery.forge(run)
    run.save()
    assert forgery.rule in found(run.paths)
