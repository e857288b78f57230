"""The checksum of weights, computed where they are; ``engines.checksum`` says what it is."""

from __future__ import annotations

import torch
from torch import Tensor

from aiperf_hpc.replica.engines.checksum import COLUMNS, PendingChecksum


def begin_checksum(values: Tensor) -> PendingChecksum:
    """Put a checksum of flat float32 values into the device's queue; return what waits for it.

    Nothing waits before that, and one number is copied to the host.
    """
    total = summed(values)
    if total.device.type == "cpu":
        found = int(total)
        return lambda: found
    module = torch.get_device_module(total.device.type)
    there = torch.empty((), dtype=total.dtype).pin_memory()  # Or the copy would wait.
    there.copy_(total, non_blocking=True)
    copied = module.Event(blocking=True)
    copied.record(module.current_stream(total.device))

    def wait() -> int:
        copied.synchronize()
        return int(there)

    return wait


def summed(values: Tensor) -> Tensor:
    """Return the checksum, int64 (), on the device of the values; int64 wraps round there.

    By lines and columns it is two sums over memory, without a word more of it.
    """
    pairs = values.numel() // 2
    words = values[: 2 * pairs].view(torch.int64)
    lines = pairs // COLUMNS
    body = words[: lines * COLUMNS].view(lines, COLUMNS)
    return (
        _weighted(body.sum(1), 1, 2 * COLUMNS)
        + _weighted(body.sum(0), 0, 2)
        + _weighted(_rest(values, words[lines * COLUMNS :]), 2 * lines * COLUMNS + 1, 2)
    )


def _rest(values: Tensor, words: Tensor) -> Tensor:
    """Return the words behind the last line, with that of a value that has no neighbour."""
    if values.numel() % 2 == 0:
        return words
    alone = values[-1:].view(torch.int32).to(torch.int64) & 0xFFFF_FFFF
    return torch.cat((words, alone))


def _weighted(words: Tensor, first: int, step: int) -> Tensor:
    """Return the sum of words times first, first + step, ..."""
    factors = torch.arange(len(words), device=words.device) * step + first
    return (words * factors).sum()
