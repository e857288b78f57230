"""What trains a network, and the world that the simulated engine makes up."""

from __future__ import annotations

from importlib import util
from typing import Literal

from pydantic import Field, field_validator, model_validator

from aiperf_hpc.config.section import Fraction, Section


class SimulationConfig(Section):
    """The machine and the world that the engine ``simulated`` makes up."""

    operations_per_second: float = Field(
        1e12, gt=0.0, description="counted operations that a replica executes a second"
    )
    step_seconds: float = Field(0.0, ge=0.0, le=3600.0, description="a step takes besides them")
    build_seconds: float = Field(2.0, ge=0.0, le=3600.0, description="building a network")
    peak_accuracy: Fraction = Field(0.8, description="about what the largest networks reach")
    rise_epochs: float = Field(
        6.0, gt=0.0, le=1e6, description="after which 63 % of the way to it is done"
    )
    noise: float = Field(0.003, ge=0.0, le=1.0, description="deviation of a measured accuracy")
    seed: int = Field(0, ge=0, lt=2**32, description="of the world: what each network is worth")
    accelerators: int = Field(0, ge=0, le=1024, description="that each node is taken to have")
    # What follows is for a virtual clock alone (``aiperf simulate``).
    dispatches_per_second: float = Field(
        200.0, gt=0.0, description="replicas that the scheduler starts a second"
    )
    sync_seconds: float = Field(
        0.002, ge=0.0, le=60.0, description="a synced write to the shared file system takes"
    )
    syncs_per_second: float = Field(
        10_000.0, gt=0.0, description="such writes that the file server carries out a second"
    )
    charge_cpu: bool = Field(
        True, description="whether code takes the time that it really takes on this machine"
    )


def is_installed(package: str) -> bool:
    """Return whether a package could be imported; it is not."""
    found = util.find_spec(package)
    # A folder of that name in the working directory is found too, but has no code.
    return found is not None and found.origin is not None


class EngineConfig(Section):
    """What trains a network."""

    name: Literal["tensorflow", "torch", "simulated"] = Field(
        "tensorflow",
        description="auto: torch if it is installed, else tensorflow; simulated: trains nothing, "
        "for trying things out",
    )
    device: Literal["auto", "cpu", "cuda", "npu"] = Field(
        "auto",
        description="auto: an accelerator if there is one; cpu: leave it idle; cuda (ROCm too) and "
        "npu: torch only",
    )
    compile: Literal["auto", "never", "always"] = Field(
        "auto", description="torch only; auto: on cuda; elsewhere it costs more than it gives"
    )
    tf32: bool = Field(
        False,
        description="compute convolutions and matrix products of fp32 in TF32, on NVIDIA GPUs; "
        "torch and tensorflow",
    )
    simulation: SimulationConfig = SimulationConfig()
    memory_gib: float | None = Field(
        None, gt=0.0, description="memory a replica may use; the machine's share when not given"
    )
    on_memory: Literal["shrink", "refuse"] = Field(
        "shrink", description="what to do with a batch size that is estimated not to fit"
    )

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
        made_up = self.name == "simulated" and self.simulation.accelerators == 0
        return self.device != "cpu" and not made_up
