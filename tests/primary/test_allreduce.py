"""`aiperf allreduce`: real reductions, figures computed by hand, and what is not measured."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from importlib import util
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.support.command import aiperf
from tests.support.refusals import refused_line

from aiperf_hpc.primary.allreduce import Measurement, Result, curves, table
from aiperf_hpc.replica.parallel.allreduce_timing import figures, sizes


def test_bandwidths_are_those_of_nccl_tests() -> None:
    """8 MB over 4 ranks in 2 ms: 4 GB/s, of which each link carries 2 x 3 / 4."""
    found = figures(8_000_000, 4, np.array([0.001, 0.002, 0.009]))
    assert found["seconds"] == 0.002
    assert found["algorithm_bandwidth"] == pytest.approx(4e9)
    assert found["bus_bandwidth"] == pytest.approx(6e9)


def test_sizes_are_mlbenchs() -> None:
    assert len(sizes(1e8)) == 80
    assert (sizes(1e8)[0], sizes(1e8)[-1]) == (1, 100_000_000)
    assert sizes(1e3)[-1] <= 1000


def measured(dtype: str, elements: int) -> Measurement:
    size = elements * np.dtype(dtype).itemsize
    values = figures(size, 2, np.array([1e-3]))
    return Measurement.model_validate(
        {"memory": "cpu", "dtype": dtype, "elements": elements, **values}
    )


def test_each_back_end_and_type_is_a_curve_and_what_is_missing_is_said() -> None:
    both = (measured("float32", 1), measured("float32", 10**6), measured("float16", 1))
    result = Result(
        collective="torch", ranks=2, host="h", repetitions=3, measurements=both, skipped=()
    )
    assert [(c.name, len(c.points)) for c in curves([result])] == [
        ("torch, float32, cpu", 2),
        ("torch, float16, cpu", 1),
    ]
    lines = table([result], {"horovod": "build it with `make horovod`"})
    assert lines[-1] == "horovod: not installed; build it with `make horovod`"
    assert len(lines) == 1 + 3 + 1


def test_two_ranks_reduce_and_the_files_say_how_fast(tmp_path: Path) -> None:
    done = aiperf(
        "allreduce", "--backends", "mpi,torch", "--largest", 2000, "--repetitions", 5,
        "--out", tmp_path,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert (
        "mpi, float16, cpu: MPI has no floating-point type of 16 bits" in done.stdout.splitlines()
    )
    whole: dict[str, Any] = json.loads((tmp_path / "allreduce.json").read_text("utf-8"))
    mpi, torch = whole["results"]
    assert [mpi["collective"], torch["collective"]] == ["mpi", "torch"]
    wanted = sizes(2000)
    for result, types in ((mpi, ["float32"]), (torch, ["float32", "float16"])):
        for dtype in types:
            rows = [
                r for r in result["measurements"] if (r["memory"], r["dtype"]) == ("cpu", dtype)
            ]
            assert [row["elements"] for row in rows] == wanted
            for row in rows:
                assert row["bytes"] == row["elements"] * np.dtype(dtype).itemsize
                assert row["algorithm_bandwidth"] == pytest.approx(row["bytes"] / row["seconds"])
                assert row["bus_bandwidth"] == row["algorithm_bandwidth"]  # Of two ranks.
                assert 0 < row["fastest_seconds"] <= row["seconds"] <= row["slowest_seconds"]
    drawing = ET.parse(tmp_path / "allreduce.svg").getroot()  # noqa: S314 -- drawn here
    assert "mpi, float32, cpu" in "".join(drawing.itertext())


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--ranks", 1], "--ranks 1: at least two"),
        (["--ranks", 10**6], "--ranks 1000000: they need at least"),
        (["--backends", "smoke"], "--backends smoke: known are mpi, torch, horovod"),
        (["--backends", "mpi,"], "--backends : known are mpi, torch, horovod"),
        (["--repetitions", 0], "--repetitions 0: at least 1"),
        (["--repetitions", "nan"], "--repetitions nan: should be a whole number"),
        (["--largest", 0], "--largest 0: from 1 to 1e+08 elements"),
        (["--largest", "nan"], "--largest nan: from 1 to 1e+08 elements"),
        (["--largest", "1e9"], "--largest 1e+09: from 1 to 1e+08 elements"),
    ],
)
def test_what_cannot_be_measured_is_one_line(
    arguments: list[object], words: str, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    assert refused_line("allreduce", *arguments, "--out", out).startswith(words)
    assert not out.exists()


def test_an_unwritable_folder(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    out = tmp_path / "file" / "out"
    assert refused_line("allreduce", "--out", out) == (
        f"cannot write the folder {out}: {tmp_path}/file is a file; name another one with --out"
    )


def test_without_a_collective_nothing_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(util, "find_spec", lambda _: None)
    out = tmp_path / "out"
    line = refused_line("allreduce", "--quick", "--out", out)
    assert line.startswith("no collective is installed: ")
    assert "install '.[mpi]'" in line
    line = refused_line("allreduce", "--backends", "torch", "--out", out)
    assert line.startswith("collective 'torch' needs the package 'torch': ")
    assert not out.exists()
