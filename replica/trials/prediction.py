"""Predicted quality of warm-up trials, extrapolated from their first epochs."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

LEAST_POINTS = 4
_SHIFTS = np.concatenate([[0.0], np.geomspace(0.1, 3.0, 31)])[:, None]


def predicted_value(values: Sequence[float], epoch: int, perfect: float = 1.0) -> float:
    """Return the value predicted for ``epoch`` by a curve a log2(x + b) + c with damped gains.

    The curve is fitted to the observed epochs by least squares weighted by the epoch's number.
    ``b`` is searched on a grid from 0 to 3; for each ``b``, ``a`` and ``c`` have a closed form.
    A logarithm grows without bound, but quality does not. Of the gain ``a`` per doubling of x + b,
    the first doubling after the last observed epoch therefore contributes half, the next one a
    quarter and so on, in total at most ``a``.

    The result is at least the best observed value and at most ``perfect``. It is the best observed
    value if there are fewer than four points, the curve does not rise, or the epoch was observed.
    docs/decisions/search.md reports the error on real curves.

    Args:
        values: the objective values, such as accuracies, observed after epochs 1, 2, ...
        epoch: number of the epoch to predict, from 1.
        perfect: the highest possible objective value.

    Raises:
        ValueError: there is no value, or one is not finite.
    """
    observed = np.asarray(values, np.float64)
    if observed.size == 0 or not np.isfinite(observed).all():
        raise ValueError("a prediction needs finite values")
    best = float(observed.max())
    last = observed.size
    if last < LEAST_POINTS:
        return best
    weights = np.arange(1.0, last + 1)
    weights /= weights.sum()
    x = np.log2(np.arange(1.0, last + 1) + _SHIFTS)  # (shifts, epochs)
    off_x, off_y = x - (x @ weights)[:, None], observed - observed @ weights
    gain = (off_x * off_y) @ weights / (np.square(off_x) @ weights)
    i = int((np.square(gain[:, None] * off_x - off_y) @ weights).argmin())
    if gain[i] <= 0.0:
        return best
    reached = float(observed @ weights + gain[i] * off_x[i, -1])
    shift = float(_SHIFTS[i, 0])
    # The halves, quarters, ... of log2((epoch + b) / (last + b)) doublings.
    to_come = gain[i] * (1.0 - (last + shift) / (epoch + shift))
    return float(min(perfect, max(best, reached + to_come)))
