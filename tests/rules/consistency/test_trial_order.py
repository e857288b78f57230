"""What verification finds wrong with how often a replica trained."""

from __future__ import annotations

from pathlib import Path

import pytest
from benchmarks import synthetic_run
from tests.support.rules import check_rule

from aiperf_hpc.config import SearchConfig
from aiperf_hpc.results.views.run_view import RunView
from aiperf_hpc.rules.consistency.evidence import Evidence
from aiperf_hpc.verification.audit import evidence_of

ROUNDS = 4
"""Of each replica of the run."""


@pytest.fixture
def run(tmp_path: Path) -> Evidence:
    view = RunView(synthetic_run.write_run(tmp_path / "run", 2).paths)
    return evidence_of(view)


@pytest.mark.parametrize(
    ("asked", "found"),
    [
        (None, []),
        (ROUNDS, []),
        (ROUNDS - 1, ["r0 began training 4 of 3", "r1 began training 4 of 3"]),
    ],
)
def test_more_trainings_than_were_asked_for_are_found(
    run: Evidence, asked: int | None, found: list[str]
) -> None:
    search = SearchConfig.model_validate({"method": "fixed", "max_trainings": asked})
    run.config = run.config.model_copy(update={"search": search})
    assert sorted(check_rule("trainings", run).failures) == found
