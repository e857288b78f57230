"""The collective ``horovod``: its all-reduce of TensorFlow's tensors.

Its optimizer and callbacks are not used; with Keras 3 they fail or have no effect.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

# This package has its own timeouts.
os.environ.setdefault("HOROVOD_STALL_CHECK_DISABLE", "1")

# Before Horovod, which would import TensorFlow with Keras.
from aiperf_hpc.replica.tensorflow_import import tf  # isort: split

import horovod.tensorflow as hvd
import numpy as np
from horovod.common.exceptions import HorovodInternalError

from aiperf_hpc.replica.engines.base import first_line
from aiperf_hpc.replica.parallel import collectives as base


class HorovodCollective(base.Collective):
    """Collective over Horovod's world."""

    name = "horovod"

    def __init__(self) -> None:
        hvd.init()
        self.copies = base.Copies()
        self.rank = hvd.rank()
        self.size = hvd.size()
        self.local_rank = hvd.local_rank()
        self.local_size = hvd.local_size()

    def start_allreduce_sum(self, buffer: base.Buffer) -> base.PendingSum:
        """Defer the sum until it is waited for, because Horovod's operation blocks.

        The name is equal in every step, so that Horovod's response cache applies.
        """
        name = f"bucket.{buffer.dtype.name}.{buffer.shape[0]}"
        return lambda: _answered(lambda: hvd.allreduce(buffer, op=hvd.Sum, name=name))

    def allreduce_sum(self, flat: base.Array) -> None:
        """Sum over all ranks in place."""
        name = f"sum.{flat.dtype}.{flat.size}"
        flat[:] = _answered(lambda: hvd.allreduce(tf.constant(flat), op=hvd.Sum, name=name))

    def barrier(self) -> None:
        """Wait for all ranks by an all-reduce; Horovod's TensorFlow API has no barrier."""
        self.allreduce_sum(np.zeros(1))

    def broadcast(self, array: base.Array) -> None:
        """Take rank 0's array."""
        name = f"broadcast.{array.dtype}.{array.size}"
        array[:] = _answered(lambda: hvd.broadcast(tf.constant(array), 0, name=name))

    command = broadcast
    """Broadcast as usual: Horovod's thread sleeps between its cycles."""

    def gather(self, row: base.Array) -> base.Array:
        """Return everybody's rows."""
        name = f"gather.{row.dtype}.{row.size}"
        rows: base.Array = _answered(
            lambda: hvd.allgather(tf.constant(row[None]), name=name)
        ).numpy()
        return rows

    def abort(self, status: int) -> None:
        """End this process; the launcher ends the others."""
        os._exit(status)

    def close(self) -> None:
        """Leave the others."""
        hvd.shutdown()


def _answered(call: Callable[[], Any]) -> Any:  # noqa: ANN401 -- a tensor
    """Call, and convert Horovod's error for a lost rank to RankLostError."""
    try:
        return call()
    except (HorovodInternalError, tf.errors.OpError) as error:
        raise base.RankLostError(first_line(error)) from error
