"""TensorFlow without Keras: ``from aiperf_hpc.replica.tensorflow_import import tf``.

TensorFlow imports Keras as its last step, for SavedModels of optimisers, which takes as long as
all that went before. Nothing here uses it. Whoever asks for ``tf.keras`` later still gets it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

LEGACY_KERAS = "TF_USE_LEGACY_KERAS"


@contextmanager
def _without_keras() -> Iterator[None]:
    """Let TensorFlow look for the legacy Keras, whose absence it takes without a word."""
    before = os.environ.get(LEGACY_KERAS)
    os.environ[LEGACY_KERAS] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ[LEGACY_KERAS]
        else:
            os.environ[LEGACY_KERAS] = before


with _without_keras():
    import tensorflow as tf

__all__ = ["tf"]
