"""Incremental timeline of one result log: the run, the epochs and the evaluations."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from operator import itemgetter

from aiperf_hpc.analysis.readers.descriptions import finite_number
from aiperf_hpc.analysis.readers.mllog_lines import Metadata
from aiperf_hpc.analysis.training_log import Epoch, Evaluation, Interval

CLOCK_TOLERANCE = 1.0
"""Seconds by which a line may be older than its predecessors, since ranks write to one file."""
MAX_SPANS = 1000
"""Maximum number of initializations, and of stagings, stored per log."""


@dataclass(slots=True)
class _Evaluated:
    """An evaluation during reading."""

    epoch: float | None
    started: float | None
    ended: float | None
    accuracy: float | None = None
    error: float | None = None

    def finite(self, name: str) -> float | None:
        """Return one of the two qualities, or None if it is not a finite number."""
        value = self.error if name == "error" else self.accuracy
        return None if value is None or math.isnan(value) else value


class Run:
    """The timed run, which must start once and end once by the rules."""

    def __init__(self) -> None:
        self.started: float | None = None
        self.stopped: float | None = None
        self.succeeded: bool | None = None
        self._status: str | None = None
        self._starts = 0
        self._later = 0
        self._lone_stops = 0

    def start(self, time: float) -> bool:
        """Start or restart the run; return whether earlier events of the run are void."""
        if self.stopped is not None:
            self._later += 1
            return False
        self._starts += 1
        again = self.started is not None
        self.started = time
        return again

    def stop(self, time: float, value: object, metadata: Metadata) -> None:
        """End the run; further ends are ignored."""
        if self.stopped is not None:
            return
        if self.started is None:
            self._lone_stops += 1
            return
        self.stopped = time
        self.succeeded, self._status = _status(value, metadata)

    def interval(self) -> Interval | None:
        """Return the run, without its end if that is before its start."""
        if self.started is None:
            return None
        backwards = self.stopped is not None and self.stopped < self.started
        return Interval(started=self.started, ended=None if backwards else self.stopped)

    def problems(self) -> Iterator[str]:
        """Yield problems of the run."""
        if self.started is None:
            after = ", but a run_stop" if self._lone_stops else ""
            yield f"no run_start{after}: the run was not timed"
            return
        if self._starts > 1:
            yield f"{self._starts} run_starts: measured from the last before run_stop"
        if self._later:
            yield f"{self._later} run_starts after run_stop: what follows run_stop was not read"
        if self.stopped is None:
            yield "no run_stop: the run was cut off"
        elif self.stopped < self.started:
            yield f"run_stop is {self.started - self.stopped:.3f} s before run_start"
        elif self.succeeded is False:
            yield f"the run ended with status {self._status}"
        elif self.succeeded is None:
            yield "run_stop has no status"


def _status(value: object, metadata: Metadata) -> tuple[bool | None, str | None]:
    """Return whether a run_stop reports success, and its status."""
    status = metadata.status
    if status is None and isinstance(value, dict):
        status = value.get("success", value.get("status"))
    if status is None:
        return None, None
    return str(status).lower() in ("success", "true"), str(status)


class Spans:
    """Non-overlapping intervals of one kind."""

    def __init__(self) -> None:
        self._spans: list[tuple[float, float | None]] = []

    def start(self, time: float, value: object, metadata: Metadata) -> None:
        """Start an interval unless one is open."""
        if len(self._spans) < MAX_SPANS and not (self._spans and self._spans[-1][1] is None):
            self._spans.append((time, None))

    def stop(self, time: float, value: object, metadata: Metadata) -> None:
        """End the open interval."""
        if self._spans and self._spans[-1][1] is None:
            self._spans[-1] = (self._spans[-1][0], time)

    def forget_after(self, time: float) -> None:
        """Drop intervals that started at or after a time."""
        self._spans = [span for span in self._spans if span[0] < time]

    def intervals(self) -> Iterator[Interval]:
        """Yield the intervals; one that ends before its start has no end."""
        for started, ended in self._spans:
            backwards = ended is not None and ended < started
            yield Interval(started=started, ended=None if backwards else ended)


class Epochs:
    """Epochs by number, since ranks that write to one file repeat each of them."""

    def __init__(self) -> None:
        self._all: dict[float, Epoch] = {}
        self._open: set[float] = set()
        self._endless = False
        self._again = 0

    def start(self, time: float, value: object, metadata: Metadata) -> None:
        """Start an epoch or a block of epochs."""
        self._begin(time, metadata.epoch, metadata.passes)

    def next(self, time: float, value: object, metadata: Metadata) -> None:
        """Start an epoch of v0.5, which ends only with the start of the next."""
        self._endless = True
        for number in list(self._open):
            self._end(number, time)
        self._begin(time, logged_number(value), 1.0)

    def stop(self, time: float, value: object, metadata: Metadata) -> None:
        """End an epoch or a block, even if its end has a different, unknown number."""
        number = metadata.epoch
        if number not in self._open and len(self._open) == 1 and number not in self._all:
            number = next(iter(self._open))
        if number in self._open:
            self._end(number, time)

    def _begin(self, time: float, stated: float | None, passes: float) -> None:
        number = len(self._all) + 1.0 if stated is None else stated
        if number not in self._all:
            self._all[number] = Epoch(time, None, number, passes)
            self._open.add(number)
        elif number not in self._open:
            self._again += 1

    def _end(self, number: float, time: float) -> None:
        self._open.discard(number)
        epoch = self._all[number]
        if time >= epoch.started:
            self._all[number] = Epoch(epoch.started, time, number, epoch.passes)

    def epochs(self) -> list[Epoch]:
        """Return the epochs in the order of their starts."""
        epochs = list(self._all.values())
        if self._endless:
            epochs = list(_with_passes(epochs))
        return sorted(epochs, key=itemgetter(0))

    def problems(self) -> Iterator[str]:
        """Yield problems of these events."""
        if self._again:
            yield f"{self._again:,} epochs are logged again: the first of each number is used"


def _with_passes(epochs: Sequence[Epoch]) -> Iterator[Epoch]:
    """Yield epochs of v0.5, each of which lasts until the number of the next.

    The last is complete if all are single passes; otherwise it is the part started after the last
    evaluation.
    """
    passes = [after.number - epoch.number for epoch, after in pairwise(epochs)]
    passes.append(1.0 if all(count == 1 for count in passes) else 0.0)
    for epoch, count in zip(epochs, passes, strict=True):
        yield epoch._replace(passes=count)


class Evaluations:
    """Evaluations, of which several may belong to one epoch."""

    def __init__(self) -> None:
        self.named: set[str] = set()
        """Qualities in the log: ``accuracy``, ``error`` or both."""
        self._all: list[_Evaluated] = []
        self._open: dict[float | None, _Evaluated] = {}
        self._last: dict[float | None, _Evaluated] = {}

    def start(self, time: float, value: object, metadata: Metadata) -> None:
        """Start an evaluation unless the line is a duplicate."""
        epoch = _evaluated_epoch(value, metadata)
        last = self._last.get(epoch)
        if epoch not in self._open and (last is None or last.started != time):
            self._open[epoch] = self._add(_Evaluated(epoch, time, None))

    def stop(self, time: float, value: object, metadata: Metadata) -> None:
        """End an evaluation, even with a different epoch if it is the only one."""
        epoch = _evaluated_epoch(value, metadata)
        if epoch not in self._open and len(self._open) == 1:
            epoch = next(iter(self._open))
        if epoch in self._open:
            self._open.pop(epoch).ended = time

    def quality(self, name: str, time: float, value: object, metadata: Metadata) -> None:
        """Store the accuracy or error of a started or ended evaluation."""
        self.named.add(name)
        epoch = _evaluated_epoch(value if isinstance(value, dict) else None, metadata)
        quality = logged_number(value)
        evaluation = self._last.get(epoch) or self._last.get(None)
        known = None if evaluation is None else getattr(evaluation, name)
        if known is not None and known == quality:
            return
        if evaluation is None or known is not None:
            evaluation = self._add(_Evaluated(epoch, None, time))
        if evaluation.epoch is None:
            evaluation.epoch = epoch
        setattr(evaluation, name, math.nan if quality is None else quality)

    def _add(self, evaluation: _Evaluated) -> _Evaluated:
        self._all.append(evaluation)
        self._last[evaluation.epoch] = evaluation
        return evaluation

    def take_all(self, name: str) -> Iterator[Evaluation]:
        """Yield the ended evaluations with one of the qualities, and release them."""
        self._last.clear()
        self._open.clear()
        self._all.reverse()
        while self._all:
            evaluation = self._all.pop()
            started, ended = evaluation.started, evaluation.ended
            if ended is not None:
                if started is not None and ended < started:
                    started = None
                yield Evaluation(evaluation.epoch, started, ended, evaluation.finite(name))

    def problems(self, name: str) -> Iterator[str]:
        """Yield problems of these events."""
        bad = [one.epoch for one in self._all if one.finite(name) is None]
        if bad:
            where = "" if bad[0] is None else f" (the first at epoch {bad[0]:g})"
            yield f"{len(bad):,} of {len(self._all):,} evaluations without a finite quality{where}"


class Clock:
    """Check that the times of lines increase."""

    def __init__(self) -> None:
        self.latest = 0.0
        self._count = 0
        self._worst = 0.0
        self._key = ""

    def went_back(self, time: float, key: str) -> None:
        """Record a line that is older than a previous one."""
        back = self.latest - time
        if time and back > CLOCK_TOLERANCE:
            self._count += 1
            if back > self._worst:
                self._worst, self._key = back, key

    def problems(self) -> Iterator[str]:
        """Yield a problem with the number of backward steps in time and the largest one."""
        if self._count:
            yield (
                f"time goes backwards in {self._count:,} lines,"
                f" by up to {self._worst:.1f} s at {self._key}"
            )


def _evaluated_epoch(value: object, metadata: Metadata) -> float | None:
    """Return the epoch in an evaluation's line; v0.5 has it in the value."""
    number = metadata.epoch
    if number is not None or value is None:
        return number
    return finite_number(value.get("epoch") if isinstance(value, dict) else value)


def logged_number(value: object) -> float | None:
    """Return a number, or the ``value`` of a v0.5 object: ``{"epoch": 1, "value": 0.9}``."""
    return finite_number(value.get("value") if isinstance(value, dict) else value)
