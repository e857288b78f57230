"""Engines: what trains one graph on one accelerator."""

from __future__ import annotations

import importlib
from typing import cast

from aiperf_hpc.errors import EngineError
from aiperf_hpc.replica.engines.base import Engine

MODULES = {"tensorflow": "aiperf_hpc.replica.engines.tensorflow_engine"}
EXTRAS = {"tensorflow": "cpu] or [cuda"}


def load_engine(name: str, cores: int) -> Engine:
    """Import an engine's framework, on ``cores`` threads, and return the engine.

    Raises:
        EngineError: the framework is not installed; the message names the extra.
    """
    try:
        module = importlib.import_module(MODULES[name])
    except ModuleNotFoundError as error:
        raise EngineError(
            f"engine '{name}' needs the package '{error.name}'; install the extra "
            f"aiperf-hpc[{EXTRAS[name]}]"
        ) from None
    return cast("Engine", module.make_engine(cores))
