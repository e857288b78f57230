"""One result log: its three dialects, and what may be wrong with it."""

from __future__ import annotations

import json
import os
import tracemalloc
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.present import present
from tests.support.result_logs import START, heading, line, training, write_log

from aiperf_hpc.analysis.metric import NotMeasuredError
from aiperf_hpc.analysis.metrics.time_to_solution import epochs_to_converge, time_to_solution
from aiperf_hpc.analysis.readers.mllog import ReadLog, read_log
from aiperf_hpc.analysis.readers.mllog_lines import MAX_LINE, find_lines
from aiperf_hpc.analysis.training_log import Epoch, Evaluation, Interval, TrainingLog, Unreadable

V05 = """\
:::MLPv0.5.0 ssd 1544237137.227893114 (<string>:1) run_clear_caches
:::MLPv0.5.0 ssd 1544237690.5 (ssd_main.py:306) run_start
:::MLPv0.5.0 ssd 1544237691.5 (ssd_main.py:400) train_epoch: 0
:::MLPv0.5.0 ssd 1544237691.6 (/tmp/a b/dataloader.py:409) input_batch_size: 128
:::MLPv0.5.0 ssd 1544237696.2 (ssd_model.py:376) opt_learning_rate: "DEFERRED: c7a1cfec"
:::MLPv0.5.0 ssd 1544239759.0 (ssd_main.py:438) eval_start: 32
:::MLPv0.5.0 ssd 1544239890.0 (ssd_main.py:400) train_epoch: 32
:::MLPv0.5.0 ssd 1544239997.5 (ssd_main.py:245) eval_stop: 32
:::MLPv0.5.0 ssd 1544239997.5 (ssd_main.py:251) eval_accuracy: {"value": 0.1365, "epoch": 32}
:::MLPv0.5.0 ssd 1544239997.6 (ssd_main.py:254) eval_target: 0.212
:::MLPv0.5.0 ssd 1544241626.0 (ssd_main.py:438) eval_start: 48
:::MLPv0.5.0 ssd 1544241772.0 (ssd_main.py:400) train_epoch: 48
:::MLPv0.5.0 ssd 1544241896.5 (ssd_main.py:245) eval_stop: 48
:::MLPv0.5.0 ssd 1544241896.5 (ssd_main.py:251) eval_accuracy: {"value": 0.2140, "epoch": 48}
:::MLPv0.5.0 ssd 1544241896.5 (ssd_main.py:262) run_stop: {"success": "true"}
:::MLPv0.5.0 ssd 1544241896.9 (ssd_main.py:263) run_final
"""
"""From google/ssd-tpuv3-8 of the round v0.5, shortened."""
V06 = """\
:::MLL 0.0 submission_benchmark: {"value": "ssd", "metadata": {"lineno": 0, "file": "N/A"}}
:::MLL 0.0 submission_platform: {"value": "tpu-v3-1024", "metadata": {"lineno": 0}}
:::MLL 1560186772.107 global_batch_size: {"value": 2048, "metadata": {"lineno": 306}}
:::MLL 1560187580.0 run_start: {"value": null, "metadata": {}}
:::MLL 1560187581.0 block_start: {"value": null, "metadata": {"first_epoch_num": 0.0, "epoch_count": 44.0}}
:::MLL 1560187601.0 block_stop: {"value": null, "metadata": {"first_epoch_num": 0.0, "epoch_count": 44.0}}
:::MLL 1560187602.0 eval_start: {"value": null, "metadata": {"epoch_num": 44}}
:::MLL 1560187604.0 eval_accuracy: {"value": 0.1326, "metadata": {"epoch_num": 44}}
:::MLL 1560187604.0 eval_stop: {"value": null, "metadata": {"epoch_num": 44}}
:::MLL 1560187610.0 run_stop: {"value": null, "metadata": {"status": "aborted"}}
"""  # noqa: E501
"""From Google's tpu-v3-1024 of the round v0.6, shortened."""


def read(path: Path) -> ReadLog:
    found = read_log(path)
    assert isinstance(found, ReadLog), found
    return found


def log_of(folder: Path, *parts: Sequence[str]) -> TrainingLog:
    return read(write_log(folder / "result_1.txt", *parts)).log


def test_v05(tmp_path: Path) -> None:
    log, stated = read(write_log(tmp_path / "log", [V05]))
    assert (stated.benchmark, stated.dialect) == ("ssd", "0.5")
    assert log.run == Interval(started=1544237690.5, ended=1544241896.5)
    assert log.succeeded
    assert log.global_batch_size == 128
    assert log.settings["opt_learning_rate"] == "DEFERRED: c7a1cfec"
    assert [(epoch.number, epoch.passes) for epoch in log.epochs] == [(0, 32), (32, 16), (48, 0)]
    assert present(log.quality).target == 0.212
    assert log.evaluations == (
        Evaluation(32, 1544239759.0, 1544239997.5, 0.1365),
        Evaluation(48, 1544241626.0, 1544241896.5, 0.2140),
    )
    assert epochs_to_converge(log) == 48
    assert log.problems == ()


def test_v06_with_blocks_of_epochs(tmp_path: Path) -> None:
    log, stated = read(write_log(tmp_path / "log", [V06]))
    assert (stated.benchmark, stated.platform, stated.dialect) == ("ssd", "tpu-v3-1024", "0.6")
    assert log.epochs == (Epoch(1560187581.0, 1560187601.0, 0.0, 44.0),)
    assert log.evaluations == (Evaluation(44, 1560187602.0, 1560187604.0, 0.1326),)
    assert log.problems == ("the run ended with status aborted",)
    with pytest.raises(NotMeasuredError, match="did not reach its target"):
        time_to_solution(log)


def test_v07_and_later(tmp_path: Path) -> None:
    log = log_of(tmp_path, heading(seed=3, opt_name="SGD"), training())
    assert log.run == Interval(started=START + 10, ended=START + 36)
    assert log.init == Interval(started=START + 1, ended=START + 9)
    assert log.staging == (Interval(started=START + 10, ended=START + 15),)
    assert log.epochs == (Epoch(START + 16, START + 26, 1), Epoch(START + 26, START + 36, 2))
    assert log.evaluations[1] == Evaluation(2, START + 35, START + 36, 0.12)
    quality = present(log.quality)
    assert (quality.name, quality.target) == ("eval_error", 0.124)
    assert (log.nodes, log.accelerators, log.global_batch_size) == (2, 8, 8)
    assert (log.settings["seed"], log.settings["opt_name"]) == (3, "SGD")
    assert log.problems == ()


def test_other_output_of_launchers_is_ignored(tmp_path: Path) -> None:
    plain = log_of(tmp_path / "plain", heading(), training())
    noisy = [f"  0: {text}Epoch 1: loss 0.3\n\n" for text in [*heading(), *training()]]
    log = log_of(tmp_path / "noisy", ["\x00\xff binary\n", *noisy])
    assert log.model_copy(update={"source": plain.source}) == plain


def test_ranks_that_all_write_their_lines_are_one_training(tmp_path: Path) -> None:
    twice = [text for text in [*heading(), *training()] for _ in range(2)]
    once = log_of(tmp_path / "once", heading(), training())
    log = log_of(tmp_path / "twice", twice)
    assert (log.epochs, log.evaluations) == (once.epochs, once.evaluations)
    assert log.problems == ("2 run_starts: measured from the last before run_stop",)


def test_accuracy_is_ignored_for_a_benchmark_with_an_error(tmp_path: Path) -> None:
    """Some log the error a second time, as an accuracy below 0."""
    lines = training()
    lines.insert(-1, line(36, "eval_accuracy", -0.12, epoch_num=2))
    log = log_of(tmp_path, heading(), lines)
    assert [one.quality for one in log.evaluations] == [0.3, 0.12]


def test_several_evaluations_of_one_epoch(tmp_path: Path) -> None:
    lines = [line(10, "run_start"), line(10, "epoch_start", epoch_num=1)]
    for at, accuracy in ((20, 0.5), (30, 0.83)):
        lines.append(line(at, "eval_start", epoch_num=1))
        lines.append(line(at + 1, "eval_accuracy", accuracy, epoch_num=1, step_num=at))
        lines.append(line(at + 2, "eval_stop", epoch_num=1))
    log = log_of(tmp_path, heading("deepcam"), [*lines, line(33, "run_stop", status="success")])
    assert [one.quality for one in log.evaluations] == [0.5, 0.83]
    assert [one.started for one in log.evaluations] == [START + 20, START + 30]


def test_the_run_that_counts_is_the_last_begun_before_run_stop(tmp_path: Path) -> None:
    broken = training()[:-4]
    later = training((0.2, 0.1, 0.1))
    log = log_of(tmp_path, heading(), broken, [line(100, "run_start")], later[5:])
    assert present(log.run).started == START + 100
    assert "2 run_starts: measured from the last before run_stop" in log.problems
    assert log.staging == ()
    assert len(log.epochs) == 3


def test_lines_after_run_stop_are_ignored(tmp_path: Path) -> None:
    log = log_of(tmp_path, heading(), training(), training((0.2,)))
    assert log.run == Interval(started=START + 10, ended=START + 36)
    assert len(log.epochs) == 2
    assert "1 run_starts after run_stop: what follows run_stop was not read" in log.problems


@pytest.mark.parametrize(
    ("lines", "problem"),
    [
        (heading(), "no run_start: the run was not timed"),
        ([*heading(), line(5, "run_stop", status="success")], "no run_start, but a run_stop"),
        ([*heading(), *training()[:-1]], "no run_stop: the run was cut off"),
        ([*heading(), *training(status="aborted")], "the run ended with status aborted"),
        ([*heading(), line(9, "run_start"), line(2, "run_stop", status="success")],
         "run_stop is 7.000 s before run_start"),
        ([*heading(), *training((0.3, 0.2))],
         "it reports success, but no evaluation reached the target, 0.124"),
        ([*heading(), line(9, "run_start"), line(20, "run_stop")], "run_stop has no status"),
        ([*heading(), *training((0.3, "NaN", 0.1))],
         "1 of 3 evaluations without a finite quality (the first at epoch 2)"),
        ([*heading(), *training((0.3, None, float("inf"), 0.1))],
         "2 of 4 evaluations without a finite quality (the first at epoch 2)"),
        ([*heading(), *training(), '0: :::MLLOG {"key": "run_stop", "time_ms": 12'],
         "line 26 is not in mllog's format and skipped"),
        ([*heading(), line(0, "deep", json.loads("[" * 500 + "]" * 500)), *training()],
         "line 10 is not in mllog's format and skipped"),
        ([*heading(), line(1e300, "run_start"), *training()],
         "line 10 is not in mllog's format and skipped"),
        ([f":::MLPv0.5.0 ncf {'9' * 400} (a.py:1) run_start\n"],
         "line 1 is not in mllog's format and skipped"),
        ([*heading(), *training((1e300, 0.1))], "1 of 2 evaluations without a finite quality"),
        ([*heading(), ':::MLLOG {"time_ms": 1, "key": "run_start", "value": ' + "[" * 5000 + "\n",
          *training()], "line 10 is not in mllog's format and skipped"),
    ],
)  # fmt: skip
def test_problems_of_a_log_are_reported(lines: list[str], problem: str, tmp_path: Path) -> None:
    log = log_of(tmp_path, lines)
    assert any(said.startswith(problem) for said in log.problems), log.problems


def test_backward_time_is_reported_and_gives_no_negative_interval(tmp_path: Path) -> None:
    lines = training((0.3, 0.2, 0.1))
    lines[5:7] = [line(500, "epoch_start", epoch_num=1), line(25, "eval_start", epoch_num=1)]
    log = log_of(tmp_path, heading(), lines)
    assert any(said.startswith("time goes backwards in") for said in log.problems)
    assert all(epoch.ended is None or epoch.ended >= epoch.started for epoch in log.epochs)
    assert log.epochs[-1] == Epoch(START + 500, None, 1)


def test_a_line_without_end_is_passed_over_in_little_memory(tmp_path: Path) -> None:
    """64 MiB without a line break, in a sparse file, between two halves of a log."""
    path = write_log(tmp_path / "result_1.txt", heading(), training())
    whole = path.read_bytes()
    with path.open("wb") as file:
        file.write(whole[: len(whole) // 2].rpartition(b"\n")[0] + b"\n")
        file.seek(64 * MAX_LINE, os.SEEK_CUR)
        file.write(b"\n" + whole[len(whole) // 2 :].partition(b"\n")[2])
    tracemalloc.start()
    log = read(path).log
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 8 * MAX_LINE
    assert present(log.run).ended == START + 36
    (problem,) = [said for said in log.problems if "longer than" in said]
    assert problem.endswith("is longer than 1 MiB and skipped")


def test_a_log_whose_last_line_is_cut_by_the_limit(tmp_path: Path) -> None:
    log = log_of(tmp_path, heading(), training(), [":::MLLOG " + "x" * MAX_LINE])
    assert any("longer than 1 MiB" in said for said in log.problems)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "empty file"),
        ("Epoch 1\nEpoch 2\n", "no mllog lines (:::MLLOG, :::MLL or"),
        ("\0" * 2 * MAX_LINE, "no mllog lines (:::MLLOG, :::MLL or :::MLPv0.5.0) in it; line 1"),
    ],
    ids=["empty", "other", "a line without end"],
)
def test_files_that_are_no_logs(text: str, reason: str, tmp_path: Path) -> None:
    found = read_log(write_log(tmp_path / "result_1.txt", [text]))
    assert isinstance(found, Unreadable)
    assert found.reason.startswith(reason)


def test_a_fifo_is_not_waited_for(tmp_path: Path) -> None:
    fifo = tmp_path / "result_1.txt"
    os.mkfifo(fifo)
    assert read_log(fifo) == Unreadable(path=str(fifo), reason="not a regular file")


@pytest.mark.parametrize(
    ("settings", "nodes", "accelerators"),
    [
        ({"accelerators_per_node": None, "number_of_ranks": 512}, 2, 512),
        ({"number_of_ranks": 512}, 2, 8),
        # Fugaku's logs state accelerators_per_node 0; the rounds' summary takes it as 1.
        ({"accelerators_per_node": 0, "number_of_nodes": 128}, 128, 128),
        ({"number_of_nodes": 1e308}, None, None),
        ({"number_of_nodes": 10**400}, None, None),
        ({"number_of_nodes": 0.5}, None, None),
    ],
)
def test_accelerators_are_stated_or_as_many_as_ranks(
    settings: dict[str, object], nodes: int | None, accelerators: int | None, tmp_path: Path
) -> None:
    log = log_of(tmp_path, heading("cosmoflow", **settings), training())
    assert (log.nodes, log.accelerators) == (nodes, accelerators)
    said = any(
        each.startswith("512 accelerators, from its number_of_ranks") for each in log.problems
    )
    assert said == (accelerators == 512)


@pytest.mark.parametrize("value", [10**400, 1e300, 0.5, True, [], {}, "many", -3, None])
def test_settings_of_any_kind_are_no_error(value: object, tmp_path: Path) -> None:
    log = log_of(tmp_path, heading(global_batch_size=value), training())
    assert log.global_batch_size is None


PLAIN = line(1.5, "eval_error", 0.25, epoch_num=3, step_num=-7, loss=1e-05, why="a, b", last=None)


@pytest.mark.parametrize("before", ["", "0: ", "node:1:", "[1] 12:03:04 ::: :: "])
def test_a_plain_line_is_found_behind_what_a_launcher_writes(before: str) -> None:
    text = (before + PLAIN).encode()
    assert find_lines(text) == [(text, b"1600000001500", b"eval_error", b"0.25", b"3")]


def test_each_line_is_one_in_order() -> None:
    text = f"\n{PLAIN}Epoch 1\n\r\n{PLAIN}end"
    found = find_lines(text.encode())
    assert b"".join(line for line, *_ in found) == text.encode()
    assert [key for _, _, key, _, _ in found] == [b"", b"eval_error", b"", b"", b"eval_error", b""]


@pytest.mark.parametrize(
    ("part", "other"),
    [
        (":::MLLOG", ":::ML :::MLLOG"),
        ("0.25", "00.25"), ("0.25", ".25"), ("0.25", "25."), ("0.25", "+1"),
        ("0.25", "NaN"), ("0.25", '"0.2'), ("0.25", "[0.25]"), ("0.25", "1_0"),
        ("1600000001500", "1600000001500.5"), ("1600000001500", "01"), ("1600000001500", "-1"),
        ('"lineno": 1,', '"lineno": 01,'), ('"lineno": 1,', '"lineno": 1'),
        ('"epoch_num": 3', '"epoch_num": 3.5'), ('"epoch_num": 3', '"epoch_num": null'),
        ('"step_num": -7', '"epoch_num": -7'), ('"step_num": -7', '"first_epoch_num": -7'),
        ('"step_num": -7', '"epoch_count": -7'), ('"step_num": -7', '"step_num": {"a": 7}'),
        ("a, b", "a\\u0020b"), ("a, b", "ä"), ("a, b", "a\x00b"), ("a, b", 'a"b'),
        ("eval_error", "eval-error"), ("}}", "}"), ("}}", "}, }"), ("}}", "}} }"), ("}}", ", }}"),
    ],
)  # fmt: skip
def test_a_line_that_is_not_plain_is_left_to_json(part: str, other: str) -> None:
    assert part in PLAIN
    text = PLAIN.replace(part, other).encode()
    assert find_lines(text) == [(text, b"", b"", b"", b"")]


@settings(max_examples=50)
@given(
    value=st.none() | st.booleans() | st.floats() | st.integers() | st.text(),
    epoch=st.none() | st.integers(-5, 10**12) | st.floats(),
    more=st.dictionaries(st.text(), st.none() | st.floats() | st.text(), max_size=2),
)
def test_any_line_is_read_as_json_or_left_to_it(
    value: float | str | None, epoch: float | None, more: dict[str, object]
) -> None:
    text = line(0, "eval_error", value, **{"epoch_num": epoch} | more)
    ((whole, _, key, said, of_epoch),) = find_lines(text.encode())
    assert whole.decode() == text
    if key:
        document = json.loads(text.removeprefix(":::MLLOG "))
        assert json.dumps(document["value"]).encode() == said
        assert document["metadata"].get("epoch_num") == (int(of_epoch) if of_epoch else None)
