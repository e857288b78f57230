"""MLPerf HPC's closed division of CosmoFlow: what keeps each rule, and what breaks it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest
from tests.support.fixed_run import broken_rules, fixed_run

from aiperf_hpc.cli import main
from aiperf_hpc.config import RunConfig, load_config
from aiperf_hpc.ops_counter.divisions import RuleCheck
from aiperf_hpc.ops_counter.divisions.evidence import RunEvidence
from aiperf_hpc.ops_counter.divisions.judgement import judge
from aiperf_hpc.trial import DatasetInfo, TensorSpec
from aiperf_hpc.workloads.cosmoflow import WORKLOAD, rules

OFFICIAL = DatasetInfo(
    name="cosmoflow",
    sha256="0" * 64,
    inputs={"volume": TensorSpec(shape=(128, 128, 128, 4))},
    targets={"values": TensorSpec(shape=(4,))},
    train_samples=524_288,
    validation_samples=65_536,
)


@pytest.mark.parametrize("preset", ["cosmoflow", "cosmoflow_v07"])
@pytest.mark.parametrize(
    "assignments",
    [
        (),
        ("training.batch_size=1024", "training.learning_rate=0.012"),
        ("model.cosmoflow.dropout=0", "model.cosmoflow.l2=0.01"),
        ("training.schedule={name: constant}",),
    ],
    ids=["as it is", "another batch", "a penalty", "no decay"],
)
def test_what_is_free_breaks_no_rule(preset: str, assignments: tuple[str, ...]) -> None:
    config = load_config(preset, assignments)
    assert broken_rules(WORKLOAD, config) == set()


@pytest.mark.parametrize(
    ("rule", "assignment", "reason"),
    [
        (rules.network, "model.cosmoflow.width=16", "model.cosmoflow.width is 16; 32 is required"),
        (rules.network, "model.cosmoflow.convolutions=4", "convolutions is 4; 5 is required"),
        (rules.optimizer, "training.optimizer=adam", "optimizer is adam; sgd is required"),
        (rules.optimizer, "training.momentum=0.8", "momentum is 0.8; 0.9 is required"),
        (rules.optimizer, "training.weight_decay=0.01", "weight_decay is 0.01; 0.0 is required"),
        (rules.optimizer, "training.max_gradient_norm=1", "max_gradient_norm is 1.0; none is"),
        (rules.schedule, "training.schedule={name: cosine}", "cosine; multi_step is required"),
        (
            rules.schedule,
            "training.schedule={name: multi_step, milestones: [9], milestone_unit: step}",
            "decays after steps",
        ),
        (rules.schedule, "training.schedule={name: constant, warmup_steps: 9}", "of 9 steps"),
        (
            rules.schedule,
            "training.schedule={name: multi_step, milestones: [9], factors: [1.0]}",
            "a decay to 1 of the peak",
        ),
        (rules.target, "training.target=0.2", "training.target is 0.2; 0.124 is required"),
        (rules.target, "training.target=null", "training.target is none; 0.124 is required"),
    ],
)
def test_what_breaks_a_rule_of_settings(
    rule: Callable[[RunConfig], RuleCheck], assignment: str, reason: str
) -> None:
    config = load_config("cosmoflow", [assignment])
    (said,) = rule(config).reasons
    assert reason in said
    assert broken_rules(WORKLOAD, config) == {rule}


class Trained(NamedTuple):
    """A run of one training."""

    dataset: DatasetInfo = OFFICIAL
    error: float = 0.12
    ended: bool = True

    def evidence(self, root: Path, *assignments: str) -> RunEvidence:
        values = 4.0 * self.dataset.validation_samples
        sums = {"absolute_error": self.error * values, "values": values}
        config = load_config("cosmoflow", assignments)
        return fixed_run(root, config, self.dataset, "mean_absolute_error", sums, ended=self.ended)


@pytest.mark.parametrize(
    ("trained", "rule", "reason"),
    [
        (Trained(), rules.data, ""),
        (Trained(), rules.reached, ""),
        (Trained(error=0.2), rules.reached, "no training has reached 0.124"),
        (Trained(ended=False), rules.reached, "no training has reached 0.124"),
        (
            Trained(OFFICIAL.model_copy(update={"name": "density"})),
            rules.data,
            "density stands in for them; cosmoflow is required",
        ),
        (
            Trained(OFFICIAL.model_copy(update={"train_samples": 262_144})),
            rules.data,
            "262,144 + 65,536 volumes; 524,288 + 65,536 are required with kernels of 3",
        ),
        (
            Trained(
                OFFICIAL.model_copy(
                    update={"inputs": {"volume": TensorSpec(shape=(64, 64, 64, 4))}}
                )
            ),
            rules.data,
            "volumes of (64, 64, 64, 4); (128, 128, 128, 4) is required",
        ),
    ],
)
def test_rules_on_records(
    trained: Trained, rule: Callable[[RunEvidence], RuleCheck], reason: str, tmp_path: Path
) -> None:
    assert rule(trained.evidence(tmp_path)).reasons == ((reason,) if reason else ())


def test_a_run_of_before_v1_has_half_the_training_samples(tmp_path: Path) -> None:
    half = Trained(OFFICIAL.model_copy(update={"train_samples": 262_144}))
    assert rules.data(half.evidence(tmp_path, "model.cosmoflow.kernel=2")).passed


def test_a_run_that_keeps_all_rules_is_told_so_and_is_still_none_of_the_scores(
    tmp_path: Path,
) -> None:
    judged = judge(Trained().evidence(tmp_path), WORKLOAD.rules)
    kept = {check.rule for check in judged.checks if check.passed}
    assert {"network", "optimizer", "schedule", "target", "data", "reached"} <= kept
    assert judged.division is None
    assert "workload" in {violation.rule for violation in judged.violations}


def test_a_configuration_is_checked_by_the_workloads_rules(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["config", "check", "cosmoflow"]) == 0
    out = capsys.readouterr().out
    assert "optimizer  PASSED  sgd, momentum 0.9\n" in out
    assert "MLPerf HPC, CosmoFlow, closed division: kept, as far as" in out
    assert main(["config", "check", "cosmoflow", "--set", "training.momentum=0"]) == 1
    out = capsys.readouterr().out
    assert "optimizer  FAILED" in out
    assert "closed division: not kept" in out
    assert main(["config", "check", "volumes"]) == 1
    assert main(["config", "check", "cosmoflow", "--division", "closed"]) == 2
    assert "official in none" in capsys.readouterr().err
