"""Which cores ranks share, by what their accelerators are near to."""

from __future__ import annotations

from pathlib import Path

import pytest

from aiperf_hpc.replica.parallel.binding import Cores, near_each, share_of
from aiperf_hpc.system.description import Accelerator

LEFT, RIGHT = frozenset({0, 1, 4, 5}), frozenset({2, 3, 6, 7})
"""Two sockets of two cores, of two threads each: 0 and 4 are halves of one core."""
NOWHERE: Cores = frozenset()


@pytest.mark.parametrize(
    ("near", "shares"),
    [
        ([LEFT, LEFT, RIGHT, RIGHT], [[0, 4], [1, 5], [2, 6], [3, 7]]),
        ([LEFT, RIGHT, LEFT, RIGHT], [[0, 4], [2, 6], [1, 5], [3, 7]]),
        ([], [[0, 4], [1, 5], [2, 6], [3, 7]]),
        ([LEFT, LEFT, RIGHT, NOWHERE], [[0, 4], [1, 5], [2, 6], [3, 7]]),
        ([frozenset({9})] * 4, [[0, 4], [1, 5], [2, 6], [3, 7]]),  # None that it may use.
        ([LEFT, LEFT, LEFT, RIGHT], [[0, 5], [1], [4], [2, 3, 6, 7]]),
    ],
)
def test_ranks_share_what_is_near_their_accelerators(
    near: list[Cores], shares: list[list[int]]
) -> None:
    assert [share_of(range(8), rank, 4, near) for rank in range(4)] == shares


def test_too_few_near_ones_are_not_shared() -> None:
    one = frozenset({0})
    assert [share_of(range(4), rank, 2, [one, one]) for rank in range(2)] == [[0, 2], [1, 3]]


def test_the_kernel_says_what_an_accelerator_is_near_to(tmp_path: Path) -> None:
    folder = tmp_path / "sys/bus/pci/devices/0000:1b:00.0"
    folder.mkdir(parents=True)
    (folder / "local_cpulist").write_text("0-1,4-5\n")
    found = [
        Accelerator(
            vendor="NVIDIA", model="A", index=n, uuid=f"GPU-{n}", pci_address=f"00000000:{n}B:00.0"
        )
        for n in range(2)
    ]
    assert near_each(["1", "0", "GPU-1", "MIG-7"], found, tmp_path) == [
        LEFT,
        NOWHERE,
        LEFT,
        NOWHERE,
    ]
