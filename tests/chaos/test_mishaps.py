"""A few honest runs with mishaps; `make mishaps N=200` has many, with all kinds."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import pytest
from tests.chaos import mishaps
from tests.chaos.mishaps import Plan, build_clock, conduct

QUICK = {
    "a lost node": ("node lost", "clocks set forward"),
    "a power cut": ("a clock set back", "power cut"),
}


@pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")
@pytest.mark.parametrize("name", QUICK)
def test_an_honest_run_with_mishaps_contradicts_nothing(tmp_path: Path, name: str) -> None:
    plan = Plan(random.Random(1), QUICK[name], until_interrupted=True)  # noqa: S311 -- moments
    outcome = conduct(tmp_path / "run", build_clock(tmp_path), plan)
    assert outcome.failures == []
    assert [each.partition(" (")[0] for each in outcome.happened] == list(QUICK[name])
    assert not [each for each in outcome.happened if each.endswith(mishaps.NOTHING)]
