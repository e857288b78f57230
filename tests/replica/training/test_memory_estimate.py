"""The memory that a trial may use."""

from __future__ import annotations

import pytest

from aiperf_hpc.config import RunConfig
from aiperf_hpc.replica.replica import memory_limit

GIB = 2**30


@pytest.mark.parametrize(
    ("memory_limit_gib", "device", "limit"),
    [
        (None, None, 6),  # 2 of the host's 8 GiB are reserved for decoded images.
        (None, 5, 5),  # An accelerator's memory holds none.
        (3.0, None, 3),
        (3.0, 5, 3),
    ],
)
def test_only_the_hosts_memory_is_reduced_by_decoded_images(
    memory_limit_gib: float | None, device: int | None, limit: int
) -> None:
    config = RunConfig.model_validate(
        {
            "dataset": {"name": "imagenet", "path": "/d", "decoded_cache_gib": 2},
            "engine": {"name": "torch", "memory_limit_gib": memory_limit_gib},
        }
    )
    found = memory_limit(config, device and device * GIB, lambda: 8 * GIB)
    assert found.bytes == limit * GIB
    assert found.holds_copies is (device is None)
