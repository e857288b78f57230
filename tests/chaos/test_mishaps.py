"""A few honest runs with mishaps; `make mishaps N=200` has many, with all kinds."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import pytest
from tests.chaos.mishaps import Plan, build_clock, conduct, draw

QUICK = {
    "a lost node": ("node lost", "clocks set forward"),
    "a power cut": ("a clock set back", "power cut"),
}


@pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")
@pytest.mark.parametrize("name", QUICK)
def test_an_honest_run_with_mishaps_contradicts_nothing(tmp_path: Path, name: str) -> None:
    plan = Plan(random.Random(1), QUICK[name])  # noqa: S311 -- to draw moments
    outcome = conduct(tmp_path / "run", build_clock(tmp_path), plan)
    assert outcome.failures == []
    assert [each.partition(" (")[0] for each in outcome.happened] == list(QUICK[name])


def test_the_same_seed_draws_the_same_mishaps() -> None:
    first, again = draw(1, 3), draw(1, 3)
    assert (first.kinds, first.late) == (again.kinds, again.late)
    assert len({tuple(draw(1, number).kinds) for number in range(9)}) > 4
