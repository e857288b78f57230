"""A framework's own profiler: what every engine's ``profiler`` module gives."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Literal, NamedTuple, cast

from aiperf_hpc.errors import EngineError
from aiperf_hpc.run.step_profile import KernelTime

MODULES = {
    "tensorflow": "aiperf_hpc.replica.engines.tensorflow.profiler",
    "torch": "aiperf_hpc.replica.engines.torch.profiler",
}


class Recording(NamedTuple):
    """What a profiler recorded of some work."""

    kernels: tuple[KernelTime, ...]
    total_seconds: float
    """The profiler's own total, not a sum over ``kernels``."""
    timed: Literal["operators", "kernels"]
    trace: Path
    """The profiler's own file."""


Record = Callable[[Callable[[], None], Path], Recording]
"""Does some work under the profiler, whose file is to be in a folder."""


def load_profiler(engine: str) -> Record:
    """Return the profiler of an engine, which is loaded.

    Raises:
        EngineError: it has none.
    """
    if engine not in MODULES:
        raise EngineError(
            f"engine '{engine}' computes nothing that could be profiled; "
            "use --engine torch or --engine tensorflow"
        )
    return cast("Record", importlib.import_module(MODULES[engine]).record)


def longest_first(kernels: Iterable[KernelTime]) -> tuple[KernelTime, ...]:
    """Return kernels in the order of their time, then of their names."""
    return tuple(sorted(kernels, key=lambda kernel: (-kernel.seconds, kernel.name)))
