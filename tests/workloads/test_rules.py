"""The closed divisions of public benchmarks: what satisfies each rule, and what violates it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from tests.support.run_manifest import run_manifest
from tests.support.run_writer import RunWriter, evaluated, run_started, trial_ended, trial_started

from aiperf_hpc.cli import main
from aiperf_hpc.config import RunConfig, load_config
from aiperf_hpc.errors import ConfigError
from aiperf_hpc.extras import DETECTION
from aiperf_hpc.ops_counter.score import ScoreStatus
from aiperf_hpc.rules.consistency.evidence import quality as recomputed
from aiperf_hpc.rules.judgement import judge
from aiperf_hpc.rules.validity.evidence import RunEvidence
from aiperf_hpc.run.manifest import RULES as RULES_VERSION
from aiperf_hpc.run.records import DatasetLoaded
from aiperf_hpc.trial import DatasetInfo, Hyperparameters, RoundPhase, TensorSpec
from aiperf_hpc.workloads import cosmoflow, deepcam, extreme_weather, resnet50
from aiperf_hpc.workloads.base import Workload
from aiperf_hpc.workloads.deepcam import logged_settings
from aiperf_hpc.workloads.registry import WORKLOADS, initial_graph, missing, workload_of

BOXES = TensorSpec(shape=(15, 5), dtype="int32")
NO_NORM = "training.max_gradient_norm=null"
OFFICIAL = {
    "cosmoflow": DatasetInfo(
        name="cosmoflow",
        sha256="0" * 64,
        inputs={"volume": TensorSpec(shape=(128, 128, 128, 4))},
        targets={"values": TensorSpec(shape=(4,))},
        train_samples=524_288,
        validation_samples=65_536,
    ),
    "deepcam": DatasetInfo(
        name="deepcam",
        sha256="0" * 64,
        inputs={"image": TensorSpec(shape=(768, 1152, 16))},
        targets={"mask": TensorSpec(shape=(768, 1152), dtype="int32")},
        classes=3,
        train_samples=121_266,
        validation_samples=15_158,
    ),
    "extreme-weather": DatasetInfo(
        name="extremeweather",
        sha256="0" * 64,
        inputs={"image": TensorSpec(shape=(768, 1152, 16)), "boxes": BOXES},
        targets={"boxes": BOXES},
        train_samples=11_680,
        validation_samples=1_460,
    ),
    "resnet50-v1.5": DatasetInfo.of_labelled_images(
        "imagenet", "0" * 64, (224, 224, 3), 1000, 1_281_167, 50_000
    ),
}
"""The official data of each workload."""
GOOD = {"cosmoflow": 0.12, "deepcam": 0.83, "extreme-weather": 0.36, "resnet50-v1.5": 0.764}
"""A quality that reaches each workload's target."""
RULES = {
    "cosmoflow": {"network", "optimizer", "schedule", "target", "data", "reached"},
    "deepcam": {"network", "optimizer", "schedule", "target", "data", "reached"},
    "extreme-weather": {
        "network", "optimizer", "precision", "epochs", "target", "data", "reached"
    },
    "resnet50-v1.5": {"network", "optimizer", "smoothing", "epochs", "target", "data", "reached"},
}  # fmt: skip
ALL = (cosmoflow.WORKLOAD, deepcam.WORKLOAD, extreme_weather.WORKLOAD, resnet50.WORKLOAD)
FREE: Mapping[str, tuple[tuple[str, ...], ...]] = {
    "cosmoflow": (
        (),
        ("training.batch_size=1024", "training.learning_rate=0.012"),
        ("model.cosmoflow.dropout=0", "model.cosmoflow.l2=0.01"),
        ("training.schedule={name: constant}",),
    ),
    "deepcam": (
        (),
        ("training.batch_size=256", "training.learning_rate=0.002", "training.weight_decay=0"),
        ("training.optimizer=adamw", NO_NORM, "training.beta1=0.8"),
        ("training.schedule.warmup_start_factor=0.5", "training.schedule.warmup_steps=9"),
    ),
    "extreme-weather": (
        (),
        ("training.batch_size=64", "training.learning_rate=0.1"),
        ("training.target=null",),
    ),
    "resnet50-v1.5": (
        (),
        ("training.batch_size=8192", "training.learning_rate=0.1"),
        ("training.schedule={name: multi_step, milestones: [30, 60, 80]}",),
        ("training.target=null", "training.precision=bf16", "engine.name=torch"),
    ),
}


def sums_of(dataset: DatasetInfo, quality: float) -> tuple[str, dict[str, float]]:
    """Return the quality metric of a dataset's workload, and its sums for a quality."""
    samples = dataset.validation_samples
    if "values" in dataset.targets:
        values = 4.0 * samples
        return "mean_absolute_error", {"absolute_error": quality * values, "values": values}
    if "mask" in dataset.targets:
        return "intersection_over_union", {"intersection_over_union": quality * samples}
    if "boxes" in dataset.targets:
        return "mean_average_precision", {"average_precision": 4 * quality, "classes": 4.0}
    return "accuracy", {"correct": quality * samples}


def evidence(
    root: Path,
    workload: str,
    *assignments: str,
    quality: float | None = None,
    changed: Mapping[str, object] | None = None,
    ended: bool = True,
) -> RunEvidence:
    """Return a run of one training, by default on the official data and to the target."""
    dataset = OFFICIAL[workload].model_copy(update=dict(changed or {}))
    metric, sums = sums_of(dataset, GOOD[workload] if quality is None else quality)
    config = load_config(WORKLOADS[workload].presets[0], assignments)
    run, samples = RunWriter(root), dataset.validation_samples
    run.primary(0, run_started())
    run.replica(1, DatasetLoaded(dataset=dataset))
    run.replica(2, trial_started(phase=RoundPhase.FIXED))
    run.replica(3, evaluated(correct=0, metric=metric, sums=sums, samples=samples))
    if ended:
        run.replica(3, trial_ended())
    manifest = run_manifest(config, rules=RULES_VERSION, commit="c")
    return RunEvidence(run.history(), manifest, ScoreStatus.of(1.0, 1, None, None), 0.0)


def violated_rules(workload: Workload, config: RunConfig) -> dict[str, tuple[str, ...]]:
    """Return the reasons of the workload's rules of settings that a configuration violates."""
    results = (rule.check(config) for rule in workload.settings_rules)
    return {result.rule: result.failures for result in results if not result.passed}


@pytest.mark.parametrize(
    ("preset", "assignments"),
    [(preset, free) for w in ALL for preset in w.presets[:2] for free in FREE[w.name]],
)
def test_free_settings_violate_no_rule(preset: str, assignments: tuple[str, ...]) -> None:
    config = load_config(preset, assignments)
    assert violated_rules(WORKLOADS[config.workload], config) == {}


@pytest.mark.parametrize(
    ("workload", "preset", "name"),
    [
        (w, preset, name)
        for w in (extreme_weather.WORKLOAD, resnet50.WORKLOAD)
        for preset, name in zip(w.presets[:2], w.official, strict=True)
    ],
)
def test_a_preset_starts_from_the_official_network(
    workload: Workload, preset: str, name: str
) -> None:
    assert initial_graph(load_config(preset), OFFICIAL[workload.name]) == workload.official[name]()


@pytest.mark.parametrize(
    ("preset", "rule", "assignment", "reason"),
    [
        ("cosmoflow", "network", "model.cosmoflow.width=16", "model.cosmoflow.width is 16; 32 is"),
        ("cosmoflow", "network", "model.cosmoflow.conv_layers=4", "conv_layers is 4; 5 is"),
        ("cosmoflow", "optimizer", "training.optimizer=adam", "optimizer is adam; sgd is required"),
        ("cosmoflow", "optimizer", "training.momentum=0.8", "momentum is 0.8; 0.9 is required"),
        ("cosmoflow", "optimizer", "training.weight_decay=0.01", "weight_decay is 0.01; 0.0 is"),
        ("cosmoflow", "optimizer", "training.max_gradient_norm=1", "gradient_norm is 1.0; none is"),
        ("cosmoflow", "schedule", "training.schedule={name: cosine}", "cosine; multi_step is"),
        (
            "cosmoflow", "schedule",
            "training.schedule={name: multi_step, milestones: [9], milestone_unit: step}",
            "decays after steps",
        ),
        ("cosmoflow", "schedule", "training.schedule={name: constant, warmup_steps: 9}", "9 steps"),
        (
            "cosmoflow", "schedule",
            "training.schedule={name: multi_step, milestones: [9], factors: [1.0]}",
            "a decay to 1 of the peak",
        ),
        ("cosmoflow", "target", "training.target=0.2", "training.target is 0.2; 0.124 is required"),
        ("cosmoflow", "target", "training.target=null", "training.target is none; 0.124 is"),
        ("deepcam", "network", "model.deepcam.width=16", "model.deepcam.width is 16; 32 is"),
        ("deepcam", "network", "model.deepcam.middle_blocks=8", "middle_blocks is 8; 16 is"),
        ("deepcam", "optimizer", "training.optimizer=sgd", "sgd; adam, adamw or lamb is required"),
        ("deepcam", "optimizer", "training.epsilon=1e-8", "epsilon is 1e-08; 1e-06 is required"),
        ("deepcam", "optimizer", "training.weight_decay_of=kernels", "kernels; all is required"),
        ("deepcam", "optimizer", NO_NORM, "max_gradient_norm is none; 1.0 is required"),
        ("deepcam", "schedule", "training.schedule={name: linear}", "linear; multi_step or cosine"),
        ("deepcam", "schedule", "training.schedule={name: cosine}", "its number of steps"),
        ("deepcam", "schedule", "training.schedule.milestone_unit=epoch", "decays after epochs"),
        ("deepcam", "schedule", "training.schedule.factors=[0.5]", "a single decay factor"),
        ("deepcam", "schedule", "training.schedule.interval=epoch", "it must change per step"),
        (
            "deepcam", "schedule",
            "training.schedule={name: cosine, decay_steps: 9, warmup_epochs: 2}",
            "a warm-up of 2 epochs",
        ),
        ("deepcam", "target", "training.target=0.7", "training.target is 0.7; 0.82 is required"),
        (
            "extreme_weather",
            "network",
            "model.extreme_weather.regions_per_image=64",
            "regions_per_image is 64; 512 is",
        ),
        ("extreme_weather", "network", "model.extreme_weather.variant=c4", "is 2000; 12000 is"),
        ("extreme_weather", "optimizer", "training.optimizer=adam", "is adam; sgd is required"),
        ("extreme_weather", "optimizer", "training.weight_decay_in=update", "is update; loss is"),
        ("extreme_weather", "precision", "training.precision=bf16", "precision is bf16; fp32 is"),
        ("extreme_weather", "epochs", "training.max_epochs=12", "max_epochs is 12; 50 is required"),
        ("extreme_weather", "epochs", "training.patience=10", "is 10; at least 50 is required"),
        ("extreme_weather", "target", "training.target=0.3", "target is 0.3; 0.35 or none is"),
        ("resnet50_v15", "network", "model.base_width=32", "model.base_width is 32; 64 is"),
        ("resnet50_v15", "network", "model.stem=cifar", "model.stem is cifar; imagenet is"),
        ("resnet50_v15", "network", "model.blocks=[3, 4, 23, 3]", "3, 4, 23, 3); (3, 4, 6, 3) is"),
        ("resnet50_v15", "network", "model.resnet50.unused_outputs=2", "outputs is 2; 0 or 1 is"),
        ("resnet50_v15", "optimizer", "training.optimizer=lamb", "optimizer is lamb; sgd is"),
        ("resnet50_v15", "optimizer", "training.momentum=0.9", "momentum is 0.9; 0.875 is"),
        ("resnet50_v15", "optimizer", "training.weight_decay=0.0001", "is 0.0001; 3.05"),
        ("resnet50_v15", "optimizer", "training.weight_decay_of=kernels", "is kernels; all is"),
        ("resnet50_v15", "optimizer", "training.weight_decay_in=update", "is update; loss is"),
        ("resnet50_v15", "optimizer", "training.max_gradient_norm=1", "norm is 1.0; none is"),
        ("resnet50_v15", "smoothing", "training.label_smoothing=0", "label_smoothing is 0; 0.1 is"),
        ("resnet50_v15", "epochs", "training.max_epochs=50", "max_epochs is 50; 90 is required"),
        ("resnet50_v15", "epochs", "training.patience=10", "patience is 10; at least 90 is"),
        ("resnet50_v15", "target", "training.target=0.75", "target is 0.75; 0.763 or none is"),
    ],
)  # fmt: skip
def test_a_setting_violates_a_rule(preset: str, rule: str, assignment: str, reason: str) -> None:
    further = ["training.schedule.factor=0.1"] if "schedule.factors" in assignment else []
    config = load_config(preset, [assignment, *further])
    violated = violated_rules(WORKLOADS[config.workload], config)
    assert violated.keys() == {rule}
    assert any(reason in each for each in violated[rule])


SHAPE = {"inputs": {"volume": TensorSpec(shape=(64, 64, 64, 4))}}
FEW = {"train_samples": 262_144}


@pytest.mark.parametrize(
    ("workload", "changed", "reason"),
    [
        ("cosmoflow", {"name": "density"}, "density stands in for them; cosmoflow is required"),
        (
            "cosmoflow", FEW,
            "262,144 + 65,536 volumes; 524,288 + 65,536 are required with kernels of 3",
        ),
        ("cosmoflow", SHAPE, "volumes of (64, 64, 64, 4); (128, 128, 128, 4) is required"),
        ("deepcam", {"classes": None}, "none classes; 3 are required"),
        ("extreme-weather", {"train_samples": 1_460}, "2,920 maps; 13,140 at least are required"),
        ("resnet50-v1.5", {"classes": 100}, "100 classes; 1000 are required"),
    ],
)  # fmt: skip
def test_other_data_than_the_official_violates_a_rule(
    workload: str, changed: Mapping[str, object], reason: str, tmp_path: Path
) -> None:
    rule = WORKLOADS[workload].data_rule
    assert rule is not None
    assert rule.check(evidence(tmp_path, workload, changed=changed)).failures == (reason,)


@pytest.mark.parametrize(
    ("assignment", "reason"),
    [
        ("dataset.augment=false", "images are not augmented (dataset.augment)"),
        ("dataset.min_crop_area=0.08", "dataset.min_crop_area is 0.08; 0.05 is required"),
        ("dataset.storage_format=resized", "dataset.storage_format is resized; jpeg is required"),
    ],
)
def test_another_augmentation_violates_a_rule(assignment: str, reason: str, tmp_path: Path) -> None:
    rule = resnet50.WORKLOAD.data_rule
    assert rule is not None
    assert rule.check(evidence(tmp_path, "resnet50-v1.5", assignment)).failures == (reason,)


def test_cosmoflow_before_v1_has_half_the_training_samples(tmp_path: Path) -> None:
    rule = cosmoflow.WORKLOAD.data_rule
    assert rule is not None
    assert rule.check(
        evidence(tmp_path, "cosmoflow", "model.cosmoflow.kernel_size=2", changed=FEW)
    ).passed


@pytest.mark.parametrize(
    ("workload", "quality", "ended", "target"),
    [
        ("cosmoflow", 0.2, True, "0.124"),
        ("cosmoflow", 0.12, False, "0.124"),
        ("deepcam", 0.81, True, "0.82"),
        ("extreme-weather", 0.34, True, "0.35"),
        ("resnet50-v1.5", 0.76298, True, "0.763"),
    ],
)
def test_a_training_must_reach_the_target(
    workload: str, quality: float, ended: bool, target: str, tmp_path: Path
) -> None:
    (rule,) = WORKLOADS[workload].record_rules
    run = evidence(tmp_path, workload, quality=quality, ended=ended)
    assert rule.check(run).failures == (f"no training run has reached {target}",)


@pytest.mark.parametrize("workload", RULES)
def test_a_run_that_satisfies_all_rules_has_none_of_this_benchmarks_divisions(
    workload: str, tmp_path: Path
) -> None:
    judged = judge(evidence(tmp_path, workload), WORKLOADS[workload].rules)
    assert RULES[workload] <= {check.rule for check in judged.results if check.passed}
    assert judged.division is None
    assert "workload" in {violation.rule for violation in judged.violations}


def test_verification_computes_the_precision_by_its_own_formula(tmp_path: Path) -> None:
    (trial,) = evidence(tmp_path, "extreme-weather", quality=0.3).trials
    assert recomputed(trial.evaluations[-1]) == pytest.approx(0.3)


@pytest.mark.parametrize(
    ("arguments", "status", "lines"),
    [
        (
            ("cosmoflow",), 0,
            ("optimizer PASSED sgd, momentum 0.9", "CosmoFlow, closed division: satisfied"),
        ),
        (
            ("cosmoflow", "--set", "training.momentum=0"), 1,
            ("optimizer FAILED", "closed division: violated"),
        ),
        (("volumes",), 1, ()),
        (("cosmoflow", "--division", "closed"), 2, ("official in no division",)),
    ],
)  # fmt: skip
def test_a_configuration_is_checked_by_its_workloads_rules(
    arguments: tuple[str, ...],
    status: int,
    lines: tuple[str, ...],
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["config", "check", *arguments]) == status
    printed = " ".join("".join(capsys.readouterr()).split())
    assert all(line in printed for line in lines)


def test_another_engine_and_missing_packages_are_reported_before_a_start(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    config = load_config("extreme_weather_laptop", ["engine.name=tensorflow"])
    with pytest.raises(ConfigError, match="'extreme-weather' is trained by torch; set engine.name"):
        workload_of(config)
    assert missing(load_config("extreme_weather_laptop")) == []
    workload = extreme_weather.WORKLOAD
    lacking = replace(workload, needs=(DETECTION._replace(package="no_such_package"),))
    monkeypatch.setitem(WORKLOADS, workload.name, lacking)
    (line,) = missing(load_config("extreme_weather_laptop"))
    assert "workload 'extreme-weather' needs the package 'no_such_package': " in line


def hyperparameters(config: RunConfig) -> Hyperparameters:
    return Hyperparameters.model_validate(config.training, from_attributes=True)


def test_deepcams_logs_state_the_schedule_as_the_reference_does() -> None:
    """Its milestones count from the step after the warm-up; its rate is that before its factor."""
    config = load_config("deepcam", ["training.schedule.warmup_start_factor=0.25"])
    found = logged_settings(config, hyperparameters(config))
    assert found["opt_name"] == "LAMB"
    assert found["opt_lr"] == pytest.approx(0.0055 / 4)
    assert found["scheduler_lr_warmup_factor"] == 4.0
    assert found["scheduler_milestones"] == [800]
    assert (found["scheduler_type"], found["scheduler_decay_rate"]) == ("multistep", 0.1)
    assignments = ["training.optimizer=adam", NO_NORM, "training.schedule.end_factor=0.1"]
    cosine = load_config("deepcam_cosine", assignments)
    found = logged_settings(cosine, hyperparameters(cosine))
    assert (found["scheduler_type"], found["scheduler_t_max"]) == ("cosine_annealing", 9000)
    assert found["scheduler_eta_min"] == pytest.approx(0.000155)
    assert (found["opt_name"], "opt_max_grad_norm" in found) == ("Adam", False)
