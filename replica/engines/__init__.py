"""Engines: what trains one graph on one accelerator."""

from __future__ import annotations

import importlib
from typing import cast

from aiperf_hpc.clock import SYSTEM, Clock
from aiperf_hpc.config import EngineConfig
from aiperf_hpc.errors import EngineError
from aiperf_hpc.replica.engines.base import RankEngine
from aiperf_hpc.replica.engines.simulated import SimulatedEngine

MODULES = {
    "tensorflow": "aiperf_hpc.replica.engines.tensorflow_engine",
    "torch": "aiperf_hpc.replica.engines.torch_engine",
}
EXTRAS = {"tensorflow": "cpu] or [cuda", "torch": "torch"}


def load_engine(
    name: str,
    cores: int,
    *,
    settings: EngineConfig | None = None,
    clock: Clock = SYSTEM,
    device: int = 0,
) -> RankEngine:
    """Import an engine's framework, on ``cores`` threads, and return the engine.

    Args:
        name: which.
        cores: logical CPUs.
        settings: what the configuration says of engines; its defaults when not given.
        clock: by which its time passes.
        device: which of the host's accelerators is this rank's.

    Raises:
        EngineError: the framework is not installed; the message names the extra. Or there is no
            device of the kind that is asked for.
    """
    settings = settings or EngineConfig()
    if name == SimulatedEngine.name:
        return SimulatedEngine(settings.simulation, clock)
    try:
        module = importlib.import_module(MODULES[name])
    except ModuleNotFoundError as error:
        raise EngineError(
            f"engine '{name}' needs the package '{error.name}'; install the extra "
            f"aiperf-hpc[{EXTRAS[name]}]"
        ) from None
    return cast("RankEngine", module.make_engine(cores, device, settings))
