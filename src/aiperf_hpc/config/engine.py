"""The engine section of the configuration, with the simulated engine's."""

from __future__ import annotations

from importlib import util
from typing import Literal

from pydantic import Field, field_validator, model_validator

from aiperf_hpc.config.section import Fraction, Section


class SimulationConfig(Section):
    """Simulated machine and training curves of the engine ``simulated``."""

    operations_per_second: float = Field(1e12, gt=0.0)
    """Counted operations that a simulated replica executes per second."""
    step_seconds: float = Field(0.0, ge=0.0, le=3600.0)
    """Fixed overhead of a step in seconds."""
    build_seconds: float = Field(2.0, ge=0.0, le=3600.0)
    """Time in seconds to build a network."""
    peak_accuracy: Fraction = 0.8
    """Approximate accuracy of the largest networks."""
    rise_epochs: float = Field(6.0, gt=0.0, le=1e6)
    """Time constant of the training curve in epochs (63 % of the final accuracy)."""
    noise: float = Field(0.003, ge=0.0, le=1.0)
    """Standard deviation of a measured accuracy."""
    seed: int = Field(0, ge=0, lt=2**32)
    """Random seed of the accuracies of simulated networks."""
    accelerators: int = Field(0, ge=0, le=1024)
    """Number of simulated accelerators per node."""
    # The settings below apply to ``aiperf simulate`` only.
    dispatches_per_second: float = Field(200.0, gt=0.0)
    """Replicas that the simulated scheduler starts per second."""
    sync_seconds: float = Field(0.002, ge=0.0, le=60.0)
    """Latency in seconds of a synchronous write to the shared file system."""
    syncs_per_second: float = Field(10_000.0, gt=0.0)
    """Synchronous writes that the file server completes per second."""
    charge_cpu: bool = True
    """Advance the virtual clock by the CPU time that the code uses on this machine."""


def is_installed(package: str) -> bool:
    """Return whether a package can be imported, without importing it."""
    found = util.find_spec(package)
    # A folder of that name in the working directory is found too, but has no code.
    return found is not None and found.origin is not None


class EngineConfig(Section):
    """Framework, device and memory that training uses."""

    name: Literal["tensorflow", "torch", "simulated"] = "tensorflow"
    """Framework used for training. auto: torch if it is installed, else tensorflow. simulated: no
    training, for dry runs."""
    device: Literal["auto", "cpu", "cuda", "npu"] = "auto"
    """Device used for training. auto: an accelerator if available. cuda (also for ROCm) and npu
    require engine torch."""
    compile: Literal["auto", "never", "always"] = "auto"
    """Use torch.compile (engine torch). auto: only on cuda, because compilation costs more than it
    saves on other devices."""
    tf32: bool = False
    """Compute fp32 convolutions and matrix products in TF32 on NVIDIA GPUs."""
    simulation: SimulationConfig = SimulationConfig()
    memory_limit_gib: float | None = Field(None, gt=0.0)
    """Memory in GiB that a rank may use; by default, the accelerator's memory or, on CPUs, the
    rank's share of the host's memory."""
    on_out_of_memory: Literal["reduce_batch", "fail"] = "reduce_batch"
    """What to do if a batch is estimated not to fit in memory: reduce the batch size, or fail
    the trial."""

    @field_validator("name", mode="before")
    @classmethod
    def _installed(cls, name: object) -> object:
        """Resolve ``auto`` when a configuration is read, so that a run records its engine."""
        if name != "auto":
            return name
        return "torch" if is_installed("torch") else "tensorflow"

    @model_validator(mode="after")
    def _means_something(self) -> EngineConfig:
        named = self.device in ("cuda", "npu") or self.compile != "auto"
        if self.name != "torch" and named:
            raise ValueError(
                "device and compile are for the engine torch; leave them at auto, or device=cpu"
            )
        return self

    @property
    def uses_accelerators(self) -> bool:
        """Whether it trains on accelerators where there are any."""
        simulated = self.name == "simulated" and self.simulation.accelerators == 0
        return self.device != "cpu" and not simulated
