"""Reference convergence points: what the rules' checker computes, worked out by SciPy."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from scipy.stats import ttest_ind_from_stats

from aiperf_hpc.analysis.metric import NotMeasuredError
from aiperf_hpc.analysis.sections import reference_convergence
from aiperf_hpc.analysis.sections.reference_convergence import (
    ConvergenceRow,
    Reference,
    least_mean,
    pruned,
    reference_at,
    references,
)
from aiperf_hpc.analysis.training_log import Entry, System


def compare(benchmark: str, batch_size: int, converged: Sequence[float]) -> ConvergenceRow:
    entry = Entry(
        name="e", format="mllog", benchmark=benchmark, system=System(name="s"), path="", logs=()
    )
    return reference_convergence.compare(entry, batch_size, converged)


def test_the_least_mean_is_where_the_checkers_t_test_gives_5_percent() -> None:
    point = Reference(128, 17.9, 0.5, 18)
    least = least_mean(point, 10)
    test = ttest_ind_from_stats(least, 0.5, 8, 17.9, 0.5, 18, equal_var=True)
    assert test.pvalue / 2 == pytest.approx(0.05)
    assert least < 17.9
    assert least_mean(Reference(256, 9.0, 0.0, 8), 5) == 9.0


def test_references_are_means_without_the_fastest_and_the_slowest() -> None:
    """DeepCAM at 128: 4 runs of 6 epochs, 13 of 7 and 3 of 8, of which two do not count."""
    point = references("deepcam")[0]
    kept = [6] * 3 + [7] * 13 + [8] * 2
    assert (point.batch_size, point.runs) == (128, 18)
    assert point.mean == pytest.approx(np.mean(kept))
    assert point.deviation == pytest.approx(np.std(kept))
    sizes = {name: [one.batch_size for one in references(name)] for name in ("cosmoflow", "oc20")}
    assert sizes == {"cosmoflow": [32, 64, 128, 512, 1024], "oc20": [256, 1024]}


def test_openfold_between_two_batches() -> None:
    """At 144 an eighth of the way from 128 to 256: 88746.67 + (133120 − 88746.67) / 8."""
    converged = [74880, 80640, 86400, 86400, 86400, 92160, 92160, 92160, 120960, 120960]
    found = compare("openfold", 144, converged)
    reference = 88746 + 2 / 3 + (133120 - 88746 - 2 / 3) / 8
    assert (found.mean, found.reference) == pytest.approx((92160, reference))
    assert found.factor == pytest.approx(reference / 92160)
    assert found.verdict == "faster, within chance"


def test_verdicts() -> None:
    reference = references("openfold")[0].mean
    slow = compare("openfold", 128, [reference + 1] * 10)
    assert (slow.factor, slow.verdict) == (1.0, "no faster")
    fast = compare("openfold", 128, [0.8 * reference] * 10)
    assert fast.factor == pytest.approx(1 / 0.8)
    assert fast.verdict == "faster than chance allows"


def test_one_failed_run_is_the_slowest_to_converge() -> None:
    assert compare("deepcam", 128, [7, 7, 7, 8, float("inf")]).mean == pytest.approx(22 / 3)


def test_points_slower_than_their_neighbours_interpolation_are_pruned() -> None:
    slow = Reference(64, 18.0, 0.0, 18)
    points = (Reference(32, 8.0, 0.0, 18), slow, Reference(512, 23.0, 0.0, 18))
    assert pruned(points, 10) == (points[0], points[2])
    first = (Reference(16, 9.0, 0.0, 18), *points)
    assert pruned(first, 10) == (points[0], points[2])
    assert [one.batch_size for one in pruned(references("cosmoflow"), 10)] == [32, 512, 1024]


def test_batches_outside_of_the_points() -> None:
    points = references("oc20")
    assert reference_at(64, points, 5) == points[0]
    assert reference_at(256, points, 5) == points[0]
    assert reference_at(1024, points, 5) == points[1]
    with pytest.raises(NotMeasuredError, match="batch 2048 is above all reference points"):
        reference_at(2048, points, 5)


def test_what_has_no_reference() -> None:
    with pytest.raises(NotMeasuredError, match="resnet has no reference convergence points"):
        compare("resnet", 256, [1.0] * 5)
    with pytest.raises(NotMeasuredError, match="too few"):
        compare("deepcam", 128, [7.0])
