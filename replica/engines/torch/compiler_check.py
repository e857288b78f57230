"""Whether ``torch.compile`` has on this machine what it needs, before anything is trained."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from aiperf_hpc.errors import EngineError
from aiperf_hpc.replica.engines.torch.named_errors import named_errors


def check_compiler(device: torch.device, backend: str | Callable[..., Any] = "inductor") -> None:
    """Compile a sum of one number, and execute it.

    On accelerators what is compiled is launched by code that a C compiler makes here, which images
    of containers often lack; each trial would fail, one after the other.

    Raises:
        EngineError: that fails.
    """
    try:
        with named_errors():
            torch.compile(_one_more, backend=backend)(torch.zeros(1, device=device))
    except EngineError as error:
        raise EngineError(
            f"{error}; torch.compile needs Triton, a C compiler (gcc) and Python's headers on each "
            "node, or set engine.compile=never"
        ) from None


def _one_more(x: Tensor) -> Tensor:
    return x + 1
