"""The rules of versions without divisions, by which their runs are still judged."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.support.run_writer import (
    DEEPER,
    RunWriter,
    evaluated,
    progress,
    run_ended,
    run_started,
    trial_started,
)

from aiperf_hpc.config import DatasetConfig, ModelConfig, RunConfig
from aiperf_hpc.ops_counter.divisions.evidence import RunEvidence
from aiperf_hpc.ops_counter.divisions.judgement import Judgement, judge
from aiperf_hpc.ops_counter.score import ScorePoint
from aiperf_hpc.run.manifest import RunManifest
from aiperf_hpc.run.records import DatasetLoaded, ReplicaStarted
from aiperf_hpc.trial import DatasetInfo, Machine, RoundPhase, TensorSpec

IMAGENET = DatasetInfo.of_labelled_images(
    name="imagenet",
    sha256="0" * 64,
    classes=1000,
    shape=(224, 224, 3),
    train_samples=1_281_167,
    validation_samples=50_000,
)
CONFIG = RunConfig(dataset=DatasetConfig(name="imagenet", path=Path("/data")))
NO_DIVISION = "division: recorded by a version without divisions"
GOOD = ScorePoint(elapsed=3600.0, operations=1, error=0.3, regulated_error=0.3)


class Run(RunWriter):
    """A run that keeps all rules, but for what a test changes."""

    def write(
        self,
        *,
        dataset: DatasetInfo | None = IMAGENET,
        precision: str = "bf16",
        phase: RoundPhase = RoundPhase.HPO,
        morphed: bool = True,
        ended: bool = True,
        hpo_trials: int = 5,
    ) -> Run:
        self.primary(0, run_started())
        if dataset is not None:
            self.replica(1, DatasetLoaded(dataset=dataset))
        morphisms = (DEEPER,) if morphed else ()
        self.replica(2, trial_started(phase=phase, morphisms=morphisms, precision=precision))
        for number in range(hpo_trials):
            name = f"h{number}"
            self.replica(
                2, trial_started(name, phase=phase, morphisms=morphisms, precision=precision)
            )
            self.replica(2, progress(name, train=1), evaluated(name, correct=10))
        if ended:
            self.primary(3600, run_ended())
        return self

    def broken(self, point: ScorePoint = GOOD, config: RunConfig = CONFIG) -> list[str]:
        said = map(str, self.judged(point, config).violations)
        return [each for each in said if each != NO_DIVISION]

    def judged(self, point: ScorePoint = GOOD, config: RunConfig = CONFIG) -> Judgement:
        manifest = RunManifest(
            run_id="run",
            nodes=1,
            hours=1,
            launcher="local",
            versions={},
            commit=None,
            config=config,
        )
        return judge(RunEvidence(self.history(), manifest, point, 0.0))


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return Run(tmp_path)


def test_a_run_that_keeps_every_rule_of_its_time_is_official_in_no_division(run: Run) -> None:
    assert run.write().broken() == []
    judgement = run.judged()
    assert (judgement.division, list(map(str, judgement.violations))) == (None, [NO_DIVISION])


def test_a_simulated_engine_computed_nothing(run: Run) -> None:
    machine = Machine(host="h", cpu="c", cores=(0,), memory_bytes=1, accelerators=(), versions={})
    run.replica(0.5, ReplicaStarted(replica="r0", pid=1, engine="simulated", machine=machine))
    assert run.write().broken() == ["engine: simulated engine: nothing was computed"]


def test_an_hour_is_required(run: Run) -> None:
    point = ScorePoint(elapsed=3599.0, operations=1, error=0.3, regulated_error=0.3)
    assert run.write().broken(point) == ["duration: 0.999722 h; at least 1 h is required"]


def test_the_run_must_have_ended(run: Run) -> None:
    assert run.write(ended=False).broken() == ["duration: the run has not ended"]


def test_an_evaluation_is_required(run: Run) -> None:
    point = ScorePoint(elapsed=3600.0, operations=1, error=None, regulated_error=None)
    assert run.write().broken(point) == ["error: no evaluation was completed"]


def test_an_error_above_thirty_percent_is_refused(run: Run) -> None:
    point = ScorePoint(elapsed=3600.0, operations=1, error=0.30002, regulated_error=0.30002)
    assert run.write().broken(point) == ["error: 30.00%; at most 30% is required"]


@pytest.mark.parametrize("samples", [10, 100, 297, 10_000, 50_000, 99_990])
def test_an_error_of_exactly_thirty_percent_is_allowed(run: Run, samples: int) -> None:
    run.write()
    correct = -(-7 * samples // 10)  # Better than any trial of ``write``.
    run.replica(3, progress(train=1), evaluated(correct=correct, samples=samples))
    best = run.history().best
    assert best is not None
    point = ScorePoint(3600.0, 1, best.error, best.error)
    assert run.broken(point) == []
    one_less = (samples - correct + 1) / samples
    assert len(run.broken(ScorePoint(3600.0, 1, one_less, one_less))) == 1


def test_a_dataset_must_have_been_loaded(run: Run) -> None:
    assert run.write(dataset=None).broken() == ["dataset: no replica loaded a dataset"]


def test_the_dataset_must_be_imagenet(run: Run) -> None:
    digits = IMAGENET.model_copy(update={"name": "digits"})
    assert run.write(dataset=digits).broken() == ["dataset: digits; ImageNet is required"]


@pytest.mark.parametrize(
    ("key", "value", "reason"),
    [
        ("classes", 100, "100 classes; ImageNet has 1,000"),
        ("train_samples", 1_000, "1,000 train samples; ImageNet has 1,281,167"),
        ("validation_samples", 10, "10 validation samples; ImageNet has 50,000"),
    ],
)
def test_a_part_of_imagenet_is_not_imagenet(run: Run, key: str, value: int, reason: str) -> None:
    part = IMAGENET.model_copy(update={key: value})
    assert run.write(dataset=part).broken() == [f"dataset: {reason}"]


def test_all_replicas_must_have_had_the_same_dataset(run: Run) -> None:
    run.write()
    other = IMAGENET.model_copy(update={"sha256": "1" * 64})
    run.replica(1, DatasetLoaded(dataset=other), name="r1")
    assert run.broken() == ["dataset: replicas had 2 different datasets"]


@pytest.mark.parametrize("change", [{"stem": "cifar"}, {"base_width": 32}])
def test_the_initial_network_must_be_resnet50(run: Run, change: dict[str, object]) -> None:
    config = CONFIG.model_copy(update={"model": ModelConfig.model_validate(change)})
    (broken,) = run.write().broken(config=config)
    assert broken.startswith("initial network: resnet50 with stem ")


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
def test_sixteen_bits_and_more_are_allowed(run: Run, precision: str) -> None:
    assert run.write(precision=precision).broken() == []


def test_fewer_than_sixteen_bits_are_refused_by_what_was_done(run: Run) -> None:
    assert run.write(precision="fp8").broken() == ["precision: fp8; at least FP16 is required"]


def test_a_network_must_have_grown(run: Run) -> None:
    assert run.write(morphed=False).broken() == [
        "network morphism: no trial trained a network grown by morphism"
    ]


@pytest.mark.parametrize(("late", "train", "trained"), [(0, 1, True), (0, 0, False), (1, 1, False)])
def test_a_grown_network_must_have_executed_a_sample_before_the_end(
    run: Run, late: int, train: int, trained: bool
) -> None:
    run.write(morphed=False)
    run.replica(3, trial_started("grown", phase=RoundPhase.WARMUP, morphisms=(DEEPER,)))
    run.replica(3600 + late, progress("grown", train=train, validation=1))
    found = run.broken()
    assert (found == []) == trained
    assert all(line.startswith("network morphism: no trial trained") for line in found)


def test_what_was_evaluated_after_the_end_is_no_hpo(run: Run) -> None:
    run.write(hpo_trials=4)
    run.replica(3599, trial_started("h9", phase=RoundPhase.HPO), progress("h9", train=1))
    run.replica(3601, evaluated("h9", correct=10))
    (found,) = run.broken()
    assert found.startswith("TPE: no replica made more than 4 trials")


def test_hyperparameters_must_have_been_optimised(run: Run) -> None:
    assert run.write(phase=RoundPhase.WARMUP).broken() == [
        "TPE: no replica evaluated a trial of hyperparameter optimisation"
    ]


def test_trials_that_are_all_random_are_no_tpe(run: Run) -> None:
    assert CONFIG.hpo.startup_trials == 4
    assert run.write(hpo_trials=4).broken() == [
        "TPE: no replica made more than 4 trials of hyperparameter optimisation; "
        "the first 4 are random"
    ]


def test_images_of_another_size_are_not_imagenet(run: Run) -> None:
    small = IMAGENET.model_copy(update={"inputs": {"image": TensorSpec(shape=(64, 64, 3))}})
    assert run.write(dataset=small).broken() == [
        "dataset: images of (64, 64, 3); (224, 224, 3) is required"
    ]


def test_every_problem_of_the_journals_is_a_reason(run: Run) -> None:
    run.write()
    run.replica(3, progress("unknown", train=1))
    path = run.paths.replica_journal("r0")
    path.write_bytes(path.read_bytes() + b"{\n")
    found = run.broken()
    assert len(found) == 2
    assert all(
        reason.startswith("records: replicas/r0/0.0/journal.jsonl, line ") for reason in found
    )


def test_a_run_that_breaks_every_rule_says_each(run: Run) -> None:
    config = CONFIG.model_copy(update={"model": ModelConfig(base_width=2)})
    point = ScorePoint(1.0, 1, 0.9, 0.9)
    run.primary(0, run_started())
    run.replica(1, progress("unknown"))
    rules = [reason.split(":")[0] for reason in run.broken(point, config)]
    assert rules == [
        "duration", "duration", "error", "dataset", "initial network", "network morphism",
        "TPE", "records",
    ]  # fmt: skip
