"""The rules of versions without divisions, by which their runs are still judged."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.support.official_run import IMAGENET
from tests.support.run_manifest import run_manifest
from tests.support.run_writer import (
    DEEPER,
    RunWriter,
    evaluated,
    progress,
    replica_started,
    run_ended,
    run_started,
    trial_started,
)

from aiperf_hpc.config import DatasetConfig, ModelConfig, RunConfig
from aiperf_hpc.ops_counter.score import ScoreStatus
from aiperf_hpc.rules.judgement import Judgement, judge
from aiperf_hpc.rules.validity.evidence import RunEvidence
from aiperf_hpc.run.records import DatasetLoaded
from aiperf_hpc.trial import RoundPhase

CONFIG = RunConfig(dataset=DatasetConfig(name="imagenet", path=Path("/data")))
NO_DIVISION = "division: recorded by a version without divisions"
NOT_GROWN = "network morphism: no trial trained a network grown by morphism"


def point(elapsed: float = 3600.0, error: float | None = 0.3) -> ScoreStatus:
    return ScoreStatus.of(elapsed, 1, error, error)


class Run(RunWriter):
    """A run that satisfies all rules, except for what a test changes."""

    def write(
        self,
        *,
        precision: str = "bf16",
        phase: RoundPhase = RoundPhase.HPO,
        morphed: bool = True,
        ended: bool = True,
        hpo_trials: int = 5,
    ) -> Run:
        self.primary(0, run_started())
        self.replica(1, DatasetLoaded(dataset=IMAGENET))
        morphisms = (DEEPER,) if morphed else ()
        for name in ("t1", *(f"h{number}" for number in range(hpo_trials))):
            self.replica(
                2, trial_started(name, phase=phase, morphisms=morphisms, precision=precision)
            )
            if name != "t1":
                self.replica(2, progress(name, train=1), evaluated(name, correct=10))
        if ended:
            self.primary(3600, run_ended())
        return self

    def broken(self, final: ScoreStatus | None = None, config: RunConfig = CONFIG) -> list[str]:
        violations = map(str, self.judged(final, config).violations)
        return [each for each in violations if each != NO_DIVISION]

    def judged(self, final: ScoreStatus | None = None, config: RunConfig = CONFIG) -> Judgement:
        manifest = run_manifest(config)
        return judge(RunEvidence(self.history(), manifest, final or point(), 0.0))


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return Run(tmp_path)


def test_a_run_that_keeps_every_rule_of_its_time_is_official_in_no_division(run: Run) -> None:
    assert run.write().broken() == []
    judgement = run.judged()
    assert (judgement.division, list(map(str, judgement.violations))) == (None, [NO_DIVISION])


@pytest.mark.parametrize(
    ("changes", "final", "reasons"),
    [
        ({}, point(3599.0), ["duration: 59 min 59 s; at least 1 h is required"]),
        ({}, point(3599.99), ["duration: 3599.99 s; at least 1 h is required"]),
        ({"ended": False}, point(), ["duration: the run has not ended"]),
        ({"precision": "fp8"}, point(), ["precision: fp8; at least FP16 is required"]),
        ({"phase": RoundPhase.WARMUP}, point(),
         ["TPE: no replica evaluated a trial of hyperparameter optimisation"]),
        ({"hpo_trials": 4}, point(),
         ["TPE: no replica made more than 4 trials of hyperparameter optimisation; "
          "the first 4 are random"]),
    ],
)  # fmt: skip
def test_what_breaks_a_rule(
    run: Run, changes: dict[str, Any], final: ScoreStatus, reasons: list[str]
) -> None:
    assert run.write(**changes).broken(final) == reasons


@pytest.mark.parametrize("samples", [10, 100, 297, 10_000, 50_000, 99_990])
def test_an_error_of_exactly_thirty_percent_is_allowed(run: Run, samples: int) -> None:
    run.write()
    correct = -(-7 * samples // 10)  # Better than any trial of ``write``.
    run.replica(3, progress(train=1), evaluated(correct=correct, samples=samples))
    best = run.history().best
    assert best is not None
    assert run.broken(point(error=best.error)) == []
    assert len(run.broken(point(error=(samples - correct + 1) / samples))) == 1


@pytest.mark.parametrize("change", [{"stem": "cifar"}, {"base_width": 32}])
def test_the_initial_network_must_be_resnet50(run: Run, change: dict[str, object]) -> None:
    config = CONFIG.model_copy(update={"model": ModelConfig.model_validate(change)})
    (broken,) = run.write().broken(config=config)
    assert broken.startswith("initial network: resnet50 with stem ")


@pytest.mark.parametrize(("late", "train", "trained"), [(0, 1, True), (0, 0, False), (1, 1, False)])
def test_a_grown_network_must_have_executed_a_sample_before_the_end(
    run: Run, late: int, train: int, trained: bool
) -> None:
    run.write(morphed=False)
    run.replica(3, trial_started("grown", phase=RoundPhase.WARMUP, morphisms=(DEEPER,)))
    run.replica(3600 + late, progress("grown", train=train, validation=1))
    assert run.broken() == ([] if trained else [NOT_GROWN])


def test_every_problem_of_the_journals_is_a_reason(run: Run) -> None:
    run.write()
    run.replica(3, progress("unknown", train=1))
    path = run.paths.replica_journal("r0")
    path.write_bytes(path.read_bytes() + b"{\n")
    found = run.broken()
    assert len(found) == 2
    assert all(each.startswith("records: replicas/r0/0.0/journal.jsonl, line ") for each in found)


def test_what_was_evaluated_after_the_end_is_no_hpo(run: Run) -> None:
    run.write(hpo_trials=4)
    run.replica(3599, trial_started("h9", phase=RoundPhase.HPO), progress("h9", train=1))
    run.replica(3601, evaluated("h9", correct=10))
    (found,) = run.broken()
    assert found.startswith("TPE: no replica made more than 4 trials")


def test_a_simulated_engine_computed_nothing(run: Run) -> None:
    run.replica(0.5, replica_started().model_copy(update={"engine": "simulated"}))
    assert run.write().broken() == ["engine: simulated engine: nothing was computed"]


def test_all_replicas_must_have_had_the_same_dataset(run: Run) -> None:
    run.write()
    other = IMAGENET.model_copy(update={"sha256": "1" * 64})
    run.replica(1, DatasetLoaded(dataset=other), name="r1")
    assert run.broken() == ["dataset: replicas had 2 different datasets"]
