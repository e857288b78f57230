"""Kernels of TensorFlow whose rates are a device's peaks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from aiperf_hpc.host.machine import cpu_model
from aiperf_hpc.replica.engines.peak_work import Images, Work, product_operations
from aiperf_hpc.replica.tensorflow_import import tf

VERSIONS = {"tensorflow": tf.__version__}
FAILURES = (tf.errors.OpError, RuntimeError)
"""What TensorFlow raises where a kernel does not exist, or does not fit."""
_TYPES = {"fp32": tf.float32, "tf32": tf.float32, "bf16": tf.bfloat16, "fp16": tf.float16}
_ELEMENT = 4


class TensorFlowDevice:
    """One device; see ``peak_work.PeakDevice``."""

    memory_bytes: int | None = None  # TensorFlow says what it has taken, not what there is.

    def __init__(self, name: str, model: str, threads: int | None) -> None:
        self.name = name
        self.model = model
        self.threads = threads
        of_gpu = ("fp32", "tf32", "bf16", "fp16")
        self.precisions = of_gpu if threads is None else ("fp32", "bf16", "fp16")

    def _random(self, shape: tuple[int, ...], precision: str) -> Any:  # noqa: ANN401 -- a tensor
        tf.config.experimental.enable_tensor_float_32_execution(precision == "tf32")
        with tf.device(self.name):
            return tf.cast(tf.random.normal(shape), _TYPES[precision])

    def product(self, n: int, precision: str) -> Work:
        a, b = (self._random((n, n), precision) for _ in range(2))
        return Work(f"{n} x {n}", product_operations(n), partial(tf.linalg.matmul, a, b))

    def convolution(self, images: Images, precision: str) -> Work:
        batch, channels, side = images
        x = self._random((batch, side, side, channels), precision)
        kernel = self._random((3, 3, channels, channels), precision)
        return Work(
            str(images),
            images.operations,
            partial(tf.nn.conv2d, x, kernel, 1, [[0, 0], *[[1, 1]] * 2, [0, 0]]),
        )

    def memory(self) -> list[tuple[str, Callable[[int], Work]]]:
        """Return the update a += b: TensorFlow writes other results to new memory."""
        return [("update", self._update)]

    def _update(self, size: int) -> Work:
        with tf.device(self.name):
            a, b = tf.Variable(tf.ones(size // _ELEMENT)), tf.ones(size // _ELEMENT)
        return Work(f"{size / 2**20:g} MiB", 3 * size, partial(a.assign_add, b, read_value=False))

    def finish(self) -> None:
        if self.threads is None:
            tf.test.experimental.sync_devices()


@contextmanager
def device_of_rank(kind: str, index: int, cores: int) -> Iterator[TensorFlowDevice]:
    """Give the device that a rank's engine has chosen, and leave everything as it was.

    Args:
        kind: of the engine torch.
        index: which of the host's accelerators is the rank's: the only one that it sees.
        cores: the threads that it computes on, where it computes on CPUs.
    """
    del kind, index
    allowed = tf.config.experimental.tensor_float_32_execution_enabled()
    seen = tf.config.get_visible_devices("GPU")
    try:
        yield _gpu(seen[0], 0) if seen else TensorFlowDevice("cpu:0", cpu_model(), cores)
    finally:
        tf.config.experimental.enable_tensor_float_32_execution(allowed)


def used_precision(device: TensorFlowDevice, precision: str) -> str:
    """Return what a device multiplies when it is to train in a precision: tf32 where allowed."""
    allowed = tf.config.experimental.tensor_float_32_execution_enabled()
    is_tf32 = precision == "fp32" and allowed and "tf32" in device.precisions
    return "tf32" if is_tf32 else precision


def _gpu(gpu: Any, index: int) -> TensorFlowDevice:  # noqa: ANN401 -- TensorFlow's own
    details = tf.config.experimental.get_device_details(gpu)
    return TensorFlowDevice(f"gpu:{index}", details.get("device_name", "GPU"), None)


def devices(cores: int) -> Iterator[TensorFlowDevice]:
    """Yield the CPU, on so many threads as a run's training has, and each GPU."""
    tf.config.threading.set_intra_op_parallelism_threads(cores)
    tf.config.threading.set_inter_op_parallelism_threads(2)
    found = tf.config.list_physical_devices("GPU")
    for gpu in found:
        tf.config.experimental.set_memory_growth(gpu, True)
    yield TensorFlowDevice("cpu:0", cpu_model(), cores)
    for index, gpu in enumerate(found):
        yield _gpu(gpu, index)
