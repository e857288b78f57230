"""The ``torch`` engine: native PyTorch on CPUs, NVIDIA and AMD GPUs, and Ascend NPUs."""

from __future__ import annotations

import torch
from torch import Tensor
from torch._functorch import config as functorch_config

from aiperf_hpc.config import EngineConfig
from aiperf_hpc.errors import EngineError
from aiperf_hpc.objective import Objective
from aiperf_hpc.replica.engines.base import NetworkState
from aiperf_hpc.replica.engines.torch.compilation import (
    CompileRequest,
    CompilerProcess,
    check_compiler,
)
from aiperf_hpc.replica.engines.torch.device import (
    allow_tf32,
    choose_device,
    compute_on,
    keep_freed_memory,
)
from aiperf_hpc.replica.engines.torch.named_errors import named_errors
from aiperf_hpc.replica.engines.torch.network import Placement, TorchNetwork

COMPILER_BYTES = 2**30
"""Maximum bytes of accelerator memory used by the context of the compiling process."""
TUNING_BYTES = 2 * 2**30
"""Bytes of workspace for cuDNN while it times its kernels for a shape. Some kernels need a few GiB.
PyTorch skips kernels without enough workspace, and the fastest may be among them."""


class TorchEngine:
    """The ``torch`` engine; see ``engines.base.RankEngine``."""

    name = "torch"

    def __init__(
        self, placement: Placement, objective: Objective, compiler: CompilerProcess | None = None
    ) -> None:
        self.versions = {"torch": str(torch.__version__)}
        self.objective = objective
        self.warms_alone = placement.tuned
        self._placement = placement
        self._device = placement.device
        self._compiler = compiler

    @property
    def accelerators(self) -> tuple[str, ...]:
        if self._device.type == "cpu":
            return ()
        return (torch.get_device_module(self._device.type).get_device_name(self._device),)

    @property
    def memory_bytes(self) -> int | None:
        if self._device.type == "cpu":
            return None
        free, _ = torch.get_device_module(self._device.type).mem_get_info(self._device)
        compiling = COMPILER_BYTES if self._compiler is not None else 0
        return int(free) - compiling - (TUNING_BYTES if self._placement.tuned else 0)

    def compile_ahead(self, state: NetworkState) -> str:
        used = state.hyperparameters
        if self._compiler is None or used.batch_size <= 1:  # ``warm`` compiles for none either.
            return ""
        return self._compiler.compile(
            CompileRequest(
                graph=state.graph.to_json(), precision=used.precision, samples=used.batch_size
            )
        )

    def build(self, state: NetworkState) -> TorchNetwork:
        used = state.hyperparameters
        if used.precision == "fp16" and self._device.type == "cpu":
            raise EngineError(
                "training.precision=fp16 needs an accelerator: PyTorch does not train in it on "
                "CPUs; use bf16"
            )
        compute_on(self._device)  # Most networks are not built by the training thread.
        network = TorchNetwork(state, self.objective, self._placement)
        if self.warms_alone and self._placement.compiled and used.batch_size > 1:
            # This reduces the work that must run exclusively.
            network.compile(used.batch_size)
        return network

    @named_errors()
    def probe(self) -> Tensor:
        return torch.ones(1, device=self._device)


def accelerators_here(settings: EngineConfig) -> tuple[str, int]:
    """Return the vendor and the number of the visible accelerators.

    Raises:
        EngineError: there is no device of the requested kind.
    """
    device = choose_device(settings.device, 0)
    if device.type == "cpu":
        return "", 0
    vendor = "Huawei" if device.type == "npu" else "AMD" if torch.version.hip else "NVIDIA"
    return vendor, torch.get_device_module(device.type).device_count()


def make_engine(
    cores: int, device: int, settings: EngineConfig, objective: Objective, ranks: int
) -> TorchEngine:
    """Return the engine.

    Args:
        cores: number of threads, if the engine computes on CPUs.
        device: index of the accelerator on the host, if there is any.
        settings: kind of device, and whether to compile.
        objective: loss and metric of the engine's networks.
        ranks: number of ranks that train one network together.

    Raises:
        EngineError: there is no device of the requested kind, or the compiler does not work on this
            machine.
    """
    placement = placement_of(cores, device, settings, ranks)
    if placement.compiled and placement.device.type == "cuda":
        check_compiler(placement.device)
    compiler = CompilerProcess(cores, device, settings, ranks) if placement.compiled else None
    return TorchEngine(placement, objective, compiler)


def placement_of(cores: int, device: int, settings: EngineConfig, ranks: int) -> Placement:
    """Select the device and mode of computation and configure the process; see ``make_engine``."""
    torch.set_num_threads(cores)
    chosen = choose_device(settings.device, device)
    if chosen.type == "cpu":
        keep_freed_memory()
    if chosen.type == "cuda":
        allow_tf32(settings.tf32)
    compiled = settings.compile == "always" or (
        settings.compile == "auto" and chosen.type == "cuda"
    )
    if compiled:
        # Compiles both passes at once, in either process. Otherwise, the first execution of a
        # backward pass compiles it. This setting is part of the cache key of compiled code.
        functorch_config.force_non_lazy_backward_lowering = True
    return Placement(chosen, cores, compiled, tuned=chosen.type == "cuda", split=ranks > 1)
