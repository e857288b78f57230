"""A metric of a training, and the error of a source that does not carry what a metric needs."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import TypeVar

from aiperf_hpc.analysis.training_log import ACCELERATOR, TrainingLog
from aiperf_hpc.errors import AIPerfError
from aiperf_hpc.formatting import si
from aiperf_hpc.results.table import number
from aiperf_hpc.trial import Value

K = TypeVar("K")
T = TypeVar("T")


class NotMeasuredError(AIPerfError):
    """The source does not carry what a metric needs; the message states what is missing."""


@dataclass(frozen=True, slots=True)
class Metric:
    """A metric of one training."""

    name: str
    title: str
    unit: str
    """As printed; empty for a pure number."""
    definition: str
    """A sentence for the documentation and the page."""
    source: str
    """The paper or rules that define it, with equation, section or table."""
    compute: Callable[[TrainingLog], float]
    """Raises NotMeasuredError."""
    si: bool = False
    """Whether its unit takes SI prefixes: GOPS."""

    def counted_by(self, device: str) -> Metric:
        """Return the metric with the device of its trainings in title and unit."""
        title, unit = (s.replace(ACCELERATOR, device) for s in (self.title, self.unit))
        return replace(self, title=title, unit=unit)

    @property
    def suffix(self) -> str:
        """The unit behind a formatted value; empty if that has it."""
        return f" {self.unit}" if self.unit and not self.si else ""

    def formatted(self, value: float) -> str:
        """Return a value for people; with its unit if that has a prefix."""
        return si(value, self.unit) if self.si else number(value)


class Aggregate(Value):
    """A metric over the trainings of an entry."""

    mean: float
    """Over the scored trainings."""
    deviation: float | None
    """Sample standard deviation over the scored trainings; None of fewer than two."""
    values: tuple[float | None, ...]
    """Of each training, in their order; None where it was not measured."""
    kept: tuple[int, ...]
    """Indices in ``values`` of the scored trainings."""


def plus_minus(mean: float, deviation: float | None, text: Callable[[float], str]) -> str:
    """Return a mean with its deviation, if it has one."""
    return text(mean) if deviation is None else f"{text(mean)} ± {text(deviation)}"


def measured(compute: Callable[[], T]) -> tuple[T | None, str]:
    """Return a value and no reason, or None and why it cannot be measured."""
    try:
        return compute(), ""
    except NotMeasuredError as error:
        return None, str(error)


def measured_each(
    items: Iterable[K],
    compute: Callable[[K], T],
    name: Callable[[K], str] = attrgetter("name"),
    errors: type[AIPerfError] = NotMeasuredError,
) -> tuple[list[T], dict[str, str]]:
    """Return the value of each item that has one and, by name, why the others have none."""
    values: list[T] = []
    missing: dict[str, str] = {}
    for item in items:
        try:
            values.append(compute(item))
        except errors as error:
            missing[name(item)] = str(error)
    return values, missing
