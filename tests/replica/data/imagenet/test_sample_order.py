from __future__ import annotations

import math
import random
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import ks_2samp

from aiperf_hpc.replica.data.imagenet import sample_order
from aiperf_hpc.replica.data.imagenet.sample_order import Box
from aiperf_hpc.replica.data.sharded.dataset import Shard


def _shards(*samples: int) -> list[Shard]:
    return [
        Shard(file=f"{n}", samples=count, bytes=1, head_sha256="", sha256="")
        for n, count in enumerate(samples)
    ]


def test_shards_of_a_group_are_read_in_turn() -> None:
    order = sample_order.reading_order(_shards(2, 3, 1, 2), [[2, 0], [1, 3]])
    # Places: shard 0 has 0 and 1, shard 1 has 2 to 4, shard 2 has 5, shard 3 has 6 and 7.
    assert order.tolist() == [5, 0, 1, 2, 6, 3, 7, 4]


def test_groups_have_all_shards_once_in_another_order_each_epoch() -> None:
    epochs = [sample_order.groups(37, 5, epoch) for epoch in range(3)]
    for together in epochs:
        assert [len(group) for group in together] == [16, 16, 5]
        assert sorted(shard for group in together for shard in group) == list(range(37))
    assert epochs[0] != epochs[1] != epochs[2]
    assert epochs[0] == sample_order.groups(37, 5, 0)


def test_windows_are_permutations_with_crops_of_their_own() -> None:
    windows = list(sample_order.windows(5000, 1, 2))
    assert [len(window.order) for window in windows] == [2048, 2048, 904]
    for window in windows:
        assert sorted(window.order.tolist()) == list(range(len(window.order)))
        assert len(np.unique(window.crops[:, 0])) > 0.99 * len(window.order)
    assert not np.array_equal(windows[0].order, windows[1].order)
    assert not np.array_equal(windows[0].crops, windows[1].crops)


@given(st.integers(1, 5000), st.integers(1, 5000), st.integers(0, 2**32))
def test_crops_are_within_the_image_and_have_their_area(height: int, width: int, seed: int) -> None:
    for crop in sample_order.crop_draws(20, seed):
        top, left, tall, wide = sample_order.random_box(crop, height, width)
        assert 0 <= top <= height - tall
        assert 0 <= left <= width - wide
        if (tall, wide) != (height, width):
            # Sides are rounded to pixels.
            assert (tall + 0.5) * (wide + 0.5) >= 0.0799 * height * width
            assert (wide - 0.5) / (tall + 0.5) < 1.334
            assert (wide + 0.5) / (tall - 0.5) > 0.7499


def _torchvision_box(rng: random.Random, height: int, width: int) -> Box:
    """Draw as torchvision's RandomResizedCrop.get_params does, by its defaults."""
    for _ in range(10):
        area = height * width * rng.uniform(0.08, 1.0)
        aspect = math.exp(rng.uniform(math.log(3 / 4), math.log(4 / 3)))
        wide, tall = round(math.sqrt(area * aspect)), round(math.sqrt(area / aspect))
        if 0 < wide <= width and 0 < tall <= height:
            return Box(rng.randint(0, height - tall), rng.randint(0, width - wide), tall, wide)
    return Box(0, 0, height, width)


SHARES: tuple[Callable[[Box], float], ...] = (
    lambda box: box.height * box.width,
    lambda box: box.height / box.width,
    lambda box: box.top + box.height / 2,
    lambda box: box.left + box.width / 2,
)


@pytest.mark.parametrize("share", SHARES, ids=["area", "aspect", "down", "right"])
def test_crops_are_spread_as_those_of_torchvision(share: Callable[[Box], float]) -> None:
    count, shape = 5000, (375, 500)
    crops = sample_order.crop_draws(count, 7)
    ours = [share(sample_order.random_box(crop, *shape)) for crop in crops]
    rng = random.Random(1)  # noqa: S311 -- not for secrets
    theirs = [share(_torchvision_box(rng, *shape)) for _ in range(count)]
    assert ks_2samp(ours, theirs).pvalue > 0.001


def test_half_of_the_crops_are_mirrored() -> None:
    crops = sample_order.crop_draws(4000, 1)
    mirrored = sum(sample_order.mirrored(crop) for crop in crops)
    assert abs(mirrored - 2000) < 5 * 32


@pytest.mark.parametrize(
    ("height", "width", "size", "box"),
    [
        (256, 256, 224, Box(16, 16, 224, 224)),
        (512, 256, 224, Box(144, 16, 224, 224)),
        (1, 1, 224, Box(0, 0, 1, 1)),
        (1, 3000, 224, Box(0, 1499, 1, 1)),
    ],
)
def test_the_center(height: int, width: int, size: int, box: Box) -> None:
    assert sample_order.central_box(height, width, size) == box


def test_the_usual_normalization_constants() -> None:
    assert np.allclose(np.array(sample_order.MEAN) / 255, (0.485, 0.456, 0.406))
    assert np.allclose(np.array(sample_order.STD) / 255, (0.229, 0.224, 0.225))
