"""Valid FLOPS of HPC AI500: a rate of operations, weighted by the quality that came of them.

[Jiang et al. 2020, HPC AI500 V2.0 (arXiv:2007.00279)]; docs/decisions/valid_flops.md
"""

from __future__ import annotations

import math
from typing import NamedTuple


class Weight(NamedTuple):
    """How a benchmark of HPC AI500 weights qualities."""

    target: float
    """The benchmark's."""
    exponent: int
    """n: 5 for image classification, 10 for extreme weather analytics."""


def quality_ratio(achieved: float, target: float, *, higher_is_better: bool) -> float | None:
    """Return how good the achieved quality is as a share of the target: over 1 is better.

    achieved / target as the paper has it for accuracy and average precision. Where lower is
    better (an error, a loss) the paper has no case; then it is target / achieved, so that twice
    the allowed error is half the quality. None where one of them is not positive, and so no
    share of the other.
    """
    better, worse = (achieved, target) if higher_is_better else (target, achieved)
    return better / worse if target > 0.0 and worse > 0.0 and better >= 0.0 else None


def weighted(rate: float, ratio: float, exponent: int) -> float | None:
    """Return VFLOPS = FLOPS · ratio^n, operations per second; None where that is no number.

    As published, a quality beyond the target raises the result: nothing caps the ratio at 1.

    Args:
        rate: FLOPS, operations per second.
        ratio: achieved over target quality.
        exponent: n.
    """
    try:
        found = rate * float(ratio) ** exponent
    except OverflowError:
        return None
    lost = math.isinf(found) or (found == 0.0 and rate * ratio > 0.0)
    return None if lost else found
