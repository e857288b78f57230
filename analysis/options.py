"""What a user chooses about an analysis."""

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
    """Qualities that a user names: thresholds, or a target."""

    benchmark: str | None
    """Of which benchmark; None where there is only one."""
    values: tuple[float, ...]


class Options(Value):
    """What a user chooses about an analysis."""

    accelerators: int | None = None
    """Of each training whose source does not say how many it had."""
    thresholds: tuple[Qualities, ...] = ()
    """In place of a range around the target."""
    targets: tuple[Qualities, ...] = ()
    """In place of the benchmark's own, one value each."""
    prices: PriceTable | None = None
    scales: tuple[int, ...] = ()
    """Numbers of accelerators that scaling studies predict for; none: a few beyond the largest."""
    vflops_exponent: int | None = Field(None, ge=1)
    """n of Valid FLOPS; None: HPC AI500's by the kind of problem."""
    declarations: tuple[Declaration, ...] = ()
    """What entries changed of their benchmarks."""
    precision: Annotated[float, Field(gt=0.0, lt=1.0)] = 0.01
    """To what share of itself a mean over repeated runs, or a run's score, is to be known."""
    peaks: Path | None = None
    """A file of ``aiperf peaks``, of the machine of all runs; None: each run's own."""


def qualities(option: str, text: str) -> Qualities:
    """Return what ``[BENCHMARK=]A,B,...`` says.

    Raises:
        UsageError: a quality is no finite number.
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
    """Return what ``[BENCHMARK=]A`` says. Raises UsageError: it is not one finite number."""
    named = qualities("--target", text)
    if len(named.values) != 1:
        raise UsageError(f"--target {text}: one target a benchmark; several are --thresholds")
    return named
