"""Engines, which train one graph on one accelerator."""

from __future__ import annotations

import importlib
import os
from types import ModuleType
from typing import cast

from aiperf_hpc.clock import SYSTEM, Clock
from aiperf_hpc.config import EngineConfig, RunConfig
from aiperf_hpc.errors import EngineError
from aiperf_hpc.extras import ENGINES
from aiperf_hpc.host.machine import VisibleDevices, devices_seen
from aiperf_hpc.objective import CLASSIFICATION, Objective
from aiperf_hpc.replica.engines.base import RankEngine
from aiperf_hpc.replica.engines.simulated import SimulatedEngine
from aiperf_hpc.workloads.registry import workload_of


def _module(name: str) -> ModuleType:
    """Import the module of an engine, which imports its framework."""
    return importlib.import_module(f"aiperf_hpc.replica.engines.{name}.engine")


def load_engine(
    name: str,
    cores: int,
    *,
    settings: EngineConfig | None = None,
    clock: Clock = SYSTEM,
    device: int = 0,
    objective: Objective = CLASSIFICATION,
    ranks: int = 1,
) -> RankEngine:
    """Import an engine's framework, on ``cores`` threads, and return the engine.

    Args:
        name: name of the engine.
        cores: number of logical CPUs.
        settings: engine settings of the configuration; defaults if not given.
        clock: clock of a simulated engine.
        device: index of this rank's accelerator on the host.
        objective: loss and metric of the networks.
        ranks: number of ranks that train one network together.

    Raises:
        EngineError: the framework is not installed (the message names the extra), or there is no
            device of the requested kind.
    """
    settings = settings or EngineConfig()
    if name == SimulatedEngine.name:
        return SimulatedEngine(settings.simulation, clock)
    try:
        module = _module(name)
    except ModuleNotFoundError as error:
        raise EngineError(
            f"engine '{name}' needs the package '{error.name}': {ENGINES[name].remedy}"
        ) from None
    return cast("RankEngine", module.make_engine(cores, device, settings, objective, ranks))


def seen_devices(config: RunConfig) -> VisibleDevices | None:
    """Return the accelerators of this machine visible to a run's engine, or None if there are none.

    Raises:
        EngineError: the framework is missing, or there is no device of the requested kind.
    """
    settings = config.engine
    if settings.name == SimulatedEngine.name:
        vendor, count = "NVIDIA", settings.simulation.accelerators
    else:
        engine_for(config, len(os.sched_getaffinity(0)))  # Prints the error.
        module = _module(settings.name)
        vendor, count = module.accelerators_here(settings)
    return devices_seen(vendor, count, os.environ) if count else None


def engine_for(
    config: RunConfig, cores: int, *, clock: Clock = SYSTEM, device: int = 0
) -> RankEngine:
    """Return the engine of a run, as ``load_engine`` does.

    Raises:
        EngineError: as ``load_engine``, or the engine does not support the run's precision.
    """
    settings = config.engine
    keeps = config.training.keep_predictions
    objective = workload_of(config).objective.model_copy(update={"predictions": keeps})
    engine = load_engine(
        settings.name,
        cores,
        settings=settings,
        clock=clock,
        device=device,
        objective=objective,
        ranks=config.replica.ranks,
    )
    if config.training.precision == "fp16" and engine.name == "torch" and not engine.accelerators:
        raise EngineError(
            "training.precision=fp16 needs an accelerator, and PyTorch sees none here; use bf16"
        )
    return engine
