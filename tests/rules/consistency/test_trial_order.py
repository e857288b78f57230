"""What verification finds wrong with how often a replica trained."""

from __future__ import annotations

from pathlib import Path

import pytest
from benchmarks import synthetic_run
from tests.support.hostile import in_event
from tests.support.rules import check_rule

from aiperf_hpc.config import SearchConfig
from aiperf_hpc.results.views.run_view import RunView
from aiperf_hpc.run.paths import RunPaths
from aiperf_hpc.run.records import TRAININGS_DONE
from aiperf_hpc.verification.audit import evidence_of

ROUNDS = 4
"""Of each replica of the run."""


@pytest.fixture
def run(tmp_path: Path) -> RunPaths:
    return synthetic_run.write_run(tmp_path / "run", 2).paths


def failures(run: RunPaths, requested: int | None) -> list[str]:
    """Return what the rule finds if this number of training runs was requested."""
    search = SearchConfig.model_validate({"method": "fixed", "max_trainings": requested})
    found = evidence_of(RunView(run))
    found.config = found.config.model_copy(update={"search": search})
    return sorted(check_rule("trainings", found).failures)


@pytest.mark.parametrize(
    ("requested", "found"),
    [
        (None, []),
        (ROUNDS, []),
        (ROUNDS + 1, []),
        (ROUNDS - 1, ["r0 began training 4 of 3", "r1 began training 4 of 3"]),
    ],
)
def test_more_training_runs_than_requested_are_found(
    run: RunPaths, requested: int | None, found: list[str]
) -> None:
    assert failures(run, requested) == found


@pytest.mark.parametrize(
    ("requested", "found"),
    [
        (ROUNDS, []),
        (ROUNDS + 1, ["r0 ended as if done, with 4 training runs of 5",
                      "r1 ended as if done, with 4 training runs of 5"]),
        (None, ["r0 ended as if done, with 4 training runs of any",
                "r1 ended as if done, with 4 training runs of any"]),
    ],
)  # fmt: skip
def test_a_replica_that_ended_as_done_has_all_requested_training_runs(
    run: RunPaths, requested: int | None, found: list[str]
) -> None:
    in_event("replica_ended", reason=TRAININGS_DONE)(run)
    assert failures(run, requested) == found
