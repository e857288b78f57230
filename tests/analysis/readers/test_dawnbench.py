"""DAWNBench entries: the public CIFAR-10 ones as they are, and whatever else such files hold."""

from __future__ import annotations

import csv
import json
import os
from pathlib import Path
from typing import Any

import pytest
from tests.support.present import present
from tests.support.training_logs import cifar10_entries

from aiperf_hpc.analysis.readers.dawnbench import read_entry, read_inference
from aiperf_hpc.analysis.training_log import Entry, ReadResult

DESCRIPTION = {"author": "A", "framework": "F", "hardware": "1 K80", "version": "v1.0"}
HEAD = "epoch\thours\ttop1Accuracy\n"
DONE = HEAD + "1\t1\t94\n"


def read(
    folder: Path, tsv: str | bytes, description: dict[str, Any] | bytes = DESCRIPTION,
    task: str = "CIFAR10",
) -> ReadResult:  # fmt: skip
    place = folder / task / "train"
    place.mkdir(parents=True, exist_ok=True)
    described = description if isinstance(description, bytes) else json.dumps(description).encode()
    (place / "x.json").write_bytes(described)
    (place / "x.tsv").write_bytes(tsv.encode() if isinstance(tsv, str) else tsv)
    return read_entry(place / "x.json", place / "x.tsv")


def only(reading: ReadResult) -> Entry:
    assert not reading.unreadable
    (entry,) = reading.entries
    return entry


def reason(reading: ReadResult) -> str:
    assert not reading.entries
    (unreadable,) = reading.unreadable
    return unreadable.reason


def qualities(entry: Entry) -> list[float | None]:
    return [evaluation.quality for evaluation in entry.logs[0].evaluations]


def test_all_public_entries_are_read_number_by_number(tmp_path: Path) -> None:
    """Against Python's own reader of such tables."""
    entries = cifar10_entries(tmp_path)
    assert len(entries) == 31
    for entry in entries:
        assert (entry.benchmark, entry.problems, entry.logs[0].problems) == ("CIFAR10", (), ())
        with open(entry.logs[0].source, encoding="utf-8-sig", newline="") as file:
            rows = list(csv.DictReader(file, delimiter="\t"))
        assert qualities(entry) == [float(row["top1Accuracy"]) for row in rows]
        ends = [evaluation.ended for evaluation in entry.logs[0].evaluations]
        assert ends == [3600.0 * float(row["hours"]) for row in rows]
        assert [e.number for e in entry.logs[0].epochs] == [float(row["epoch"]) for row in rows]


def test_the_system_is_parsed_from_the_description(tmp_path: Path) -> None:
    systems = {entry.name.split("/")[1]: entry.system for entry in cifar10_entries(tmp_path)}
    expected = {
        "fastai_pytorch": (8, "V100", 24.48),
        "apple_resnet9_8v100_pytorch": (8, "V100", None),
        "BAIDU-USA-GAIT_BaiduNet9_1GV100_pytorch": (1, "V100", 1.0632),
        "lambda_BaiduNet9_lambda_cloud_single_pytorch": (4, "GTX 1080 Ti", 1.5),
        "KRes34_1GTX1080Ti_pytorch": (1, "GeForce GTX 1080 Ti", None),
        # A number that is not stated is not guessed, and a null is not a price.
        "basenet": (None, "V100", 3.06),
        "dawn_resnet164_b_1p100-dawn_pytorch": (1, "P100", None),
        "diux_cifar_p3": (None, None, 3.06),
    }
    for name, values in expected.items():
        system = systems[name]
        assert (system.accelerators, system.accelerator, system.cost_per_hour) == values, name


def test_the_benchmark_times_up_to_its_target(tmp_path: Path) -> None:
    rows = HEAD + "1\t0.5\t93.99\n2\t1\t94\n3\t1.5\t95\n"
    (log,) = only(read(tmp_path, rows)).logs
    assert (present(log.run).seconds, log.succeeded) == (3600.0, True)
    (log,) = only(read(tmp_path, rows.replace("\t94\n", "\t93\n").replace("95", "93"))).logs
    assert (present(log.run).seconds, log.succeeded) == (5400.0, False)


def test_variants_of_the_table_format_are_equivalent(tmp_path: Path) -> None:
    """Of the public repository: other names and orders of columns, tabs that align, spaces."""
    plain = "epoch\thours\ttop1Accuracy\ttop5Accuracy\n1\t0.5\t40\t60\n2\t1\t70\t93.5\n"
    expected = only(read(tmp_path, plain, task="ImageNet")).logs[0].evaluations
    assert [evaluation.quality for evaluation in expected] == [60.0, 93.5]
    for text in (
        "\ufeff" + plain.replace("\n", "\r\n"),
        plain.replace("\n", "\r"),
        plain.rstrip() + "\n\n\n",
        "epoch\thours\ttop1\ttop5\n1\t0.5\t\t40\t\t60\n2\t1\t\t70\t\t93.5\n\n",
        "Iterations   epoch   hours   top1Accuracy    top5Accuracy\n"
        "640\t1\t0.5\t40\t60\n1280\t2\t1\t70\t93.5\n",
        "epoch\ttop5Accuracy\thours\n1\t60\t  0.5   \n2\t93.5\t  1  ",
        "epoch hours top1Accuracy top5Accuracy\n1  0.5  40  60\n2  1  70  93.5",
    ):
        assert only(read(tmp_path, text, task="ImageNet")).logs[0].evaluations == expected, text
    wide = only(read(tmp_path, plain.encode("utf-16"), task="ImageNet"))
    assert wide.logs[0].evaluations == expected


@pytest.mark.parametrize(
    ("columns", "rows", "task", "values", "problem"),
    [
        # In binary, 0.57 × 100 is 56.99999999999999.
        ("top1Accuracy", ("0.57", "0.9400"), "CIFAR10", [57.0, 94.0], "fraction"),
        ("top1Accuracy", ("0.94", "1.0"), "CIFAR10", [94.0, 100.0], "fraction"),
        ("f1Score", ("57", "73"), "SQuAD", [0.57, 0.73], "percent"),
        ("f1Score", ("0.57", "0.73"), "SQuAD", [0.57, 0.73], ""),
        # A first epoch below 1 % makes no fractions: decided for the file, by all its qualities.
        ("top1Accuracy\ttop5Accuracy", ("0.6\t0.9", "0.7\t7.55"), "ImageNet", [0.9, 7.55], ""),
    ],
)
def test_fractions_and_percentages_become_the_benchmarks_unit(
    columns: str, rows: tuple[str, str], task: str, values: list[float], problem: str,
    tmp_path: Path,
) -> None:  # fmt: skip
    text = f"epoch\thours\t{columns}\n1\t1\t{rows[0]}\n2\t2\t{rows[1]}\n"
    entry = only(read(tmp_path, text, task=task))
    assert qualities(entry) == values
    assert [problem in each for each in entry.problems] == [True] * bool(problem)
    assert entry.logs[0].succeeded is (task != "ImageNet")


def test_rows_that_lack_something_are_named(tmp_path: Path) -> None:
    rows = "1\t0.5\tnan\n2\t1\t\n3\t\t80\n4\tinf\t81\n7\t2\t94.5\n9\t3\n"
    entry = only(read(tmp_path, HEAD + rows))
    assert qualities(entry) == [None, None, 94.5]
    text = " / ".join(entry.problems)
    assert "line 2: top1Accuracy 'nan'" in text
    assert "line 4: hours '' is not a number" in text
    assert "line 7: 2 cells for 3 columns" in text
    assert "epochs are skipped: 7 follows 2" in text
    assert entry.logs[0].epochs == ()  # What lies between two rows is not one epoch.


def test_backward_hours_are_reported_and_give_no_time(tmp_path: Path) -> None:
    """As in an ImageNet entry with the hours of each epoch by itself."""
    (log,) = only(read(tmp_path, HEAD + "1\t0.13\t50\n2\t0.08\t94\n")).logs
    assert (present(log.run).seconds, log.epochs) == (None, ())
    assert "line 3: time goes backwards, 0.08 h after 0.13 h" in log.problems[0]


@pytest.mark.parametrize(
    ("stated", "cost", "problem"),
    [
        (24.48, 24.48, None),
        (None, None, None),
        ("", None, None),
        ("24.48", 24.48, "is text"),
        ("$ 24.48 / hour", 24.48, "is text"),
        (0, None, "not a price"),
        (-1.0, None, "not a price"),
        (float("nan"), None, "not a price"),
        (10**400, None, "not a price"),
        (True, None, "not a price"),
        ("a lot", None, "not a price"),
        ([1], None, "not a price"),
    ],
)
def test_cost_per_hour(tmp_path: Path, stated: object, cost: float | None, problem: str) -> None:
    described = {**DESCRIPTION, "costPerHour": stated}
    entry = only(read(tmp_path, DONE, described))
    assert entry.system.cost_per_hour == cost
    assert [problem in p for p in entry.problems] == ([True] if problem else [])


@pytest.mark.parametrize(
    ("hardware", "count", "nodes"),
    [
        ("V100 * 16", 16, None),
        ("x2 nodes, 8 V100", None, 2),
        ("9" * 400 + " V100", None, None),
        ("V100 * " + "9" * 5000, None, None),
        # By every one of its digits it was looked for what follows them all.
        ("1" * 2_000_000, None, None),
    ],
    ids=["behind", "nodes", "no number", "no whole number", "digits"],
)
def test_hardware_in_numbers_of_any_length(
    hardware: str, count: int | None, nodes: int | None, tmp_path: Path
) -> None:
    described = {**DESCRIPTION, "hardware": hardware}
    system = only(read(tmp_path, DONE, described)).system
    assert (system.accelerators, system.nodes) == (count, nodes)


@pytest.mark.parametrize(
    ("text", "organization", "system"),
    [
        (b'{\t"hardware":\t"8 \t* V100",\n\t"costPerHour": 1.5\t}', None, ("8 * V100", 8)),
        (b'{"author": "Universit\xe9", "hardware": "1\tV100"}', "Universit\ufffd", ("1 V100", 1)),
    ],
)
def test_descriptions_with_tabs_or_bytes_that_are_no_text_are_read(
    text: bytes, organization: str | None, system: tuple[str, int], tmp_path: Path
) -> None:
    entry = only(read(tmp_path, DONE, text))
    assert entry.organization == organization
    assert (entry.system.name, entry.system.accelerators) == system


def test_columns_identify_the_benchmark_if_the_path_does_not(tmp_path: Path) -> None:
    for columns, benchmark in (
        ("top1Accuracy", "CIFAR10"),
        ("top1Accuracy\ttop5Accuracy", "ImageNet"),
        ("f1Score", "SQuAD"),
    ):
        cells = "\t".join("2" for _ in columns.split("\t"))
        entry = only(read(tmp_path, f"epoch\thours\t{columns}\n1\t1\t{cells}\n", task="mine"))
        assert entry.benchmark == benchmark
        assert "taken for" in entry.problems[0]


def test_another_quality_than_the_benchmarks_has_no_target(tmp_path: Path) -> None:
    entry = only(read(tmp_path, DONE, task="ImageNet"))
    quality = present(entry.logs[0].quality)
    assert (quality.name, quality.target) == ("top1Accuracy", None)
    assert "measured by top5Accuracy" in entry.problems[0]
    assert entry.logs[0].succeeded is None


@pytest.mark.parametrize(
    ("tsv", "description", "words"),
    [
        ("", DESCRIPTION, "empty"),
        ("epoch\thours\ttop1Accuracy\n", DESCRIPTION, "no rows"),
        ("epoch\ttop1Accuracy\n1\t94\n", DESCRIPTION, "no column 'hours'"),
        ("epoch\thours\n1\t1\n", DESCRIPTION, "no column of top5Accuracy"),
        ("hours\thours\ttop1\n1\t1\t1\n", DESCRIPTION, "occurs twice"),
        ("epoch\thours\ttop1\n1\tnever\t94\n", DESCRIPTION, "no row has its hours"),
        (b"\xff\xfe\xff", DESCRIPTION, "utf-16"),
        (b"epoch\thours\ttop1\n1\t1\t\xff\n", DESCRIPTION, "utf-8"),
        ("x", b"", "not JSON"),
        ("x", b"[" * 100_000, "not JSON"),
        ("x", b'{"misc": ' + b"[" * 500 + b"]" * 500 + b"}", "nested too deeply"),
        ("x", b'{"latency": ' + b"9" * 5000 + b"}", "not JSON"),
        ("x", b"[1]", "not a JSON object but a list"),
    ],
)
def test_the_reason_states_why_an_entry_is_unreadable(
    tmp_path: Path, tsv: str | bytes, description: dict[str, Any] | bytes, words: str
) -> None:
    said = reason(read(tmp_path, tsv, description))
    assert words in said
    assert "\n" not in said


def test_only_regular_files_of_bounded_size_are_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read(tmp_path, "x")
    place = tmp_path / "CIFAR10" / "train"
    os.mkfifo(place / "pipe")
    assert reason(read_entry(place / "x.json", place / "pipe")) == "not a regular file"
    assert reason(read_entry(place / "x.json", place)) == "not a regular file"
    assert "No such file" in reason(read_entry(place / "x.json", place / "none"))
    monkeypatch.setattr("aiperf_hpc.analysis.readers.descriptions.MOST_BYTES", 10)
    assert reason(read_entry(place / "x.json", place / "x.tsv")) == "larger than 10 bytes"


def infer(folder: Path, task: str = "CIFAR10", **described: object) -> ReadResult:
    path = folder / task / "inference" / "x.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({**DESCRIPTION, **described}))
    return read_inference(path)


def test_inference(tmp_path: Path) -> None:
    entry = only(infer(tmp_path, latency=28.1, cost=None, top1Accuracy=94.46))
    assert (entry.benchmark, entry.logs, entry.problems) == ("CIFAR10 inference", (), ())
    found = present(entry.inference)
    assert (found.latency, found.cost, found.value) == pytest.approx((0.0281, None, 94.46))
    squad = only(infer(tmp_path, "SQuAD", latency=590.0, cost=0.00015848, f1Score=0.752))
    assert present(squad.inference).cost == 0.00015848


def test_inference_without_a_latency_or_the_right_quality(tmp_path: Path) -> None:
    assert "neither 'latency' nor 'cost'" in reason(infer(tmp_path, latency=0, top1Accuracy=94))
    assert "neither 'latency' nor 'cost'" in reason(infer(tmp_path, top1Accuracy=94))
    # A public entry of CIFAR-10 states the wrong one of the two accuracies.
    entry = only(infer(tmp_path, latency=0.1345, top5Accuracy=94.2))
    assert present(present(entry.inference).quality).target is None
    assert "CIFAR10 is measured by top1Accuracy" in entry.problems[0]
