from __future__ import annotations

import numpy as np
import pytest

from aiperf_hpc.replica.data.arrays import (
    Augmentation,
    Bytes,
    Normalization,
)

RANDOM = np.random.default_rng(0)


def _images(count: int, height: int = 6, width: int = 5, channels: int = 3) -> Bytes:
    return RANDOM.integers(0, 256, (count, height, width, channels), np.uint8)


def _brute_force(image: Bytes, pad: int, down: int, right: int, mirrored: bool) -> Bytes:
    height, width, channels = image.shape
    moved = np.zeros_like(image)
    for row in range(height):
        for column in range(width):
            across = width - 1 - column if mirrored else column
            y, x = row + down - pad, across + right - pad
            if 0 <= y < height and 0 <= x < width:
                moved[row, column] = image[y, x]
    return moved


@pytest.mark.parametrize(("pad", "mirror"), [(0, True), (1, False), (2, True), (4, True)])
def test_augmentation_is_a_shift_and_a_mirror_image(pad: int, mirror: bool) -> None:
    augmentation = Augmentation(pad, mirror)
    images = _images(40)
    moves = augmentation.draw(40, seed=3, epoch=1)
    moved = augmentation.apply(images, moves)
    assert moved.shape == images.shape
    for place, image in enumerate(images):
        down, right = int(moves.down[place]), int(moves.right[place])
        expected = _brute_force(image, pad, down, right, bool(moves.mirrored[place]))
        assert np.array_equal(moved[place], expected)


def test_all_moves_are_drawn_and_equally_often() -> None:
    moves = Augmentation(4, True).draw(81_000, seed=0, epoch=0)
    counts = np.bincount(moves.down * 9 + moves.right, minlength=81)
    assert np.all(np.abs(counts - 1000) < 5 * 32)
    assert abs(int(moves.mirrored.sum()) - 40_500) < 5 * 143


@pytest.mark.parametrize("shape", [(7, 6, 5, 3), (4, 8, 8, 1)])
def test_normalization(shape: tuple[int, ...]) -> None:
    images = RANDOM.integers(0, 256, shape, np.uint8)
    mean, std = (100.0, 120.0, 140.0)[: shape[-1]], (10.0, 20.0, 30.0)[: shape[-1]]
    normal = Normalization(mean, std).apply(images)
    assert normal.dtype == np.float32
    assert normal.shape == shape
    for channel in range(shape[-1]):
        expected = (images[..., channel].astype(np.float64) - mean[channel]) / std[channel]
        assert np.allclose(normal[..., channel], expected, atol=1e-5)
