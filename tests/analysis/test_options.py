"""What users may write behind options, and what is refused in a line."""

from __future__ import annotations

import pytest

from aiperf_hpc.analysis.options import qualities, target
from aiperf_hpc.errors import UsageError


def test_qualities_of_one_or_of_a_named_benchmark() -> None:
    plain = qualities("--thresholds", "93,94.5,95")
    assert (plain.benchmark, plain.values) == (None, (93.0, 94.5, 95.0))
    named = qualities("--thresholds", "CIFAR10=93")
    assert (named.benchmark, named.values) == ("CIFAR10", (93.0,))


@pytest.mark.parametrize("text", ["", "a", "1,", "nan", "1,inf", "=1", " =1", "CIFAR10=", "1;2"])
def test_what_is_no_quality_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="write it as"):
        qualities("--thresholds", text)


def test_a_target_is_one_quality() -> None:
    assert target("CIFAR10=94").values == (94.0,)
    with pytest.raises(UsageError, match="one target"):
        target("93,94")
