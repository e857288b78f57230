"""TensorFlow without Keras: ``from aiperf_hpc.replica.tensorflow_import import tf``.

TensorFlow imports Keras as its last step, for SavedModels of optimizers, which doubles the import
time. Nothing here uses it; ``tf.keras`` is still imported on first access.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from contextlib import contextmanager

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
# TensorFlow enables oneDNN by default only on processors with AVX-512 VNNI. Without it, the
# gradient of a dilated convolution is missing, and that of 3-D max-pooling goes to all elements
# within 1e-5 of the largest (``pooling_ops_3d.cc``).
os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")

LEGACY_KERAS = "TF_USE_LEGACY_KERAS"


@contextmanager
def _without_keras() -> Iterator[None]:
    """Make TensorFlow look for the legacy Keras, whose absence it ignores silently."""
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

# Objects of TensorFlow's modules live as long as the process; scanning them took two thirds of
# each full garbage collection.
gc.freeze()

__all__ = ["tf"]
