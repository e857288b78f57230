"""The times between the records of executed samples, by which it is known how long they took."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from aiperf_hpc.run.history import RunHistory, Trial


class Span(NamedTuple):
    """The time between two records of one trial's executed samples, and what was executed in it."""

    started: float
    ended: float
    train_samples: int
    validation_samples: int

    @property
    def seconds(self) -> float:
        return self.ended - self.started


Spans = Mapping[str, Sequence[Span]]
"""The spans of each trial, in order."""


@dataclass(slots=True)
class Executed:
    """What a trial executed, and in which time."""

    train_samples: int = 0
    train_seconds: float = 0.0
    seconds: float = 0.0
    """Evaluations included."""

    def add(self, other: Executed) -> None:
        """Add what another one executed."""
        self.train_samples += other.train_samples
        self.train_seconds += other.train_seconds
        self.seconds += other.seconds


def spans_of(history: RunHistory, until: float) -> Spans:
    """Return the spans of all trials, from the first step of each until ``until``, UTC seconds."""
    found: defaultdict[str, list[Span]] = defaultdict(list)
    for place, span in _spans(history, until):
        found[history.executions.trials[place]].append(span)
    return found


def executed_of(history: RunHistory, until: float) -> Iterator[tuple[Trial, Executed]]:
    """Yield each trial with what it executed until ``until``, UTC seconds: no span is kept."""
    found: defaultdict[int, Executed] = defaultdict(Executed)
    for place, span in _spans(history, until):
        train = span.seconds if span.train_samples else 0.0
        found[place].add(Executed(span.train_samples, train, span.seconds))
    for place, executed in found.items():
        yield history.trials[history.executions.trials[place]], executed


def _spans(history: RunHistory, until: float) -> Iterator[tuple[int, Span]]:
    """Yield spans with the places of their trials; a record covers the time since the last one."""
    trials = [history.trials[name] for name in history.executions.trials]
    mark = [trial.training_utc or trial.started_utc for trial in trials]
    for utc, place, train, validation in history.executions.rows():
        if utc <= until:
            yield place, Span(mark[place], utc, train, validation)
            mark[place] = utc
