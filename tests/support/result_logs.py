"""Result logs of MLPerf for tests: public ones, unpacked, and small ones, line by line."""

from __future__ import annotations

import json
import tarfile
from collections.abc import Sequence
from pathlib import Path

DATA = Path(__file__).parents[1] / "data"
START = 1_600_000_000.0
"""UTC of the first second of a log of ``training``."""


def unpacked(folder: Path, round_: str, name: str) -> Path:
    """Unpack an entry of a public round into a folder, and return where."""
    with tarfile.open(DATA / f"mlperf_hpc_v{round_}" / f"{name}.tar.xz") as archive:
        archive.extractall(folder / name, filter="data")
    return folder / name


def line(seconds: float, key: str, value: object = None, **metadata: object) -> str:
    """Return one line of v0.7's dialect, some seconds after the start."""
    document = {
        "namespace": "", "time_ms": round((START + seconds) * 1000), "event_type": "POINT_IN_TIME",
        "key": key, "value": value, "metadata": {"file": "train.py", "lineno": 1, **metadata},
    }  # fmt: skip
    return f":::MLLOG {json.dumps(document)}\n"


def heading(benchmark: str = "cosmoflow", **settings: object) -> list[str]:
    """Return the lines in which a log states what it is of."""
    stated: dict[str, object] = {
        "submission_benchmark": benchmark, "submission_org": "Lab",
        "submission_division": "closed", "submission_platform": "box", "global_batch_size": 8,
        "train_samples": 100, "eval_samples": 50, "number_of_nodes": 2, "accelerators_per_node": 4,
    }  # fmt: skip
    return [line(0, key, value) for key, value in (stated | settings).items()]


def training(
    errors: Sequence[object] = (0.3, 0.12), seconds: float = 10.0, status: str = "success"
) -> list[str]:
    """Return the lines of a run from 10 s on: staging of 5 s, then epochs of so many seconds.

    The last second of each epoch is its evaluation.
    """
    lines = [
        line(1, "init_start"), line(9, "init_stop"), line(10, "run_start"),
        line(10, "staging_start"), line(15, "staging_stop"),
    ]  # fmt: skip
    at = 16.0
    for number, error in enumerate(errors, 1):
        end = at + seconds
        lines += [
            line(at, "epoch_start", epoch_num=number),
            line(end - 1, "eval_start", epoch_num=number),
            line(end, "eval_stop", epoch_num=number),
            line(end, "epoch_stop", epoch_num=number),
            line(end, "eval_error", error, epoch_num=number),
        ]
        at = end
    return [*lines, line(at, "run_stop", status=status)]


def write_log(path: Path, *parts: Sequence[str]) -> Path:
    """Write a log of several parts."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join("".join(part) for part in parts), "utf-8")
    return path
