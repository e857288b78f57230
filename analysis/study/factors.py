"""Factor analysis and lesion study: what a factor contributes, as a ratio of two measurements.

Coleman et al. (DAWNBench, 2017; "Analysis of DAWNBench", 2019) compare optimizations so: each is
added alone to the plain system (factor analysis), and each is removed from the system that has
all of them (lesion study). Where the two ratios of a factor differ, it works with or against the
others.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

from aiperf_hpc.trial import Value


class Ratio(Value):
    """How much better one system is than another: above 1 where it is better."""

    value: float
    deviation: float | None
    """Standard error of ``value``; None where a system was measured once."""


def improvement(
    without: Sequence[float], having: Sequence[float], *, higher_is_better: bool
) -> Ratio:
    """Return by what factor the second system is better than the first.

    The ratio is that of the means. Its standard error is that of a ratio of independent means to
    first order: the relative standard errors of both means, added in squares.

    Args:
        without: measurements of the system without the factor, all positive.
        having: those of the system with it, all positive.
        higher_is_better: whether the measure is a rate, not a time.

    Raises:
        ValueError: a system has no measurement, or one that is not positive.
    """
    if not without or not having or min(*without, *having) <= 0.0:
        raise ValueError("a ratio needs positive measurements of both systems")
    before, after = statistics.fmean(without), statistics.fmean(having)
    value = after / before if higher_is_better else before / after
    spread = [_relative_error(without), _relative_error(having)]
    known = [each for each in spread if each is not None]
    deviation = value * math.hypot(*known) if len(known) == len(spread) else None
    return Ratio(value=value, deviation=deviation)


def _relative_error(measurements: Sequence[float]) -> float | None:
    if len(measurements) < 2:
        return None
    error = statistics.stdev(measurements) / math.sqrt(len(measurements))
    return error / statistics.fmean(measurements)
