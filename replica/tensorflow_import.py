"""TensorFlow without Keras: ``from aiperf_hpc.replica.tensorflow_import import tf``.

TensorFlow imports Keras as its last step, for SavedModels of optimisers, which takes as long as
all that went before. Nothing here uses it. Whoever asks for ``tf.keras`` later still gets it.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from contextlib import contextmanager

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
# Without oneDNN, which TensorFlow has by itself only where the processor has AVX-512 VNNI or more,
# it has no gradient of a dilated convolution, and that of a pooling over volumes goes to all
# elements within 1e-5 of the largest (``pooling_ops_3d.cc``).
os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")

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

# What TensorFlow's modules consist of lasts as long as the process; to look through it took two
# thirds of each full collection of garbage.
gc.freeze()

__all__ = ["tf"]
