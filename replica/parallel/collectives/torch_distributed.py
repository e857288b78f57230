"""The collective ``torch``: torch.distributed with gloo on CPUs, and NCCL, RCCL or HCCL."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable
from functools import partial
from typing import TypeVar

import numpy as np
import torch
import torch.distributed as dist

from aiperf_hpc.errors import EngineError
from aiperf_hpc.host.schedulers import SCHEDULERS, current, task
from aiperf_hpc.replica.engines.base import first_line
from aiperf_hpc.replica.parallel import collectives as base

DEVICE_BACKENDS = {"cuda": "nccl", "npu": "hccl"}
"""Backend of each device type; AMD's devices are called cuda too, and use RCCL."""
T = TypeVar("T")
FIRST_PORT, PORTS = 20_000, 20_000
"""Rendezvous ports of a scheduler's job, chosen by its number: first port and count."""


class TorchCollective(base.Collective):
    """Collective over torch.distributed's world."""

    name = "torch"

    def __init__(self) -> None:
        """Rendezvous with the other ranks at the launcher's address.

        Raises:
            EngineError: there is no address, or the rendezvous failed.
        """
        where = meeting_point()
        self.rank = int(where["RANK"])
        self.size = int(where["WORLD_SIZE"])
        os.environ.update(where)
        try:
            dist.init_process_group("gloo")
        except (RuntimeError, ValueError) as error:
            at = f"{where['MASTER_ADDR']}:{where['MASTER_PORT']}"
            raise EngineError(
                f"collective 'torch': rank {self.rank} on {socket.gethostname()} cannot reach the "
                f"other ranks at {at}: {first_line(error)}; set another address with MASTER_ADDR "
                "and MASTER_PORT"
            ) from None
        hosts: list[str] = [""] * self.size
        dist.all_gather_object(hosts, socket.gethostname())
        self.local_rank = hosts[: self.rank].count(hosts[self.rank])
        self.local_size = hosts.count(hosts[self.rank])
        self._on_devices: dict[str, dist.ProcessGroup] = {}
        self._memory = base.BufferPool()
        self.copies = base.Copies()

    def start_allreduce_sum(self, buffer: base.Buffer) -> base.PendingSum:
        """Sum a tensor in place on its device; other arrays are copied first."""
        if isinstance(buffer, torch.Tensor):
            group = self._group(buffer.device.type)
            return partial(self._finish, _started(buffer, group), buffer)
        begun = time.perf_counter()
        given = base.on_host(buffer)
        total = self._memory.take(given)
        total[:] = given
        self.copies.seconds += time.perf_counter() - begun
        return partial(self._finish, _started(torch.from_numpy(total), None), total, pooled=True)

    def _finish(self, work: dist.Work, total: base.Buffer, *, pooled: bool = False) -> base.Buffer:
        _answered(work.wait)
        if pooled:
            self._memory.release()
        return total

    def _group(self, device: str) -> dist.ProcessGroup | None:
        """Return the process group of a device type; a collective call."""
        backend = DEVICE_BACKENDS.get(device)
        if backend is None:
            return None
        if device not in self._on_devices:
            self._on_devices[device] = dist.new_group(backend=backend)
        return self._on_devices[device]

    def allreduce_sum(self, flat: base.Array) -> None:
        """Sum in place over all ranks."""
        _answered(lambda: dist.all_reduce(torch.from_numpy(flat)))

    def barrier(self) -> None:
        """Wait for all ranks."""
        _answered(dist.barrier)

    def broadcast(self, array: base.Array) -> None:
        """Take rank 0's array."""
        _answered(lambda: dist.broadcast(torch.from_numpy(array), 0))

    command = broadcast
    """Broadcast as usual: gloo sleeps while it waits."""

    def gather(self, row: base.Array) -> base.Array:
        """Return everybody's rows."""
        rows = np.empty((self.size, *row.shape), row.dtype)
        given = torch.from_numpy(np.ascontiguousarray(row))
        _answered(lambda: dist.all_gather(list(torch.from_numpy(rows).unbind()), given))
        return rows

    def abort(self, status: int) -> None:
        """End this process; the launcher ends the others."""
        os._exit(status)

    def close(self) -> None:
        """Leave the group."""
        dist.destroy_process_group()


def _started(tensor: torch.Tensor, group: dist.ProcessGroup | None) -> dist.Work:
    work = _answered(lambda: dist.all_reduce(tensor, group=group, async_op=True))
    assert isinstance(work, dist.Work)  # noqa: S101 -- for the type checker
    return work


def meeting_point() -> dict[str, str]:
    """Return rank, size and rendezvous address from the variables of torchrun or the scheduler.

    Raises:
        EngineError: neither is set.
    """
    environment = os.environ
    names = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
    if all(name in environment for name in names):
        return {name: environment[name] for name in names}
    try:
        place = task()
    except KeyError as error:
        title = (current() or SCHEDULERS[0]).title
        raise EngineError(
            f"collective 'torch': neither {names[0]} nor {title}'s {error.args[0]} is set; ranks "
            "are started by `aiperf start`, by srun or by torchrun"
        ) from None
    port = FIRST_PORT + (place.job + place.step) % PORTS
    return {
        "RANK": str(place.rank),
        "WORLD_SIZE": str(place.ranks),
        "MASTER_ADDR": environment.get("MASTER_ADDR", place.first_address),
        "MASTER_PORT": environment.get("MASTER_PORT", str(port)),
    }


def _answered(call: Callable[[], T]) -> T:
    """Call, and convert PyTorch's error for a lost rank to RankLostError."""
    try:
        return call()
    except RuntimeError as error:
        raise base.RankLostError(first_line(error)) from error
