"""User options of an analysis."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated

from pydantic import Field

from aiperf_hpc.analysis.declaration import Declaration
from aiperf_hpc.analysis.prices import PriceTable
from aiperf_hpc.errors import UsageError
from aiperf_hpc.trial import Value


class Qualities(Value):
    """Qualities given by the user: thresholds or a target."""

    benchmark: str | None
    """Name of the benchmark; None if there is only one."""
    values: tuple[float, ...]


class Options(Value):
    """User options of an analysis."""

    accelerators: int | None = None
    """Number of accelerators of each training run whose source does not state it."""
    thresholds: tuple[Qualities, ...] = ()
    """Thresholds that replace the default range around the target."""
    targets: tuple[Qualities, ...] = ()
    """Targets that replace those of the benchmarks, one value each."""
    prices: PriceTable | None = None
    scales: tuple[int, ...] = ()
    """Numbers of accelerators to predict for; by default, a few beyond the largest."""
    vflops_exponent: int | None = Field(None, ge=1)
    """Exponent n of Valid FLOPS; None for HPC AI500's value for the kind of problem."""
    declarations: tuple[Declaration, ...] = ()
    """Declared changes of entries to their benchmarks."""
    precision: Annotated[float, Field(gt=0.0, lt=1.0)] = 0.01
    """Requested relative precision of a mean over repeated runs, and of a run's score."""
    peaks: Path | None = None
    """Path of a peaks file for the machine of all runs; None to use the file of each run."""


def qualities(option: str, text: str) -> Qualities:
    """Parse ``[BENCHMARK=]A,B,...``.

    Raises:
        UsageError: a quality is not a finite number.
    """
    benchmark, equals, numbers = text.rpartition("=")
    try:
        values = tuple(float(number) for number in numbers.split(","))
    except ValueError:
        values = ()
    if not values or not all(math.isfinite(value) for value in values) or (
        equals and not benchmark.strip()
    ):  # fmt: skip
        raise UsageError(f"{option} {text}: write it as 94 or 93,94,95 or BENCHMARK=93,94,95")
    return Qualities(benchmark=benchmark.strip() or None, values=values)


def target(text: str) -> Qualities:
    """Parse ``[BENCHMARK=]A``. Raises UsageError if the value is not one finite number."""
    named = qualities("--target", text)
    if len(named.values) != 1:
        raise UsageError(f"--target {text}: one target per benchmark; use --thresholds for several")
    return named
