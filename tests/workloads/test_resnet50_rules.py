"""HPC AI500's rules of its ResNet-50: what keeps each, and what breaks it."""

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
from aiperf_hpc.trial import DatasetInfo
from aiperf_hpc.workloads.resnet50 import WORKLOAD, rules

OFFICIAL = DatasetInfo.of_labelled_images(
    "imagenet", "0" * 64, (224, 224, 3), 1000, 1_281_167, 50_000
)


@pytest.mark.parametrize("preset", WORKLOAD.presets[:2])
@pytest.mark.parametrize(
    "assignments",
    [
        (),
        ("training.batch_size=8192", "training.learning_rate=0.1"),
        ("training.schedule={name: multi_step, milestones: [30, 60, 80]}",),
        ("training.target=null", "training.precision=bf16", "engine.name=torch"),
    ],
    ids=["as it is", "another batch", "another schedule", "all epochs"],
)
def test_what_is_free_breaks_no_rule(preset: str, assignments: tuple[str, ...]) -> None:
    config = load_config(preset, assignments)
    assert broken_rules(WORKLOAD, config) == set()


@pytest.mark.parametrize(
    ("rule", "assignment", "reason"),
    [
        (rules.network, "model.base_width=32", "model.base_width is 32; 64 is required"),
        (rules.network, "model.stem=cifar", "model.stem is cifar; imagenet is required"),
        (rules.network, "model.blocks=[3, 4, 23, 3]", "(3, 4, 23, 3); (3, 4, 6, 3) is required"),
        (rules.network, "model.resnet50.spare_outputs=2", "spare_outputs is 2; 0 or 1 is"),
        (rules.optimizer, "training.optimizer=lamb", "optimizer is lamb; sgd is required"),
        (rules.optimizer, "training.momentum=0.9", "momentum is 0.9; 0.875 is required"),
        (rules.optimizer, "training.weight_decay=0.0001", "weight_decay is 0.0001; 3.05"),
        (rules.optimizer, "training.weight_decay_of=kernels", "is kernels; all is required"),
        (rules.optimizer, "training.weight_decay_in=update", "is update; loss is required"),
        (rules.optimizer, "training.max_gradient_norm=1", "max_gradient_norm is 1.0; none is"),
        (rules.smoothing, "training.label_smoothing=0", "label_smoothing is 0; 0.1 is required"),
        (rules.epochs, "training.max_epochs=50", "max_epochs is 50; 90 is required"),
        (rules.epochs, "training.patience=10", "patience is 10; at least 90 is required"),
        (rules.target, "training.target=0.75", "target is 0.75; 0.763 or none is required"),
    ],
)
def test_what_breaks_a_rule_of_settings(
    rule: Callable[[RunConfig], RuleCheck], assignment: str, reason: str
) -> None:
    config = load_config("resnet50_v15", [assignment])
    (said,) = rule(config).reasons
    assert reason in said
    assert broken_rules(WORKLOAD, config) == {rule}


class Trained(NamedTuple):
    """A run of one training."""

    dataset: DatasetInfo = OFFICIAL
    correct: int = 38_200
    ended: bool = True

    def evidence(self, root: Path, *assignments: str) -> RunEvidence:
        config = load_config("resnet50_v15", assignments)
        sums = {"correct": float(self.correct)}
        return fixed_run(root, config, self.dataset, "accuracy", sums, ended=self.ended)


@pytest.mark.parametrize(
    ("trained", "rule", "reason"),
    [
        (Trained(), rules.data, ""),
        (Trained(), rules.reached, ""),
        (Trained(correct=38_149), rules.reached, "no training has reached 0.763"),
        (Trained(ended=False), rules.reached, "no training has reached 0.763"),
        (
            Trained(OFFICIAL.model_copy(update={"name": "cifar10"})),
            rules.data,
            "cifar10 stands in for them; imagenet is required",
        ),
        (
            Trained(OFFICIAL.model_copy(update={"classes": 100})),
            rules.data,
            "100 classes; 1000 are required",
        ),
        (
            Trained(OFFICIAL.model_copy(update={"train_samples": 1_281_166})),
            rules.data,
            "1,281,166 + 50,000 images; 1,281,167 + 50,000 are required",
        ),
        (
            Trained(
                DatasetInfo.of_labelled_images(
                    "imagenet", "0" * 64, (192, 192, 3), 1000, 1_281_167, 50_000
                )
            ),
            rules.data,
            "images of (192, 192, 3); (224, 224, 3) is required",
        ),
    ],
)
def test_rules_on_records(
    trained: Trained, rule: Callable[[RunEvidence], RuleCheck], reason: str, tmp_path: Path
) -> None:
    assert rule(trained.evidence(tmp_path)).reasons == ((reason,) if reason else ())


@pytest.mark.parametrize(
    ("assignment", "reason"),
    [
        ("dataset.augment=false", "images are not augmented (dataset.augment)"),
        ("dataset.least_crop=0.08", "dataset.least_crop is 0.08; 0.05 is required"),
        ("dataset.stored=resized", "dataset.stored is resized; jpeg is required"),
    ],
)
def test_another_augmentation_is_told(assignment: str, reason: str, tmp_path: Path) -> None:
    assert rules.data(Trained().evidence(tmp_path, assignment)).reasons == (reason,)


def test_a_run_that_keeps_all_rules_is_told_so_and_is_still_none_of_the_scores(
    tmp_path: Path,
) -> None:
    judged = judge(Trained().evidence(tmp_path), WORKLOAD.rules)
    kept = {check.rule for check in judged.checks if check.passed}
    asked = {"network", "optimizer", "smoothing", "epochs", "target", "data", "reached"}
    assert asked <= kept
    assert judged.division is None
    assert "workload" in {violation.rule for violation in judged.violations}


def test_a_configuration_is_checked_by_the_workloads_rules(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["config", "check", "resnet50_v15"]) == 0
    assert "HPC AI500 V2.0, image classification, closed division: kept" in capsys.readouterr().out
    assert main(["config", "check", "resnet50_v15", "--set", "training.momentum=0"]) == 1
    assert "optimizer  FAILED" in capsys.readouterr().out
