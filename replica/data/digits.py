"""The 1,797 handwritten digits of scikit-learn: real images without a download.

They are the test part of the "Optical Recognition of Handwritten Digits" set (Alpaydin and
Kaynak, 1998): 8x8 gray images with pixels from 0 to 16.
"""

from __future__ import annotations

import hashlib
from importlib.util import find_spec
from pathlib import Path

import numpy as np

from aiperf_hpc.config import DatasetConfig
from aiperf_hpc.datasets import PINNED, read_errors
from aiperf_hpc.errors import DatasetError
from aiperf_hpc.replica.data import rng
from aiperf_hpc.replica.data.arrays import ArrayDataset, Augmentation, Normalization, Samples
from aiperf_hpc.replica.data.rng import Purpose

VALIDATION_SAMPLES = (36, 37, 35, 37, 36, 36, 36, 36, 35, 36)
"""Number of validation samples of each class: a fifth of the 1,797 samples, by the largest
remainder method. 1,437 samples remain for training."""

SHA256 = PINNED["digits"].sha256
"""SHA-256 of the training images, training labels, validation images and validation labels,
uint8."""

NORMALIZATION = Normalization(mean=(4.885928,), std=(6.016572,))
"""``training.images.mean()`` and ``training.images.std()`` over all of the training pixels."""

AUGMENTATION = Augmentation(pad=1, mirror=False)
"""A shift by up to one pixel, an eighth of the image; mirrored digits would not be digits."""


def load(config: DatasetConfig, cores: int) -> ArrayDataset:
    """Return the digits in their fixed split.

    Raises:
        DatasetError: the digits of the installed scikit-learn differ from the pinned ones.
    """
    # One core suffices: creating a batch takes microseconds.
    training, held_out = _split(_all_digits())
    digest = content_sha256(training, held_out)
    if digest != SHA256:
        raise DatasetError(
            "dataset 'digits': the installed scikit-learn has different digits from this "
            f"benchmark's (SHA-256 {digest}, not {SHA256}); install another version of it"
        )
    augmentation = AUGMENTATION if config.augment else None
    return ArrayDataset(PINNED["digits"], training, held_out, NORMALIZATION, augmentation)


def content_sha256(training: Samples, held_out: Samples) -> str:
    """Return the SHA-256 of the bytes of the images and labels, training set first."""
    digest = hashlib.sha256()
    for samples in (training, held_out):
        digest.update(samples.images.tobytes())
        digest.update(samples.labels.tobytes())
    return digest.hexdigest()


def _all_digits() -> Samples:
    """Read the digits from scikit-learn's file: importing scikit-learn would dominate the time."""
    package = find_spec("sklearn")
    if package is None or package.origin is None:
        raise DatasetError("dataset 'digits': there is no scikit-learn; pip install scikit-learn")
    path = Path(package.origin).with_name("datasets") / "data" / "digits.csv.gz"
    with read_errors(path, "digits", "install scikit-learn again, or another version of it"):
        rows = np.loadtxt(path, delimiter=",").astype(np.uint8)
    return Samples(rows[:, :-1].reshape(-1, 8, 8, 1), rows[:, -1])


def _split(samples: Samples) -> tuple[Samples, Samples]:
    """Split into training and validation, stratified by class; both keep the stored order."""
    chosen = np.zeros(len(samples.labels), np.bool_)
    for label, share in enumerate(VALIDATION_SAMPLES):
        members = np.flatnonzero(samples.labels == label)
        order = rng.permutation(len(members), Purpose.SPLIT, label)
        chosen[members[order[:share]]] = True
    return (
        Samples(samples.images[~chosen], samples.labels[~chosen]),
        Samples(samples.images[chosen], samples.labels[chosen]),
    )
