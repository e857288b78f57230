"""PyTorch's errors as ours, one line each."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from aiperf_hpc.errors import AIPerfError, EngineError, OutOfMemoryError


@contextmanager
def named_errors() -> Iterator[None]:
    """Raise what PyTorch raises within the block as an EngineError or an OutOfMemoryError."""
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        raise _named(_cause(error)) from error


def _cause(error: Exception) -> Exception:
    """Return what a compiler raised, of which PyTorch's own error says no more than that it did."""
    inner = getattr(error, "inner_exception", None)
    return inner if isinstance(inner, Exception) else error


def _named(error: Exception) -> AIPerfError:
    if isinstance(error, MemoryError):
        return OutOfMemoryError("the host has no memory left")
    told = next((line.strip() for line in str(error).splitlines() if line.strip()), repr(error))
    full = "not enough memory" in told or "can't allocate memory" in told
    if full or isinstance(error, torch.OutOfMemoryError):
        return OutOfMemoryError(told)
    return EngineError(f"PyTorch: {told}")
