"""What a study makes of its runs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import pytest
from tests.support.present import present
from tests.support.run_factory import Plan, write_run

from aiperf_hpc.analysis.metric import NotMeasuredError
from aiperf_hpc.analysis.study import Study, improvement, lines, make_result, measured
from aiperf_hpc.cli.study import StudyFolder, conduct, read_result
from aiperf_hpc.errors import AIPerfError, UsageError
from aiperf_hpc.results.views.run_view import RunView
from aiperf_hpc.run.records import TIME_OVER, TRAININGS_DONE

STUDY = Study(
    hours=0.1, launcher="local", factors={"a": {"seed": 1}, "b": {"seed": 2}, "c": {"seed": 3}}
)
ONE = STUDY.model_copy(update={"factors": {"a": {"seed": 1}}})


def test_a_factor_is_the_ratio_alone_and_within_all() -> None:
    values = {
        "none": [100.0], "all": [300.0], "only-a": [150.0], "only-b": [120.0],
        "without-a": [240.0], "without-c": [310.0],
    }  # fmt: skip
    result = make_result(STUDY, values, {"only-c": ["it failed"]})
    ratios = [each and each.value for e in result.effects for each in (e.alone, e.within)]
    assert ratios == [1.5, 1.25, 1.2, None, None, pytest.approx(300 / 310)]
    assert (present(result.together).value, result.complete) == (3.0, False)
    text = "\n".join(lines(result))
    assert "not measured: it failed" in text
    assert "without-b  not run yet" in text
    assert all(len(line) <= 80 for line in text.splitlines())


def test_a_run_is_measured_by_its_own_records(tmp_path: Path) -> None:
    view = RunView.read(write_run(tmp_path / "run", Plan()))
    final = view.final()
    assert measured(view, STUDY) == final.operations / final.elapsed_seconds
    trained = sum(execution.train_samples for execution in view.history.executions)
    by_rate = STUDY.model_copy(update={"metric": "throughput"})
    assert measured(view, by_rate) == trained / final.elapsed_seconds
    best = max(view.history.evaluations, key=lambda evaluation: evaluation.quality)
    to_best = {"metric": "time_to_quality", "quality": best.quality}
    found = measured(view, STUDY.model_copy(update=to_best))
    assert found == best.utc - present(view.history.start_utc)
    beyond = {"metric": "time_to_quality", "quality": 1.5}
    with pytest.raises(NotMeasuredError, match=r"no evaluation reached 1\.5"):
        measured(view, STUDY.model_copy(update=beyond))


def test_a_folder_is_one_studys(tmp_path: Path) -> None:
    folder = StudyFolder(tmp_path / "study")
    folder.begin(STUDY)
    folder.begin(STUDY)
    with pytest.raises(UsageError, match="this folder contains another study"):
        folder.begin(STUDY.model_copy(update={"hours": 0.2}))


def test_a_run_that_ended_early_is_no_measurement_and_the_next_attempt_is(tmp_path: Path) -> None:
    folder = StudyFolder(tmp_path)
    write_run(tmp_path / "runs/none-1", Plan(end_reason="the node is gone"))
    one = read_result(STUDY, folder).systems[0]
    assert one.values == ()
    assert "ended early: the node is gone" in one.missing[0]
    write_run(tmp_path / "runs/none-1-attempt-2", Plan(end_reason=TRAININGS_DONE))
    assert len(read_result(STUDY, folder).systems[0].values) == 1


def test_finished_runs_are_kept_and_failed_ones_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The runs are written at once, by who stands in for the command."""
    folder, ends = StudyFolder(tmp_path), [TIME_OVER, "r0 failed"]
    commands: list[list[str]] = []

    def run(command: Sequence[str], output: object) -> int:
        commands.append(list(command[3:]))
        path = command[command.index("--run-dir") + 1]
        write_run(Path(path), Plan(end_reason=ends.pop(0)))
        return 0

    monkeypatch.setattr("aiperf_hpc.cli.study.run_to_its_end", run)
    assert not conduct(ONE, folder, lambda _: None).complete
    ends.append(TIME_OVER)
    result = conduct(ONE, folder, lambda _: None)
    assert result.complete
    made = [Path(command[command.index("--run-dir") + 1]).name for command in commands]
    assert made == ["none-1", "only-a-1", "only-a-1-attempt-2"]
    assert commands[-1][-2:] == ["--set", "seed=1"]
    assert "r0 failed" in result.systems[1].missing[0]
    assert conduct(ONE, folder, lambda _: None) == result
    assert len(commands) == 3


def test_a_run_that_could_not_be_started_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("aiperf_hpc.cli.study.run_to_its_end", lambda *_: 2)
    result = conduct(ONE, StudyFolder(tmp_path), lambda _: None)
    assert not result.complete
    assert "not started, with exit status 2" in "\n".join(lines(result))


def test_an_interrupted_run_is_resumed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_run(tmp_path / "runs/none-1", Plan(ended=False))
    commands: list[list[str]] = []

    def run(command: Sequence[str], output: object) -> int:
        commands.append(list(command[3:]))
        return 130

    monkeypatch.setattr("aiperf_hpc.cli.study.run_to_its_end", run)
    with pytest.raises(AIPerfError, match="interrupted; run the same `aiperf study` again"):
        conduct(ONE, StudyFolder(tmp_path), lambda _: None)
    assert commands == [["resume", str(tmp_path / "runs/none-1")]]


@pytest.mark.parametrize(
    ("before", "after", "higher", "value", "deviation"),
    [
        ([10.0], [20.0], True, 2.0, None),
        ([20.0], [10.0], False, 2.0, None),
        ([20.0], [10.0], True, 0.5, None),
        ([10.0], [19.0, 21.0], True, 2.0, None),  # One measurement has no error.
        # Means 10 and 20, standard errors 1 and 1.
        ([9.0, 11.0], [19.0, 21.0], True, 2.0, 2.0 * math.sqrt(0.1**2 + 0.05**2)),
    ],
)
def test_an_improvement_is_a_ratio_of_means_with_its_error(
    before: list[float], after: list[float], higher: bool, value: float, deviation: float | None
) -> None:
    found = improvement(before, after, higher_is_better=higher)
    assert found.value == value
    assert found.deviation == pytest.approx(deviation)
