"""A measure's value, or why there is none."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from aiperf_hpc.analysis.training_log import ACCELERATOR, TrainingLog
from aiperf_hpc.errors import AIPerfError
from aiperf_hpc.formatting import si
from aiperf_hpc.results.table import number
from aiperf_hpc.trial import Value


class NotMeasuredError(AIPerfError):
    """The source does not carry what a measure needs; the message says what is missing."""


@dataclass(frozen=True, slots=True)
class Measure:
    """A measure of one training. Its function's docstring is its definition."""

    name: str
    title: str
    unit: str
    """As printed; empty for a pure number."""
    source: str
    """The paper or rules that define it, with equation, section or table."""
    of: Callable[[TrainingLog], float]
    """Raises NotMeasuredError."""
    si: bool = False
    """Whether its unit takes SI prefixes: GOPS."""

    def counted_by(self, device: str) -> Measure:
        """Return the same, with what its trainings are counted by in title and unit."""
        title, unit = (s.replace(ACCELERATOR, device) for s in (self.title, self.unit))
        return replace(self, title=title, unit=unit)

    def said(self, value: float) -> str:
        """Return a value as people read it; with its unit where that has a prefix."""
        return si(value, self.unit) if self.si else number(value)


class Aggregate(Value):
    """A measure over the trainings of an entry."""

    mean: float
    """Over the kept trainings."""
    deviation: float | None
    """Sample standard deviation over the kept trainings; None of fewer than two."""
    values: tuple[float | None, ...]
    """Of each training, in their order; None where it was not measured."""
    kept: tuple[int, ...]
    """Places in ``values`` of the trainings that count."""
