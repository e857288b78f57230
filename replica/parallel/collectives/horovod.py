"""Ranks that are joined by Horovod: its plain reductions of TensorFlow's tensors.

Not by its optimizer or callbacks, which do nothing, or fail, with Keras 3.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

# This package has a time limit of its own for ranks that do not answer.
os.environ.setdefault("HOROVOD_STALL_CHECK_DISABLE", "1")

# Before Horovod, which imports it too, as it comes.
from aiperf_hpc.replica.tensorflow_import import tf  # isort: split

import horovod.tensorflow as hvd
import numpy as np
from horovod.common.exceptions import HorovodInternalError

from aiperf_hpc.replica.engines.base import first_line
from aiperf_hpc.replica.parallel.collectives.base import (
    Array,
    Buffer,
    Copies,
    PendingSum,
    RankLostError,
    Unlimited,
)


class HorovodCollective(Unlimited):
    """The ranks of Horovod's world."""

    name = "horovod"

    def __init__(self) -> None:
        hvd.init()
        self.copies = Copies()
        self.rank = hvd.rank()
        self.size = hvd.size()
        self.local_rank = hvd.local_rank()
        self.local_size = hvd.local_size()

    def start_allreduce_sum(self, buffer: Buffer) -> PendingSum:
        """Sum when it is waited for: as a single operation it would block the start.

        The name is the same for every step, so that Horovod remembers it.
        """
        name = f"bucket.{buffer.dtype.name}.{buffer.shape[0]}"
        return lambda: _answered(lambda: hvd.allreduce(buffer, op=hvd.Sum, name=name))

    def allreduce_sum(self, flat: Array) -> None:
        """Take the sum over all ranks."""
        name = f"sum.{flat.dtype}.{flat.size}"
        flat[:] = _answered(lambda: hvd.allreduce(tf.constant(flat), op=hvd.Sum, name=name))

    def barrier(self) -> None:
        """Wait for all ranks by a sum: Horovod's TensorFlow part has no barrier."""
        self.allreduce_sum(np.zeros(1))

    def broadcast(self, array: Array) -> None:
        """Take rank 0's array."""
        name = f"broadcast.{array.dtype}.{array.size}"
        array[:] = _answered(lambda: hvd.broadcast(tf.constant(array), 0, name=name))

    command = broadcast
    """A broadcast as any other: Horovod's thread looks once in a cycle, and sleeps between."""

    def gather(self, row: Array) -> Array:
        """Return everybody's rows."""
        name = f"gather.{row.dtype}.{row.size}"
        rows: Array = _answered(lambda: hvd.allgather(tf.constant(row[None]), name=name)).numpy()
        return rows

    def abort(self, status: int) -> None:
        """End this process: whoever started it ends the others."""
        os._exit(status)

    def close(self) -> None:
        """Leave the others."""
        hvd.shutdown()


def _answered(call: Callable[[], Any]) -> Any:  # noqa: ANN401 -- a tensor
    """Call, and turn Horovod's error for a lost rank into RankLostError."""
    try:
        return call()
    except (HorovodInternalError, tf.errors.OpError) as error:
        raise RankLostError(first_line(error)) from error
