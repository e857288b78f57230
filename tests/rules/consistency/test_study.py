"""Studies of hyperparameter optimization, compared with the journals."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from tests.support.official_run import ROUNDS, Rewrite, as_it_is, write_official_run
from tests.support.rules import check_rule

from aiperf_hpc.rules.consistency.evidence import Evidence
from aiperf_hpc.run import records
from aiperf_hpc.run.paths import RunPaths
from aiperf_hpc.run.records import AnyEvent

Line = dict[str, Any]
SIZES = {"name": "CategoricalDistribution", "attributes": {"choices": [256, 320]}}
TOLD = "2026-11-21T10:00:00.000001+00:00"
TRIALS = sum(round_ > 3 for round_, _ in ROUNDS)


def study() -> list[Line]:
    """Return what Optuna writes of the trials of a replica of the official run."""
    created = {
        "op_code": 4, "state": 0, "value": None, "params": {"batch_size": 1},
        "distributions": {"batch_size": json.dumps(SIZES)}, "user_attrs": {"chosen_by": "tpe"},
    }  # fmt: skip
    lines: list[Line] = [{"op_code": 0, "study_name": "r0"}]
    for number in range(TRIALS):
        told = {"trial_id": number, "state": 1, "values": [0.8], "datetime_complete": TOLD}
        lines += [created, {"op_code": 6, **told}]
    return lines


def written(root: Path, lines: list[Line] | None = None, rewrite: Rewrite = as_it_is) -> RunPaths:
    """Write the official run, with these lines in the study of r0."""
    paths = write_official_run(root, rewrite)
    for name, own in (("r0", lines or study()), ("r1", study())):
        paths.study(name).write_text("".join(f"{json.dumps(line)}\n" for line in own), "utf-8")
    return paths


def wrong(root: Path, lines: list[Line], rewrite: Rewrite = as_it_is) -> list[str]:
    return list(check_rule("study", written(root, lines, rewrite)).failures)


@pytest.mark.parametrize("tail", [b'{"op_code": 4, "sta', bytes(4096)])
def test_a_study_whose_replica_died_while_writing_ends_in_an_unfinished_line(
    tmp_path: Path, tail: bytes
) -> None:
    paths = written(tmp_path)
    for name in ("r0", "r1"):
        with paths.study(name).open("ab") as file:
            file.write(tail)
    assert check_rule("study", paths).passed


def test_a_study_that_was_told_what_was_tried(tmp_path: Path) -> None:
    paths = written(tmp_path)
    result = check_rule("study", paths)
    assert (result.checked, result.failures) == (2 * TRIALS, ())
    paths.study("r1").unlink()
    assert check_rule("study", paths).failures == ("replicas/r1/0.0/study.log is missing",)
    paths.study("r1").write_text("[1]\n")
    (said,) = check_rule("study", paths).failures
    assert said.startswith("replicas/r1/0.0/study.log is not a study: ")


def told_more(lines: list[Line]) -> None:
    lines[2]["values"] = [0.9]


def asked_less(lines: list[Line]) -> None:
    del lines[-2:]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (told_more, "it received 0.9 for batch size 320, which no trial reached"),
        (asked_less, "it suggested 4 trials, its journal has 5"),
    ],
)
def test_a_study_of_other_trials(
    tmp_path: Path, change: Callable[[list[Line]], None], said: str
) -> None:
    lines = study()
    change(lines)
    assert wrong(tmp_path, lines) == [f"replicas/r0/0.0/study.log: {said}"]


def test_an_accuracy_that_was_raised_in_the_journal_alone(tmp_path: Path) -> None:
    def better(who: str, _: float, event: AnyEvent) -> AnyEvent:
        if who == "r0" and isinstance(event, records.Evaluated) and event.trial == "r0-t4":
            return event.model_copy(update={"sums": {"correct": 49_000.0}})
        return event

    assert wrong(tmp_path, study(), better) == [
        "replicas/r0/0.0/study.log: it has no value for r0-t4, which was completed"
    ]


def test_what_a_life_that_was_replaced_told_its_study_later_counts_for_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = study()
    told_more(lines)
    told_utc = datetime.fromisoformat(TOLD).timestamp()
    monkeypatch.setattr(Evidence, "fence", lambda run, journal: told_utc + 1.0)
    said = "replicas/r0/0.0/study.log: it received 0.9 for batch size 320, which no trial reached"
    assert wrong(tmp_path / "before", lines) == [said]
    monkeypatch.setattr(Evidence, "fence", lambda run, journal: told_utc - 1.0)
    assert wrong(tmp_path / "behind", lines) == []
