"""Metrics of training runs, and the error if a source lacks the data for a metric."""

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
    """The source lacks data for a metric; the message states the missing data."""


def required(value: T | None, missing: str) -> T:
    """Return a value. Raises NotMeasuredError with the missing data if it is None."""
    if value is None:
        raise NotMeasuredError(missing)
    return value


@dataclass(frozen=True, slots=True)
class Metric:
    """A metric of one training run, which is called with its log. Raises NotMeasuredError."""

    name: str
    title: str
    unit: str
    """Unit as printed; empty for a pure number."""
    source: str
    """Paper or rules that define the metric, with equation, section or table."""
    compute: Callable[[TrainingLog], float]
    si: bool = False
    """Whether the unit is printed with SI prefixes, such as GOPS."""

    def __call__(self, log: TrainingLog) -> float:
        return self.compute(log)

    @property
    def definition(self) -> str:
        """Description in one sentence for the page: the function's docstring, without details."""
        return " ".join((self.compute.__doc__ or "").partition("\n\n")[0].split())

    def counted_by(self, device: str) -> Metric:
        """Return the metric with the training runs' device in title and unit."""
        title, unit = (s.replace(ACCELERATOR, device) for s in (self.title, self.unit))
        return replace(self, title=title, unit=unit)

    @property
    def suffix(self) -> str:
        """Unit after a formatted value; empty if the value includes it."""
        return f" {self.unit}" if self.unit and not self.si else ""

    def formatted(self, value: float) -> str:
        """Return a formatted value, with its unit if that has a prefix."""
        return si(value, self.unit) if self.si else number(value)


def metric(
    title: str, unit: str, source: str, *, name: str = "", si: bool = False
) -> Callable[[Callable[[TrainingLog], float]], Metric]:
    """Return a decorator that makes a metric of a function, of its name and its docstring."""
    return lambda compute: Metric(name or compute.__name__, title, unit, source, compute, si)


class Aggregate(Value):
    """A metric over the training runs of an entry."""

    mean: float
    """Mean over the scored training runs."""
    deviation: float | None
    """Sample standard deviation over the scored training runs; None for fewer than two."""
    values: tuple[float | None, ...]
    """Value of each training run, in their order; None if it was not measured."""
    scored: tuple[int, ...]
    """Indices in ``values`` of the scored training runs."""


def plus_minus(mean: float, deviation: float | None, text: Callable[[float], str]) -> str:
    """Return a formatted mean, with its standard deviation if there is one."""
    return text(mean) if deviation is None else f"{text(mean)} ± {text(deviation)}"


def measured(compute: Callable[[], T]) -> tuple[T | None, str]:
    """Return a value and None, or None and the reason why it cannot be measured."""
    try:
        return compute(), ""
    except NotMeasuredError as error:
        return None, str(error)


def measured_each(
    items: Iterable[K],
    compute: Callable[[K], T],
    name: Callable[[K], str] = attrgetter("name"),
    errors: type[AIPerfError] = NotMeasuredError,
    none: str | None = None,
) -> tuple[list[T], dict[str, str]]:
    """Return the measured values, and by name the reasons why the other items have none."""
    values: list[T] = []
    missing: dict[str, str] = {}
    for item in items:
        try:
            values.append(compute(item))
        except errors as error:
            missing[name(item)] = str(error)
    if none is not None and not values:
        raise NotMeasuredError(next(iter(missing.values()), none))
    return values, missing
