from __future__ import annotations

import numpy as np
import pytest

from aiperf_hpc.replica.data.arrays import (
    ArrayDataset,
    Augmentation,
    Bytes,
    Normalization,
    Samples,
)
from aiperf_hpc.trial import DatasetInfo

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


def _dataset(augmentation: Augmentation | None, train: int = 23) -> ArrayDataset:
    """Samples whose pixels are all the number of the sample, which is its label too."""
    numbers = np.arange(train, dtype=np.uint8)
    images = np.broadcast_to(numbers[:, None, None, None], (train, 4, 4, 3)).copy()
    info = DatasetInfo.of_labelled_images(
        name="test",
        sha256="",
        classes=train,
        shape=(4, 4, 3),
        train_samples=train,
        validation_samples=5,
    )
    plain = Normalization((0.0,) * 3, (1.0,) * 3)
    held_out = Samples(images[:5], numbers[:5])
    return ArrayDataset(info, Samples(images, numbers), held_out, plain, augmentation)


@pytest.mark.parametrize("batch_size", [1, 4, 23, 100])
def test_an_epoch_has_each_sample_once_with_its_label(batch_size: int) -> None:
    batches = list(_dataset(None).train(0, batch_size, 0))
    labels = np.concatenate([batch.targets["label"] for batch in batches])
    assert sorted(labels.tolist()) == list(range(23))
    assert [batch.size for batch in batches[:-1]] == [batch_size] * (len(batches) - 1)
    for batch in batches:
        assert np.array_equal(batch.inputs["image"][:, 0, 0, 0], batch.targets["label"])


def test_validation_is_in_stored_order() -> None:
    labels = [batch.targets["label"].tolist() for batch in _dataset(None).validation(2)]
    assert labels == [[0, 1], [2, 3], [4]]
