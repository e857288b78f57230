"""A few honest runs with mishaps; `make mishaps N=200` has many, with all kinds."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from tests.chaos import mishaps
from tests.chaos.mishaps import (
    MishapError,
    Plan,
    UnluckyRun,
    build_clock,
    check_clock,
    conduct,
    draw,
    torment,
)

QUICK = ("node lost", "clocks set forward", "a clock set back", "power cut")


@pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")
def test_an_honest_run_with_mishaps_contradicts_nothing(tmp_path: Path) -> None:
    plan = Plan(random.Random(1), QUICK, until_interrupted=True)  # noqa: S311 -- moments
    outcome = conduct(tmp_path / "run", build_clock(tmp_path), plan)
    assert outcome.failures == []
    assert [each.partition(" (")[0] for each in outcome.happened] == list(QUICK)
    assert not [each for each in outcome.happened if each.endswith(mishaps.NOTHING)]


def test_a_library_that_sets_no_clock_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(MishapError, match="does not set the clock"):
        check_clock(tmp_path / "missing.so", tmp_path)


def test_a_process_of_a_faulty_host_lists_new_journals_late() -> None:
    program = "from aiperf_hpc.run.history.tail import Tail; print(Tail.unknown.__name__)"
    path = os.pathsep.join([str(mishaps.FAULTY_HOST), os.environ.get("PYTHONPATH", "")])
    found = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=True,
    )
    assert found.stdout == "_late\n"


class Unaffected(UnluckyRun):
    """A run without processes."""

    def __init__(self, plan: Plan) -> None:
        self.plan, self.rng, self.happened = plan, plan.rng, []

    def begin(self) -> None: ...

    def end(self) -> None: ...

    @property
    def over(self) -> bool:
        return False

    def processes(self, *_: str) -> list[int]:
        return []


def test_a_mishap_that_met_nothing_is_named_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mishaps, "PAUSE_SECONDS", (0.0, 0.0))
    kinds = ("replica killed", "search worker killed")
    run = Unaffected(Plan(random.Random(1), kinds, until_interrupted=True))  # noqa: S311
    torment(run)
    assert run.happened == [f"{kind} (nothing)" for kind in kinds]


def test_the_same_seed_draws_the_same_mishaps() -> None:
    first, again = draw(1, 3), draw(1, 3)
    assert (first.kinds, first.late) == (again.kinds, again.late)
    assert len({tuple(draw(1, number).kinds) for number in range(9)}) > 4
