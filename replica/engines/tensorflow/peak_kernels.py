"""TensorFlow kernels for measuring the peak rates of devices."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from aiperf_hpc.host.machine import cpu_model
from aiperf_hpc.replica.engines.peaks import Images, PeakDevice
from aiperf_hpc.replica.tensorflow_import import tf

VERSIONS = {"tensorflow": tf.__version__}
FAILURES = (tf.errors.OpError, RuntimeError)
"""Errors of TensorFlow if a kernel does not exist or does not fit in memory."""
_TYPES = {"fp32": tf.float32, "tf32": tf.float32, "bf16": tf.bfloat16, "fp16": tf.float16}


class TensorFlowDevice(PeakDevice):
    """One device; see ``peaks.PeakDevice``. TensorFlow does not report its free memory."""

    arrays = {"update": 3}
    """The update a += b: TensorFlow writes other results to new memory."""

    def allows_tf32(self) -> bool:
        return bool(tf.config.experimental.tensor_float_32_execution_enabled())

    def _random(self, shape: tuple[int, ...], precision: str) -> Any:  # noqa: ANN401 -- a tensor
        tf.config.experimental.enable_tensor_float_32_execution(precision == "tf32")
        with tf.device(self.name):
            return tf.cast(tf.random.normal(shape), _TYPES[precision])

    def multiply(self, n: int, precision: str) -> Callable[[], object]:
        a, b = (self._random((n, n), precision) for _ in range(2))
        return partial(tf.linalg.matmul, a, b)

    def convolve(self, images: Images, precision: str) -> Callable[[], object]:
        batch, channels, side = images
        x = self._random((batch, side, side, channels), precision)
        kernel = self._random((3, 3, channels, channels), precision)
        return partial(tf.nn.conv2d, x, kernel, 1, [[0, 0], *[[1, 1]] * 2, [0, 0]])

    def move(self, kernel: str, elements: int) -> Callable[[], object]:
        with tf.device(self.name):
            a, b = tf.Variable(tf.ones(elements)), tf.ones(elements)
        return partial(a.assign_add, b, read_value=False)

    def finish(self) -> None:
        if self.threads is None:
            tf.test.experimental.sync_devices()


@contextmanager
def device_of_rank(kind: str, index: int, cores: int) -> Iterator[TensorFlowDevice]:
    """Return a context with the device of a rank's engine, which restores all settings on exit.

    Args:
        kind: option of the engine torch only.
        index: index of the accelerator on the host; no other is visible to the rank.
        cores: number of threads, if the engine computes on CPUs.
    """
    allowed = tf.config.experimental.tensor_float_32_execution_enabled()
    seen = tf.config.get_visible_devices("GPU")
    try:
        yield _gpu(seen[0], 0) if seen else _cpu(cores)
    finally:
        tf.config.experimental.enable_tensor_float_32_execution(allowed)


def _cpu(cores: int) -> TensorFlowDevice:
    return TensorFlowDevice("cpu:0", cpu_model(), cores, has_tf32=False)


def _gpu(gpu: Any, index: int) -> TensorFlowDevice:  # noqa: ANN401 -- TensorFlow's own
    details = tf.config.experimental.get_device_details(gpu)
    return TensorFlowDevice(f"gpu:{index}", details.get("device_name", "GPU"), None, has_tf32=True)


def devices(cores: int) -> Iterator[TensorFlowDevice]:
    """Yield the CPU, with the number of threads used in training, and each GPU."""
    tf.config.threading.set_intra_op_parallelism_threads(cores)
    tf.config.threading.set_inter_op_parallelism_threads(2)
    found = tf.config.list_physical_devices("GPU")
    for gpu in found:
        tf.config.experimental.set_memory_growth(gpu, True)
    yield _cpu(cores)
    for index, gpu in enumerate(found):
        yield _gpu(gpu, index)
