"""Which runs count: the rules of MLPerf, on numbers worked out by hand."""

from __future__ import annotations

import json
import os
import statistics
from pathlib import Path

import pytest
from scipy.stats import trim_mean
from tests.support.result_logs import heading, line, training, write_log

from aiperf_hpc.analysis.analysis import Analysis, analyze
from aiperf_hpc.analysis.metric import NotMeasuredError
from aiperf_hpc.analysis.metrics.mlperf_rules import (
    mean_without_extremes,
    olympic_runs,
    required_runs,
    runs_dropped,
)
from aiperf_hpc.analysis.options import Options
from aiperf_hpc.analysis.overview import lines
from aiperf_hpc.analysis.readers.sources import read_sources
from aiperf_hpc.analysis.sections.weak_scaling import WeakScaling, WeakScalings
from aiperf_hpc.cli.program import main

FORTY: list[float | None] = [float(number) for number in range(40)]
TOO_FEW = "too few runs ({}) to omit the fastest and the slowest: all count"
FAILED = "{} of {} runs failed, but at most {} may fail: the result is invalid"


@pytest.mark.parametrize(
    ("times", "lost", "drop", "indices", "valid", "problem"),
    [
        ([5.0, 1.0, 3.0, 9.0, 4.0], 0, 1, (2, 4, 0), True, None),
        ([2.0, 2.0, 2.0, 2.0], 0, 1, (1, 2), True, None),
        # One failed run is the slowest, two make it invalid.
        ([5.0, None, 3.0, 9.0, 4.0], 0, 1, (4, 0, 3), True, None),
        ([5.0, 3.0, 9.0, 4.0], 1, 1, (3, 0, 2), True, None),
        ([5.0, None, 3.0, None, 4.0], 0, 1, (2, 4, 0), False, FAILED.format(2, 5, 1)),
        # Of unet3d four are left out at either end.
        (FORTY, 0, runs_dropped("unet3d"), tuple(range(4, 36)), True, None),
        ([*FORTY[:36], *[None] * 4], 0, 4, tuple(range(4, 36)), True, None),
        ([*FORTY[:36], *[None] * 5], 0, 4, tuple(range(36)), False, FAILED.format(5, 41, 4)),
        # Leaving both ends out leaves nothing, and where all count a failure does.
        ([4.0, 5.0], 0, 1, (0, 1), True, TOO_FEW.format(2)),
        ([4.0, None], 0, 1, (0,), False, TOO_FEW.format(2)),
        ([4.0], 1, 1, (0,), False, TOO_FEW.format(2)),
        ([None, None], 0, 1, (), False, FAILED.format(2, 2, 1)),
    ],
)
def test_the_fastest_and_the_slowest_do_not_count(
    times: list[float | None], lost: int, drop: int, indices: tuple[int, ...], valid: bool,
    problem: str | None,
) -> None:  # fmt: skip
    problems = () if problem is None else (problem,)
    assert olympic_runs(times, drop, lost) == (indices, valid, problems)


def test_the_mean_is_scipys_trimmed_mean() -> None:
    values = [364.7, 317.2, 458.8, 340.4, 345.1, 420.2, 367.8, 346.2, 391.9, 385.6]
    assert mean_without_extremes(values) == pytest.approx(trim_mean(values, 0.1))
    assert mean_without_extremes(values) == pytest.approx(statistics.fmean(sorted(values)[1:-1]))
    with pytest.raises(NotMeasuredError, match="too few"):
        mean_without_extremes([1.0, 2.0])


def test_how_many_runs_the_rules_want() -> None:
    """hpc_training_rules.adoc, Benchmark results; benchmark_meta.py of mlcommons/logging."""
    for benchmark, round_, runs in (
        ("cosmoflow", "hpc-3.0", 10), ("deepcam", "hpc-3.0", 5), ("oc20", "hpc-3.0", 5),
        ("openfold", None, 10), ("ncf", "training-0.5", 100), ("ncf", "training-0.6", 10),
        ("unheard", None, None),
    ):  # fmt: skip
        assert required_runs(benchmark, round_) == runs


def analysed(root: Path) -> Analysis:
    return analyze(read_sources([root]), Options())


def entry(root: Path, lengths: list[float | None], benchmark: str = "oc20") -> Path:
    """Write an entry whose runs take epochs of so many seconds; None is one that failed."""
    folder = root / "Lab/results/box/strong" / benchmark
    for number, seconds in enumerate(lengths, 1):
        run = training(
            (0.3, 0.03), seconds or 10.0, "success" if seconds is not None else "aborted"
        )
        write_log(folder / f"result_{number}.txt", heading(benchmark, seed=number), run)
    return root


def test_all_measures_are_over_the_same_runs(tmp_path: Path) -> None:
    """Runs of 6 s of staging and two epochs; of 20, 40, 60, 80, 100 s the three in the middle."""
    (found,) = analysed(entry(tmp_path, [30.0, 10.0, 50.0, 20.0, 40.0])).metrics
    time = found.metrics["time_to_solution"]
    assert time.mean == pytest.approx((6 + 60) / 60)
    assert time.deviation == pytest.approx(20 / 60)
    assert {tuple(sorted(one.scored)) for one in found.metrics.values()} == {(0, 3, 4)}
    assert found.metrics["train_throughput"].mean == pytest.approx(
        (100 / 19 + 100 / 29 + 100 / 39) / 3 / 8
    )
    assert found.problems == ()


def test_one_failed_run_is_the_slowest_and_two_make_no_result(tmp_path: Path) -> None:
    one = analysed(entry(tmp_path / "a", [30.0, 10.0, None, 20.0, 40.0])).metrics[0]
    assert tuple(sorted(one.metrics["time_to_solution"].scored)) == (0, 3, 4)
    two = analysed(entry(tmp_path / "b", [30.0, 10.0, None, None, 40.0])).metrics[0]
    reason = FAILED.format(2, 5, 1)
    missing = {two.missing[name] for name in ("time_to_solution", "epochs", "time_to_accuracy")}
    assert (two.valid, missing) == (False, {reason})
    assert len(two.metrics["train_throughput"].scored) == 3
    none = analysed(entry(tmp_path / "c", [None] * 5))
    assert none.metrics[0].missing["time_to_solution"] == FAILED.format(5, 5, 1)
    assert FAILED.format(5, 5, 1) in "\n".join(lines(none))


@pytest.mark.parametrize(
    ("lengths", "problem"),
    [
        ([30.0], "one run only: no mean, no deviation"),
        ([30.0, 10.0, 20.0], "3 runs; the rules require 5 for oc20"),
    ],
)
def test_too_few_runs_are_a_problem(
    lengths: list[float | None], problem: str, tmp_path: Path
) -> None:
    (found,) = analysed(entry(tmp_path, lengths)).metrics
    assert found.metrics["time_to_solution"].deviation is None
    assert found.problems == (problem,)


def test_staging_outside_the_timed_run_is_a_violation_before_v30(tmp_path: Path) -> None:
    for round_ in ("hpc_results_v2.0", "hpc_results_v3.0"):
        for number in range(5):
            staged = [line(2, "staging_start"), line(8, "staging_stop")]
            run = [text for text in training((0.03,)) if "staging" not in text]
            path = tmp_path / round_ / f"Lab/results/box/oc20/result_{number}.txt"
            write_log(path, heading("oc20"), staged, run)
    two, three = analysed(tmp_path).metrics
    said = "staging is outside the run in 5 logs; hpc-2.0 requires it inside"
    assert said in two.problems
    assert three.problems == ()


def weak(root: Path, seeds: list[int], failed: int = 0) -> WeakScaling:
    """Write instances that run at once, and measure them."""
    for number, seed in enumerate(seeds):
        status = "aborted" if number < failed else "success"
        run = training((0.3, 0.1), status=status)
        folder = root / "Lab/results/box/weak/deepcam"
        write_log(folder / f"result_{number}.txt", heading("deepcam", seed=seed), run)
    section = analysed(root).sections["weak_scaling"]
    assert isinstance(section, WeakScalings)
    return section.entries[0]


def test_weak_scaling(tmp_path: Path) -> None:
    found = weak(tmp_path, [1, 2, 3, 4, 5, 6], failed=1)
    assert (found.instances, found.failed, found.accelerators_per_instance) == (6, 1, 8)
    assert found.minutes == pytest.approx(26 / 60)
    assert found.models_per_minute == pytest.approx(5 * 60 / 26)
    assert found.problems == ()


@pytest.mark.parametrize(
    ("seeds", "problem"),
    [
        ([1, 7, 7, 1, 5], "equal seeds, which the rules forbid: 1, 7"),
        ([1, 2, 3], "3 models reached their target; the rules require 5"),
    ],
)
def test_violations_of_weak_scaling(seeds: list[int], problem: str, tmp_path: Path) -> None:
    assert weak(tmp_path, seeds).problems == (problem,)


def test_no_model_reached_its_target(tmp_path: Path) -> None:
    found = weak(tmp_path, [1, 2, 3, 4, 5], failed=5)
    assert (found.minutes, found.models_per_minute) == (None, None)
    assert found.missing is not None


def test_the_text_has_figures_and_problems(tmp_path: Path) -> None:
    entry(tmp_path, [30.0, 10.0, 50.0, 20.0, None])
    (tmp_path / "Lab/results/box/strong/oc20/result_9.txt").write_text("")
    weak(tmp_path, [1, 2, 3, 4, 5])
    analysis = analysed(tmp_path)
    text = list(lines(analysis))
    joined = "\n".join(text)
    names = tuple(each.name for each in analysis.entries)
    free = [one for one in text if not one.startswith("not read") and not one.endswith(names)]
    assert max(map(len, free)) <= 100
    assert FAILED.format(2, 6, 1) in joined
    assert "  training, per accelerator    " in joined
    assert "samples/s" in joined
    assert "result_5.txt: the run ended with status aborted" in joined
    assert text[-1].endswith("oc20/result_9.txt: empty file")


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    entry(tmp_path / "logs", [30.0, 10.0, 50.0, 20.0, 40.0])
    assert main(["analyze", str(tmp_path / "logs")]) == 0
    assert "time to solution" in capsys.readouterr().out
    assert main(["analyze", str(tmp_path / "logs"), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["metrics"][0]["metrics"]["time_to_solution"]["mean"] == pytest.approx(1.1)
    (tmp_path / "empty").mkdir()
    assert main(["analyze", str(tmp_path / "empty")]) == 1
    assert "not read:" in capsys.readouterr().out
    assert main(["analyze", str(tmp_path / "logs"), "--accelerators", "0"]) == 2
    assert "0 is not a whole number above 0" in capsys.readouterr().err


def test_control_characters_in_logs_are_escaped(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    platform = "\x1b[2Jbox\x7f"
    write_log(tmp_path / "result_1.txt", heading(submission_platform=platform), training())
    assert main(["analyze", str(tmp_path)]) == 0
    text = capsys.readouterr().out
    assert "\x1b" not in text
    assert r"Lab \x1b[2Jbox\x7f cosmoflow" in text
    assert main(["analyze", str(tmp_path), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["entries"][0]["system"]["name"] == platform
    assert main(["analyze", str(tmp_path / "\x1b[2Jnowhere")]) == 2
    assert "\x1b" not in capsys.readouterr().err


def test_names_that_are_not_valid_text_are_escaped(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / os.fsdecode(b"r\xff")
    write_log(folder / "result_1.txt", heading(submission_platform="b\ud800\x1bx"), training())
    report = tmp_path / "page"
    assert main(["analyze", str(folder), "--json", "--report", str(report)]) == 0
    (entry,) = json.loads(capsys.readouterr().out)["entries"]
    assert os.fsencode(entry["path"]) == os.fsencode(folder)
    assert entry["name"] == r"Lab b\ud800\x1bx cosmoflow"
    assert json.loads((report / "analysis.json").read_text("ascii"))["entries"] == [entry]
    page = (report / "analysis.html").read_text("utf-8")
    assert r"Lab b\ud800\x1bx cosmoflow" in page
    assert "\x1b" not in page
