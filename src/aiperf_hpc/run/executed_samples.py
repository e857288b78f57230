"""Executed samples, stored in columns of numbers: a large run has millions of such records."""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterator
from typing import NamedTuple


class Execution(NamedTuple):
    """Executed samples of a trial, with the UTC seconds of their record."""

    utc: float
    trial: str
    train_samples: int
    validation_samples: int


class Executions:
    """All executions of a run, in the order of reading. Executions are never removed."""

    def __init__(self) -> None:
        self.trials: list[str] = []
        """Names of the trials that executed samples."""
        self.last_utc = -math.inf
        """Latest time of an execution, UTC seconds."""
        self._places: dict[str, int] = {}
        self._utc = array("d")
        self._place = array("L")
        self._train = array("q")  # Wide enough for ``MOST_COUNT``.
        self._validation = array("q")

    def add(self, utc: float, trial: str, train_samples: int, validation_samples: int) -> None:
        """Add an execution."""
        place = self._places[trial] if trial in self._places else self._place_of(trial)
        self._utc.append(utc)
        self._place.append(place)
        self._train.append(train_samples)
        self._validation.append(validation_samples)
        if utc > self.last_utc:
            self.last_utc = utc

    def extend(self, other: Executions) -> None:
        """Append the executions of another object, in their order."""
        places = [self._place_of(trial) for trial in other.trials]
        self._utc.extend(other._utc)
        self._place.extend(map(places.__getitem__, other._place))
        self._train.extend(other._train)
        self._validation.extend(other._validation)
        self.last_utc = max(self.last_utc, other.last_utc)

    def rows(self) -> Iterator[tuple[float, int, int, int]]:
        """Return an iterator over executions: time, index of the trial in ``trials``, and samples.

        Training samples come before validation samples.
        """
        return zip(self._utc, self._place, self._train, self._validation, strict=True)

    def after(self, utc: float) -> dict[str, tuple[int, int]]:
        """Return the samples that each trial executed after ``utc``, UTC seconds.

        Training samples come before validation samples.
        """
        found: dict[str, tuple[int, int]] = {}
        if self.last_utc <= utc:
            return found
        for when, place, train, validation in self.rows():
            if when > utc:
                before = found.get(self.trials[place], (0, 0))
                found[self.trials[place]] = before[0] + train, before[1] + validation
        return found

    def count_after(self, utc: float) -> int:
        """Return the number of executions recorded after ``utc``, UTC seconds."""
        return sum(when > utc for when in self._utc) if self.last_utc > utc else 0

    def _place_of(self, trial: str) -> int:
        if trial not in self._places:
            self._places[trial] = len(self.trials)
            self.trials.append(trial)
        return self._places[trial]

    def __len__(self) -> int:
        return len(self._utc)

    def __iter__(self) -> Iterator[Execution]:
        return (Execution(utc, self.trials[i], *samples) for utc, i, *samples in self.rows())
