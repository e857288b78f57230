"""Predicted accuracy in warm-up: what a curve fitted to the first epochs says of a later one."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

LEAST_POINTS = 4
_SHIFTS = np.concatenate([[0.0], np.geomspace(0.1, 100.0, 63)])


def predicted_accuracy(accuracies: Sequence[float], epoch: int) -> float:
    """Return the accuracy expected at ``epoch``: a log2(x + b) + c, least squares.

    ``b`` is searched on a grid from 0 to 100; for each, ``a`` and ``c`` have a closed form.
    The result is never below the best observed accuracy and never above 1; with fewer than
    four points, or a curve that does not rise, it is the best observed.

    Args:
        accuracies: observed after epochs 1, 2, ...
        epoch: where the curve is read, counted from 1.

    Raises:
        ValueError: there is no accuracy, or one is not finite.
    """
    observed = np.asarray(accuracies, np.float64)
    if observed.size == 0 or not np.isfinite(observed).all():
        raise ValueError("a prediction needs finite accuracies")
    best = float(observed.max())
    if observed.size < LEAST_POINTS:
        return best
    x = np.log2(np.arange(1, observed.size + 1)[None, :] + _SHIFTS[:, None])
    x_mean, y_mean = x.mean(axis=1, keepdims=True), observed.mean()
    slope = ((x - x_mean) * (observed - y_mean)).sum(axis=1) / np.square(x - x_mean).sum(axis=1)
    fitted = y_mean + slope[:, None] * (x - x_mean)
    i = int(np.square(fitted - observed).sum(axis=1).argmin())
    if slope[i] <= 0.0:
        return best
    at_epoch = y_mean + slope[i] * (np.log2(epoch + _SHIFTS[i]) - float(x_mean[i, 0]))
    return float(min(1.0, max(best, at_epoch)))
