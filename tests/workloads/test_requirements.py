"""What closed divisions have in common, of runs with several replicas and trainings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from tests.support.run_manifest import run_manifest
from tests.support.run_writer import RunWriter, evaluated, run_started, trial_ended, trial_started

from aiperf_hpc.config import load_config
from aiperf_hpc.objective import ACCURACY
from aiperf_hpc.ops_counter.score import ScoreStatus
from aiperf_hpc.rules.validity.evidence import RunEvidence
from aiperf_hpc.run.manifest import RULES
from aiperf_hpc.run.records import DatasetLoaded
from aiperf_hpc.trial import DatasetInfo, RoundPhase
from aiperf_hpc.workloads.requirements import OfficialData, data_rule, reached_rule

OFFICIAL = OfficialData("digits", "images", "image", (8, 8, 1), (90, 10), classes=10)
DIGITS = DatasetInfo.of_labelled_images("digits", "0" * 64, (8, 8, 1), 10, 90, 10)


def evidence(
    root: Path, replicas: Mapping[str, Sequence[int]], *loaded: DatasetInfo
) -> RunEvidence:
    """Return a run whose replicas loaded these, and whose trainings got so many of 100 right."""
    run, number = RunWriter(root), 0
    run.primary(0, run_started())
    for (name, trainings), info in zip(replicas.items(), loaded or [DIGITS] * 9, strict=False):
        run.replica(1, DatasetLoaded(dataset=info), name=name)
        for correct in trainings:
            number += 1
            trial, at = f"t{number}", float(10 * number)
            run.replica(at, trial_started(trial, phase=RoundPhase.FIXED), name=name)
            run.replica(at + 1, evaluated(trial, correct=correct), trial_ended(trial), name=name)
    manifest = run_manifest(load_config("quickstart"), rules=RULES)
    return RunEvidence(run.history(), manifest, ScoreStatus.of(1.0, 1, None, None), 0.0)


@pytest.mark.parametrize(
    ("replicas", "value", "reasons"),
    [
        ({"r0": [80, 90], "r1": [70]}, "3 of 3 training runs", ()),
        (
            {"r0": [80, 60], "r1": [69]},
            "1 of 3 training runs",
            ("2 of 3 training runs did not reach 0.7",),
        ),
        ({"r0": [60]}, "0 of 1 training runs", ("no training run has reached 0.7",)),
        ({"r0": []}, "0 of 0 training runs", ("no training run has reached 0.7",)),
    ],
)
def test_all_trainings_that_ended_must_reach_the_target(
    replicas: Mapping[str, Sequence[int]], value: str, reasons: tuple[str, ...], tmp_path: Path
) -> None:
    found = reached_rule(ACCURACY, 0.7).check(evidence(tmp_path, replicas))
    assert (found.found, found.failures) == (value, reasons)


def test_all_replicas_must_have_the_same_data(tmp_path: Path) -> None:
    replicas: Mapping[str, Sequence[int]] = {"r0": [80], "r1": [80]}
    assert data_rule(OFFICIAL).check(evidence(tmp_path / "same", replicas)).failures == ()
    fewer = DIGITS.model_copy(update={"train_samples": 80})
    two = data_rule(OFFICIAL).check(evidence(tmp_path / "two", replicas, DIGITS, fewer))
    assert two.failures == ("replicas had 2 different datasets",)
    none = data_rule(OFFICIAL).check(evidence(tmp_path / "none", {}))
    assert (none.found, none.failures) == ("none", ("none was loaded",))
