"""HPC AI500's rules of extreme weather analytics: what keeps each, and what breaks it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import pytest
from tests.support.fixed_run import broken_rules, fixed_run

from aiperf_hpc.cli import main
from aiperf_hpc.config import RunConfig, load_config
from aiperf_hpc.errors import ConfigError
from aiperf_hpc.extras import DETECTION
from aiperf_hpc.ops_counter.divisions import RuleCheck
from aiperf_hpc.ops_counter.divisions.evidence import RunEvidence
from aiperf_hpc.ops_counter.divisions.judgement import judge
from aiperf_hpc.trial import DatasetInfo, TensorSpec
from aiperf_hpc.verification.evidence import quality as recounted
from aiperf_hpc.workloads.extreme_weather import WORKLOAD, rules
from aiperf_hpc.workloads.registry import WORKLOADS, initial_graph, missing, workload_of

BOXES = TensorSpec(shape=(15, 5), dtype="int32")
OFFICIAL = DatasetInfo(
    name="extremeweather",
    sha256="0" * 64,
    inputs={"image": TensorSpec(shape=rules.OFFICIAL.shape), "boxes": BOXES},
    targets={"boxes": BOXES},
    train_samples=11_680,
    validation_samples=1_460,
)


@pytest.mark.parametrize("preset", WORKLOAD.presets[:2])
@pytest.mark.parametrize(
    "assignments",
    [(), ("training.batch_size=64", "training.learning_rate=0.1"), ("training.target=null",)],
    ids=["as it is", "another batch", "all epochs"],
)
def test_what_is_free_breaks_no_rule(preset: str, assignments: tuple[str, ...]) -> None:
    config = load_config(preset, assignments)
    assert broken_rules(WORKLOAD, config) == set()


@pytest.mark.parametrize(
    ("preset", "name"), list(zip(WORKLOAD.presets[:2], WORKLOAD.official, strict=True))
)
def test_a_preset_starts_from_the_official_network(preset: str, name: str) -> None:
    assert initial_graph(load_config(preset), OFFICIAL) == WORKLOAD.official[name]()


@pytest.mark.parametrize(
    ("rule", "assignment", "reason"),
    [
        (rules.network, "model.extreme_weather.regions=64", "regions is 64; 512 is required"),
        (rules.network, "model.extreme_weather.variant=c4", "proposals is 2000; 12000 is"),
        (rules.optimizer, "training.optimizer=adam", "optimizer is adam; sgd is required"),
        (rules.optimizer, "training.weight_decay_in=update", "is update; loss is required"),
        (rules.precision, "training.precision=bf16", "precision is bf16; fp32 is required"),
        (rules.epochs, "training.max_epochs=12", "max_epochs is 12; 50 is required"),
        (rules.epochs, "training.patience=10", "patience is 10; at least 50 is required"),
        (rules.target, "training.target=0.3", "target is 0.3; 0.35 or none is required"),
    ],
)
def test_what_breaks_a_rule_of_settings(
    rule: Callable[[RunConfig], RuleCheck], assignment: str, reason: str
) -> None:
    config = load_config("extreme_weather", [assignment])
    (said,) = rule(config).reasons
    assert reason in said
    assert broken_rules(WORKLOAD, config) == {rule}


class Trained(NamedTuple):
    """A run of one training."""

    dataset: DatasetInfo = OFFICIAL
    precision: float = 0.36
    ended: bool = True

    def evidence(self, root: Path) -> RunEvidence:
        sums = {"average_precision": 4 * self.precision, "classes": 4.0}
        config = load_config("extreme_weather")
        return fixed_run(
            root, config, self.dataset, "mean_average_precision", sums, ended=self.ended
        )


@pytest.mark.parametrize(
    ("trained", "rule", "reason"),
    [
        (Trained(), rules.data, ""),
        (Trained(), rules.reached, ""),
        (Trained(precision=0.34), rules.reached, "no training has reached 0.35"),
        (Trained(ended=False), rules.reached, "no training has reached 0.35"),
        (
            Trained(OFFICIAL.model_copy(update={"name": "weather_boxes"})),
            rules.data,
            "weather_boxes stands in for them; extremeweather is required",
        ),
        (
            Trained(OFFICIAL.model_copy(update={"train_samples": 1_460})),
            rules.data,
            "2,920 maps; 13,140 at least are required",
        ),
    ],
)
def test_rules_on_records(
    trained: Trained, rule: Callable[[RunEvidence], RuleCheck], reason: str, tmp_path: Path
) -> None:
    assert rule(trained.evidence(tmp_path)).reasons == ((reason,) if reason else ())


def test_a_run_that_keeps_all_rules_is_told_so_and_is_still_none_of_the_scores(
    tmp_path: Path,
) -> None:
    judged = judge(Trained().evidence(tmp_path), WORKLOAD.rules)
    kept = {check.rule for check in judged.checks if check.passed}
    assert {"network", "optimizer", "precision", "epochs", "target", "data", "reached"} <= kept
    assert judged.division is None


def test_verification_has_the_precision_by_a_formula_of_its_own(tmp_path: Path) -> None:
    (trial,) = Trained(precision=0.3).evidence(tmp_path).trials
    assert recounted(trial.evaluations[-1]) == pytest.approx(0.3)


def test_a_configuration_is_checked_by_the_workloads_rules(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["config", "check", "extreme_weather"]) == 0
    assert "extreme weather analytics, closed division: kept" in capsys.readouterr().out
    assert main(["config", "check", "extreme_weather_laptop"]) == 1
    assert "network FAILED" in " ".join(capsys.readouterr().out.split())


def test_another_engine_and_what_is_not_installed_are_said_before_a_start(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    config = load_config("extreme_weather_laptop", ["engine.name=tensorflow"])
    with pytest.raises(ConfigError, match="'extreme-weather' is trained by torch; set engine.name"):
        workload_of(config)
    assert missing(load_config("extreme_weather_laptop")) == []
    lacking = replace(WORKLOAD, needs=(DETECTION._replace(package="no_such_package"),))
    monkeypatch.setitem(WORKLOADS, WORKLOAD.name, lacking)
    (said,) = missing(load_config("extreme_weather_laptop"))
    assert "workload 'extreme-weather' needs the package 'no_such_package': " in said
