"""The predictions of a trained network: the predicted class of each validation sample.

They are stored in a checked file (``morphism/weights/checked_file.py``), in the smallest unsigned
integer type for the number of classes.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from aiperf_hpc.errors import CheckpointError
from aiperf_hpc.morphism.weights.checked_file import load_checked, save_checked
from aiperf_hpc.run.storage import Sync, to_stable_storage
from aiperf_hpc.untrusted.files import bytes_of

_ARRAY, _TEXTS = "class", ("trial", "epoch")
MOST_PREDICTIONS_BYTES = 256 * 2**20
"""Maximum size of a file of predictions in bytes; ImageNet's 50,000 need 100 kB."""


@dataclass(frozen=True, slots=True)
class Predictions:
    """Predictions of a network at the end of an epoch."""

    trial: str
    epoch: int
    classes: NDArray[np.int64]
    """Predicted class of each validation sample, (samples,), in the order of the dataset."""


def save_predictions(path: Path, predictions: Predictions, sync: Sync = to_stable_storage) -> str:
    """Write a file atomically; return its SHA-256. Raises OSError."""
    classes = predictions.classes
    small = classes.astype(np.min_scalar_type(int(classes.max(initial=0))))
    texts = {"trial": predictions.trial, "epoch": str(predictions.epoch)}
    save_checked(path, {_ARRAY: small}, texts, sync)
    return file_digest(path)


def file_digest(path: Path) -> str:
    """Return the SHA-256 of a file, in hexadecimal. Raises OSError."""
    return hashlib.sha256(bytes_of(path, MOST_PREDICTIONS_BYTES)).hexdigest()


def load_predictions(path: Path) -> Predictions:
    """Read a file. Raises CheckpointError if it is missing or damaged."""
    texts, arrays = load_checked(path, _TEXTS)
    found = arrays.get(_ARRAY)
    if found is None or found.ndim != 1 or not np.issubdtype(found.dtype, np.unsignedinteger):
        raise CheckpointError(f"{path} holds no classes of samples")
    return Predictions(texts["trial"], int(texts["epoch"]), found.astype(np.int64))


def load_recorded(path: Path, sha256: str) -> Predictions:
    """Read the file with a recorded SHA-256.

    Raises:
        OSError: the file cannot be read.
        CheckpointError: the file has another SHA-256 or is damaged.
    """
    if file_digest(path) != sha256:
        raise CheckpointError(f"{path} is not the file that was recorded")
    return load_predictions(path)
