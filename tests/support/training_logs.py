"""Entries of trainings made up for tests, and the public ones that stand in tests/data."""

from __future__ import annotations

import tarfile
from collections.abc import Sequence
from pathlib import Path

from aiperf_hpc.analysis.readers.dawnbench import read_entry
from aiperf_hpc.analysis.training_log import (
    Entry,
    Evaluation,
    Interval,
    Quality,
    System,
    TrainingLog,
)

ARCHIVE = Path(__file__).parent.parent / "data" / "dawnbench" / "cifar10_train.tar.xz"
ACCURACY = Quality(name="accuracy", higher_is_better=True, target=0.9)
ERROR = Quality(name="eval_error", higher_is_better=False, target=0.124)


def training(
    points: Sequence[tuple[float, float | None]],
    quality: Quality | None = ACCURACY,
    started: float | None = 1000.0,
) -> TrainingLog:
    """Return a training of evaluations, each of seconds since its start and a quality."""
    began = started or 0.0
    return TrainingLog(
        source="a log",
        run=None if started is None else Interval(started=began, ended=None),
        succeeded=None,
        quality=quality,
        evaluations=tuple(Evaluation(None, None, began + at, value) for at, value in points),
    )


def entry(name: str, *logs: TrainingLog, **others: object) -> Entry:
    """Return an entry of trainings; ``others`` replaces its other values."""
    values = {
        "name": name, "format": "mllog", "benchmark": "made up", "path": name, "logs": logs,
        "system": System(name=f"system of {name}"),
    }  # fmt: skip
    return Entry.model_validate(values | others)


def cifar10_entries(folder: Path) -> tuple[Entry, ...]:
    """Unpack DAWNBench's CIFAR-10 trainings, and read them all."""
    with tarfile.open(ARCHIVE) as archive:
        archive.extractall(folder, filter="data")
    found: list[Entry] = []
    for json in sorted((folder / "CIFAR10" / "train").glob("*.json")):
        reading = read_entry(json, json.with_suffix(".tsv"))
        assert not reading.unreadable, json
        found += reading.entries
    return tuple(found)
