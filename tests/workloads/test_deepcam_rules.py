"""MLPerf HPC's closed division of DeepCAM: what keeps each rule, and what breaks it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from tests.support.fixed_run import broken_rules, fixed_run

from aiperf_hpc.cli import main
from aiperf_hpc.config import RunConfig, load_config
from aiperf_hpc.ops_counter.divisions import RuleCheck
from aiperf_hpc.ops_counter.divisions.evidence import RunEvidence
from aiperf_hpc.trial import DatasetInfo, Hyperparameters, TensorSpec
from aiperf_hpc.workloads.deepcam import WORKLOAD, rules
from aiperf_hpc.workloads.deepcam.logged import logged

OFFICIAL = DatasetInfo(
    name="deepcam",
    sha256="0" * 64,
    inputs={"image": TensorSpec(shape=(768, 1152, 16))},
    targets={"mask": TensorSpec(shape=(768, 1152), dtype="int32")},
    classes=3,
    train_samples=121_266,
    validation_samples=15_158,
)
NO_NORM = "training.max_gradient_norm=null"


@pytest.mark.parametrize("preset", ["deepcam", "deepcam_cosine"])
@pytest.mark.parametrize(
    "assignments",
    [
        (),
        ("training.batch_size=256", "training.learning_rate=0.002", "training.weight_decay=0"),
        ("training.optimizer=adamw", NO_NORM, "training.beta1=0.8"),
        ("training.schedule.warmup_start=0.5", "training.schedule.warmup_steps=9"),
    ],
    ids=["as it is", "another batch", "another optimizer", "another warm-up"],
)
def test_what_is_free_breaks_no_rule(preset: str, assignments: tuple[str, ...]) -> None:
    config = load_config(preset, assignments)
    assert broken_rules(WORKLOAD, config) == set()


@pytest.mark.parametrize(
    ("rule", "assignment", "reason"),
    [
        (rules.network, "model.deepcam.width=16", "model.deepcam.width is 16; 32 is required"),
        (rules.network, "model.deepcam.middle_blocks=8", "middle_blocks is 8; 16 is required"),
        (rules.optimizer, "training.optimizer=sgd", "sgd; adam, adamw or lamb is required"),
        (rules.optimizer, "training.epsilon=1e-8", "training.epsilon is 1e-08; 1e-06 is required"),
        (rules.optimizer, "training.weight_decay_of=kernels", "kernels; all is required"),
        (rules.optimizer, NO_NORM, "max_gradient_norm is none; 1.0 is required"),
        (rules.schedule, "training.schedule={name: linear}", "linear; multi_step or cosine is"),
        (rules.schedule, "training.schedule={name: cosine}", "its steps are stated (wave_steps)"),
        (rules.schedule, "training.schedule.milestone_unit=epoch", "decays after epochs"),
        (rules.schedule, "training.schedule.factors=[0.5]", "there is one rate of decay"),
        (rules.schedule, "training.schedule.interval=epoch", "it changes by steps"),
        (
            rules.schedule,
            "training.schedule={name: cosine, wave_steps: 9, warmup_epochs: 2}",
            "a warm-up of 2 epochs",
        ),
        (rules.target, "training.target=0.7", "training.target is 0.7; 0.82 is required"),
    ],
)
def test_what_breaks_a_rule_of_settings(
    rule: Callable[[RunConfig], RuleCheck], assignment: str, reason: str
) -> None:
    assignments = [assignment]
    if "factors" in assignment:
        assignments.append("training.schedule.factor=0.1")
    config = load_config("deepcam", assignments)
    assert any(reason in said for said in rule(config).reasons)
    assert broken_rules(WORKLOAD, config) == {rule}


def evidence(root: Path, quality: float = 0.83, dataset: DatasetInfo = OFFICIAL) -> RunEvidence:
    """Of a run of one training."""
    sums = {"intersection_over_union": quality * dataset.validation_samples}
    return fixed_run(root, load_config("deepcam"), dataset, "intersection_over_union", sums)


@pytest.mark.parametrize(
    ("quality", "changed", "rule", "reason"),
    [
        (0.83, {}, rules.data, ""),
        (0.83, {}, rules.reached, ""),
        (0.81, {}, rules.reached, "no training has reached 0.82"),
        (0.83, {"name": "weather_masks"}, rules.data, "weather_masks stands in for them; deepcam"),
        (0.83, {"train_samples": 9}, rules.data, "9 + 15,158 maps; 121,266 + 15,158 are"),
        (
            0.83,
            {"inputs": {"image": TensorSpec(shape=(96, 144, 16))}},
            rules.data,
            "maps of (96, 144, 16); (768, 1152, 16) is required",
        ),
    ],
)
def test_rules_on_records(
    quality: float,
    changed: dict[str, object],
    rule: Callable[[RunEvidence], RuleCheck],
    reason: str,
    tmp_path: Path,
) -> None:
    found = rule(evidence(tmp_path, quality, OFFICIAL.model_copy(update=changed))).reasons
    assert len(found) == bool(reason)
    assert all(said.startswith(reason) for said in found)


def used_by(config: RunConfig) -> Hyperparameters:
    return Hyperparameters.model_validate(config.training, from_attributes=True)


def test_logs_state_the_schedule_as_the_reference_has_it() -> None:
    """Its milestones count from behind the warm-up and a step more; its rate is that of before."""
    config = load_config("deepcam", ["training.schedule.warmup_start=0.25"])
    found = logged(config, used_by(config))
    assert found["opt_name"] == "LAMB"
    assert found["opt_lr"] == pytest.approx(0.0055 / 4)
    assert found["scheduler_lr_warmup_factor"] == 4.0
    assert found["scheduler_milestones"] == [800]
    assert (found["scheduler_type"], found["scheduler_decay_rate"]) == ("multistep", 0.1)
    assignments = ["training.optimizer=adam", NO_NORM, "training.schedule.end=0.1"]
    cosine = load_config("deepcam_cosine", assignments)
    found = logged(cosine, used_by(cosine))
    assert (found["scheduler_type"], found["scheduler_t_max"]) == ("cosine_annealing", 9000)
    assert found["scheduler_eta_min"] == pytest.approx(0.000155)
    assert (found["opt_name"], "opt_max_grad_norm" in found) == ("Adam", False)


def test_a_configuration_is_checked_by_the_workloads_rules(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["config", "check", "deepcam"]) == 0
    assert "optimizer  PASSED  lamb\n" in capsys.readouterr().out
    assert main(["config", "check", "deepcam_laptop"]) == 1
    assert "closed division: not kept" in capsys.readouterr().out
