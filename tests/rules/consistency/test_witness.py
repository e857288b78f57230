"""The rule of the witnesses: time that is scaled, moved, cut or spliced is not theirs."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.support.clock import Clock
from tests.support.heads import HeadedRun
from tests.support.rules import check_rule
from tests.support.run_factory import Plan
from tests.support.run_writer import run_ended

from aiperf_hpc.run.journal_digest import Statement
from aiperf_hpc.run.paths import RunPaths
from aiperf_hpc.run.records import PrimaryHeartbeat, Witnessed
from aiperf_hpc.service.witness_server.log import WitnessLog

RUN = Plan().run_id
TOKEN = "t" * 32
URL = "https://w"


class WitnessedRun(HeadedRun):
    """A run that shows its heads to a witness with a clock of its own."""

    def __init__(self, root: Path) -> None:
        super().__init__(root / "run")
        self.witness_clock = Clock()
        self.log = WitnessLog(root / "w", most_bytes=10**6, utc=self.witness_clock.utc)
        self.rate = 1.0
        """The seconds of the witness's clock in one of the run's."""

    def pass_by(self, seconds: float) -> None:
        """Let time pass for both; ``turn`` lets it pass for the run."""
        self.witness_clock.advance(seconds * self.rate)

    def state(self) -> list[Statement]:
        return self.log.add(RUN, TOKEN, self.primary.digest, 0)[-1:]

    def record(self, statements: list[Statement]) -> None:
        for each in statements:
            key = self.log.key.public.fingerprint
            self.primary.append(Witnessed(url=URL, key=key, statement=each))

    def show(self) -> None:
        statements = self.state()
        self.clock.advance(0.2)
        self.pass_by(0.2)
        self.record(statements)

    def shown_turn(self, seconds: float = 30.0) -> None:
        self.turn(seconds)
        self.pass_by(seconds)
        self.show()

    def shown_end(self, turns: int = 0) -> None:
        for _ in range(turns):
            self.shown_turn()
        self.end()
        self.pass_by(2.0)
        self.show()

    def unseen(self, turns: int) -> None:
        for _ in range(turns):
            self.turn()
            self.pass_by(30.0)

    def failures(self, *, trusting: bool = True) -> list[str]:
        keys = (self.log.key.public,) if trusting else ()
        found = check_rule("witness", self.paths, witnesses=keys).failures
        return [each.removeprefix(f"{URL}: ") for each in found]


@pytest.fixture
def run(tmp_path: Path) -> WitnessedRun:
    return WitnessedRun(tmp_path)


def test_a_run_that_its_witness_saw_keeps_the_rule(run: WitnessedRun) -> None:
    run.witness_clock.advance(20.0)  # The clocks need not agree, but run alike.
    run.shown_end(turns=4)
    assert run.failures() == []
    assert check_rule("witness", run.paths).checked == 5


@pytest.mark.parametrize("rate", [0.5, 0.98, 1.02, 2.0])
def test_time_that_is_scaled_is_not_the_witnesss(run: WitnessedRun, rate: float) -> None:
    run.rate = rate
    run.shown_end(turns=4)
    assert any("the run's time differs from the witness's" in each for each in run.failures())


@pytest.mark.parametrize("seconds", [-86_400.0, 3600.0])
def test_time_that_is_moved_is_not_the_witnesss(run: WitnessedRun, seconds: float) -> None:
    run.witness_clock.advance(seconds)
    run.shown_end(turns=1)
    way = "ahead of" if seconds < 0 else "behind"
    assert any(f"s {way} the witness's" in each for each in run.failures(trusting=False))


def test_a_run_that_is_cut_at_its_best_moment_has_an_end_that_nobody_saw(
    run: WitnessedRun,
) -> None:
    for _ in range(3):
        run.shown_turn()
    run.end()
    assert run.failures(trusting=False) == []
    assert "it did not see the end; it saw the run until" in run.failures()[0]


def test_what_was_made_up_between_two_sights_is_a_gap(run: WitnessedRun) -> None:
    run.shown_turn()
    run.unseen(10)
    run.show()
    run.shown_end()
    assert run.failures() == ["it saw nothing for 300 s from 2025-06-15T15:07:10.000Z"]


def test_a_primary_that_records_no_digests_of_journals_is_not_witnessed(
    run: WitnessedRun,
) -> None:
    for _ in range(10):
        run.clock.advance(30.0)
        run.pass_by(30.0)
        run.primary.append(PrimaryHeartbeat())
        run.show()
    run.primary.append(run_ended())
    run.show()
    assert run.failures(trusting=False) == []
    assert run.failures() == ["it saw no digests of the replicas' journals"]
    run.shown_turn()
    assert check_rule("witness", run.paths).notes == (
        f"{URL}: its statements cover 2 journals of replicas",
    )
    assert run.failures()[0].startswith("it saw nothing for 33")


def test_a_start_that_nobody_saw_is_a_gap(run: WitnessedRun) -> None:
    run.unseen(10)
    run.show()
    run.shown_end()
    assert run.failures()[0].startswith("it saw nothing for 300 s from 2025-06-15T15:06:40")


def test_answers_that_are_recorded_later_than_they_came_prove_less(run: WitnessedRun) -> None:
    """Heads seen, then more shown: what lies between may be as young as the last."""
    waiting: list[Statement] = []
    for _ in range(10):
        run.turn()
        run.pass_by(30.0)
        waiting += run.state()
    run.record(waiting)
    run.shown_end()
    assert any("it saw nothing for 300 s" in each for each in run.failures())


def test_journals_of_another_run_are_not_what_the_witness_saw(
    run: WitnessedRun, tmp_path: Path
) -> None:
    """Spliced: the witness's statements of one run, in the journal of another."""
    run.shown_turn()
    statements = run.log.of_run(RUN)
    other = WitnessedRun(tmp_path / "other")
    other.log.close()
    other.log = run.log
    other.turn(29.0)
    other.record(statements)
    assert "answer 1 is of another journal" in other.failures(trusting=False)[0]


def test_a_statement_that_is_left_out_is_missed(run: WitnessedRun) -> None:
    run.shown_turn()
    run.state()
    run.shown_turn()
    assert run.failures(trusting=False) == [
        "statement 3: it does not follow statement 1 of the run"
    ]


def test_a_statement_that_was_changed_is_not_signed(run: WitnessedRun) -> None:
    run.turn()
    (made,) = run.state()
    run.record([made.model_copy(update={"utc": made.utc + 30.0})])
    assert run.failures(trusting=False) == ["statement 1: it does not match this content"]


def test_another_witness_is_not_the_trusted_one(run: WitnessedRun, tmp_path: Path) -> None:
    run.shown_end(turns=1)
    run.log.close()
    run.log = WitnessLog(tmp_path / "trusted", most_bytes=10**6)
    assert run.failures() == ["no trusted witness has confirmed this run"]
    run.log.close()


def test_an_unwitnessed_run_keeps_the_rule_of_whoever_trusts_nobody(run: WitnessedRun) -> None:
    run.turn()
    run.end()
    assert run.failures(trusting=False) == []
    assert len(run.failures()) == 1
    assert isinstance(run.paths, RunPaths)
