"""The roofline's arithmetic, by hand."""

from __future__ import annotations

import pytest

from aiperf_hpc.analysis.sections.roofline import Bound, attainable, intensity, steps_of


def test_the_roof_of_the_paper() -> None:
    """Williams et al. 2009: the Opteron X2's 17.6 Gflop/s and 15 GB/s meet at 1.17 flops a byte.

    At 1/2 flop a byte memory allows 7.5; at 4 it would allow 60, and the peak is 17.6.
    """
    assert attainable(17.6e9, [Bound("memory", 1.17, 15e9)]).bound == "memory"
    assert attainable(17.6e9, [Bound("memory", 1.18, 15e9)]).bound == "compute"
    low = attainable(17.6e9, [Bound("memory", 0.5, 15e9)])
    assert (low.rate, low.bound) == (7.5e9, "memory")
    high = attainable(17.6e9, [Bound("memory", 4.0, 15e9)])
    assert (high.rate, high.bound) == (17.6e9, "compute")


def test_the_least_of_all_bounds_counts() -> None:
    """Memory 20 x 5 = 100, network 1000 x 0.05 = 50, storage 4 x 30 = 120, and a peak of 80."""
    bounds = [Bound("memory", 20, 5), Bound("network", 1000, 0.05), Bound("storage", 4, 30)]
    assert attainable(80.0, bounds) == (50.0, "network")
    assert attainable(80.0, [bounds[0], bounds[2]]) == (80.0, "compute")
    assert attainable(80.0) == (80.0, "compute")


def test_intensity_is_operations_a_byte() -> None:
    assert intensity(100.0, 8.0) == 12.5
    with pytest.raises(ValueError, match="nothing is moved"):
        intensity(1.0, 0.0)


@pytest.mark.parametrize(
    ("samples", "batch", "epoch", "steps"),
    [
        (10, 5, 10, 2),
        (10, 4, 10, 3),  # 4, 4, 2
        (20, 4, 10, 6),  # twice that
        (25, 4, 10, 8),  # and 4, 1
        (3, 64, 10, 1),
        (0, 64, 10, 0),
        (9, 4, None, 3),
    ],
)
def test_the_last_batch_of_an_epoch_may_be_smaller(
    samples: int, batch: int, epoch: int | None, steps: int
) -> None:
    assert steps_of(samples, batch, epoch) == steps
