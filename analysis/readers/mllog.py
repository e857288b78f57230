"""Reader of MLPerf Training and MLPerf HPC result logs, v0.5 to v3.0.

Keys follow mlcommons/logging (mlperf_logging/mllog/constants.py) and the rules' own checker
(mlperf_logging/compliance_checker).
"""

from __future__ import annotations

import multiprocessing
import os
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from functools import partial
from itertools import starmap
from operator import itemgetter
from pathlib import Path
from typing import Any, NamedTuple

from aiperf_hpc.analysis.readers.descriptions import whole_number
from aiperf_hpc.analysis.readers.mllog_lines import Event, LineReader, Metadata
from aiperf_hpc.analysis.readers.mllog_timeline import (
    Clock,
    Epochs,
    Evaluations,
    Run,
    Spans,
    logged_number,
)
from aiperf_hpc.analysis.training_log import Epoch, Evaluation, Quality, TrainingLog, Unreadable
from aiperf_hpc.errors import reason_of
from aiperf_hpc.run.history import no_collections
from aiperf_hpc.untrusted.files import open_regular


class SubmissionInfo(NamedTuple):
    """Values of a log about its entry."""

    benchmark: str | None
    organization: str | None
    division: str | None
    platform: str | None
    dialect: str


class ReadLog(NamedTuple):
    """Result of reading one log."""

    log: TrainingLog
    submission: SubmissionInfo


def read_log(path: Path) -> ReadLog | Unreadable:
    """Read one result log in bounded memory, for arbitrary file content."""
    try:
        with no_collections(keep_all=False):
            return _read_log(path)
    except OSError as error:
        return Unreadable(path=str(path), reason=reason_of(error))


def _read_log(path: Path) -> ReadLog | Unreadable:
    training = _Training()
    with open_regular(path) as file:
        reader = LineReader(file)
        for event in reader.events():
            training.take(event)
    if reader.empty:
        return Unreadable(path=str(path), reason="empty file")
    if not reader.dialects:
        missing = "no mllog lines (:::MLLOG, :::MLL or :::MLPv0.5.0) in it"
        return Unreadable(path=str(path), reason="; ".join((missing, *reader.problems())))
    stated = _submission_info(training.settings, reader)
    return ReadLog(training.finish(path, stated, tuple(reader.problems())), stated)


_ALIASES = {"mask": "maskrcnn", "mask_r_cnn": "maskrcnn", "opencatalyst": "oc20"}


def benchmark_name(stated: str) -> str:
    """Return a benchmark's name as the rules write it."""
    plain = stated.strip().lower()
    return _ALIASES.get(plain, plain)


def _submission_info(settings: Mapping[str, Any], reader: LineReader) -> SubmissionInfo:
    named: defaultdict[str, str | None] = defaultdict(lambda: None)
    for key, value in settings.items():
        if key.startswith("submission_") and isinstance(value, str) and "PLACEHOLDER" not in value:
            named[key.removeprefix("submission_")] = value or None
    benchmark = named["benchmark"] or reader.benchmark
    return SubmissionInfo(
        benchmark=None if benchmark is None else benchmark_name(benchmark),
        organization=named["org"],
        division=named["division"],
        platform=named["platform"],
        dialect=max(reader.dialects),
    )


_Handler = Callable[[float, Any, Metadata], None]
"""Handler of a line's time, value and metadata."""


class _Training:
    """Accumulates the events of one log into a training run."""

    def __init__(self) -> None:
        self.settings: dict[str, Any] = {}
        self.init = Spans()
        self.staging = Spans()
        self.run = Run()
        self.epochs = Epochs()
        self.evaluations = Evaluations()
        self.clock = Clock()
        self._handlers: dict[str, _Handler] = {
            "run_start": self._run_start,
            "run_stop": self.run.stop,
            "init_start": self.init.start,
            "init_stop": self.init.stop,
            "staging_start": self.staging.start,
            "staging_stop": self.staging.stop,
        }
        self._forget_training()

    def _forget_training(self) -> None:
        """Reset the epochs and evaluations."""
        self.epochs, self.evaluations = Epochs(), Evaluations()
        self._handlers |= {
            "epoch_start": self.epochs.start,
            "block_start": self.epochs.start,
            "epoch_stop": self.epochs.stop,
            "block_stop": self.epochs.stop,
            "train_epoch": self.epochs.next,
            "eval_start": self.evaluations.start,
            "eval_stop": self.evaluations.stop,
            "eval_accuracy": partial(self.evaluations.quality, "accuracy"),
            "eval_error": partial(self.evaluations.quality, "error"),
        }

    def take(self, event: Event) -> None:
        """Add one event; events after run_stop belong to no run."""
        time, key, value, metadata = event
        handle = self._handlers.get(key)
        if handle is None:
            if value is not None and key not in self.settings:
                self.settings[key] = value
        elif self.run.stopped is None or key == "run_start":
            if time >= self.clock.latest:
                self.clock.latest = time
            else:
                self.clock.went_back(time, key)
            handle(time, value, metadata)

    def _run_start(self, time: float, value: object, metadata: Metadata) -> None:
        before = self.run.started
        if self.run.start(time) and before is not None:
            self._forget_training()
            self.staging.forget_after(before)

    def finish(self, path: Path, stated: SubmissionInfo, problems: tuple[str, ...]) -> TrainingLog:
        """Return the training."""
        self._handlers.clear()  # The handlers reference this object and would delay its release.
        quality = _quality(stated.benchmark, self.settings, self.evaluations)
        name = "error" if quality is not None and not quality.higher_is_better else "accuracy"
        problems += tuple(self._problems(name))
        evaluations = tuple(self.evaluations.take_all(name))
        problems += tuple(_contradicted(self.run.succeeded, quality, evaluations))
        return TrainingLog(
            source=str(path),
            run=self.run.interval(),
            succeeded=self.run.succeeded,
            init=next(iter(self.init.intervals()), None),
            staging=tuple(self.staging.intervals()),
            epochs=tuple(self.epochs.epochs()),
            evaluations=evaluations,
            quality=quality,
            global_batch_size=_count(self.settings, "global_batch_size", "input_batch_size"),
            train_samples=_count(self.settings, "train_samples", "preproc_num_train_examples"),
            eval_samples=_count(
                self.settings, "eval_samples", "preproc_num_eval_examples", "eval_size"
            ),
            nodes=_count(self.settings, "number_of_nodes"),
            accelerators=_stated_accelerators(self.settings)
            or _count(self.settings, "number_of_ranks"),
            settings={
                key: value
                for key, value in self.settings.items()
                if not key.startswith("submission_poc_")
            },
            problems=problems,
        )

    def _problems(self, name: str) -> Iterator[str]:
        yield from self.run.problems()
        yield from self.clock.problems()
        yield from self.epochs.problems()
        yield from self.evaluations.problems(name)
        yield from _taken_for_accelerators(self.settings)


def _contradicted(
    succeeded: bool | None, quality: Quality | None, evaluations: Sequence[Evaluation]
) -> Iterator[str]:
    """Yield a problem if a log's final status contradicts its evaluations."""
    if not succeeded or quality is None or quality.target is None:
        return
    if quality.first_reached(evaluations) is None:
        yield f"it reports success, but no evaluation reached the target, {quality.target:g}"


def _quality(
    benchmark: str | None, settings: Mapping[str, Any], evaluations: Evaluations
) -> Quality | None:
    """Return the quality metric: the error if the benchmark has a target error or no accuracy."""
    named = evaluations.named
    if not named:
        return None
    lower = "error" in named and (benchmark in _ERRORS or "accuracy" not in named)
    target = _target(settings)
    if target is None:
        target = (_ERRORS if lower else _ACCURACIES).get(benchmark or "")
    return Quality(
        name="eval_error" if lower else "eval_accuracy", higher_is_better=not lower, target=target
    )


_ERRORS = {"cosmoflow": 0.124, "oc20": 0.036}
"""Target errors. [training_policies, hpc_training_rules.adoc, Benchmarks]"""
_ACCURACIES = {"deepcam": 0.82, "openfold": 0.8}
"""Target accuracies that are equal in all rounds. [the same;  closed_openfold.yaml of hpc_3.0.0]"""


def _target(settings: Mapping[str, Any]) -> float | None:
    """Return the target stated in a log."""
    keys = ("eval_target", "target_avg_lddt_ca_value", "target_accuracy_reached")
    values = (logged_number(settings.get(key)) for key in keys)
    return next((value for value in values if value is not None), None)


def _stated_accelerators(settings: Mapping[str, Any]) -> int | None:
    """Return the accelerators stated in a log; a node without accelerators counts as one.

    [mlcommons/logging, result_summarizer: number_of_nodes × max(accelerators_per_node, 1)]
    """
    nodes = _count(settings, "number_of_nodes")
    each = logged_number(settings.get("accelerators_per_node"))
    return None if nodes is None or each is None else nodes * max(int(each), 1)


def _taken_for_accelerators(settings: Mapping[str, Any]) -> Iterator[str]:
    ranks = _count(settings, "number_of_ranks")
    if ranks is not None and _stated_accelerators(settings) is None:
        yield f"{ranks:,} accelerators, from its number_of_ranks: their number is not stated"


def _count(settings: Mapping[str, Any], *keys: str) -> int | None:
    """Return the first of several settings that is a count."""
    counts = (whole_number(logged_number(settings.get(key))) for key in keys)
    return next((count for count in counts if count is not None), None)


POOL_BYTES = 64 << 20
"""Total size of logs in bytes above which worker processes are worthwhile."""
MAX_PROCESSES = 8


def read_logs(paths: Sequence[Path]) -> list[ReadLog | Unreadable]:
    """Read logs and return them in order."""
    processes = min(len(paths), MAX_PROCESSES, len(os.sched_getaffinity(0)))
    if processes < 2 or _bytes(paths) < POOL_BYTES:
        return [read_log(path) for path in paths]
    # Not fork, because the caller may have threads.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(processes, mp_context=context) as pool:
        at_once = max(1, len(paths) // (processes * 16))
        return [_unpacked(packed) for packed in pool.map(_packed, paths, chunksize=at_once)]


_Packed = tuple[ReadLog | Unreadable, tuple[Any, ...], tuple[Any, ...]]


def _packed(path: Path) -> _Packed:
    """Return a log, and its epochs and evaluations as columns: pickling their tuples is slow."""
    read = read_log(path)
    if isinstance(read, Unreadable):
        return read, (), ()
    log = read.log.model_copy(update={"epochs": (), "evaluations": ()})
    return read._replace(log=log), _columns(read.log.epochs), _columns(read.log.evaluations)


def _columns(rows: Sequence[tuple[Any, ...]]) -> tuple[Any, ...]:
    return tuple(tuple(map(itemgetter(place), rows)) for place in range(4))


def _unpacked(packed: _Packed) -> ReadLog | Unreadable:
    read, epochs, evaluations = packed
    if isinstance(read, Unreadable):
        return read
    rows = {
        "epochs": tuple(starmap(Epoch, zip(*epochs, strict=True))),
        "evaluations": tuple(starmap(Evaluation, zip(*evaluations, strict=True))),
    }
    return read._replace(log=read.log.model_copy(update=rows))


def _bytes(paths: Sequence[Path]) -> int:
    """Return the total size of files; missing files count as 0."""
    total = 0
    for path in paths:
        with suppress(OSError):
            total += path.stat().st_size
    return total
