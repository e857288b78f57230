"""The peers of ``gpu.py``: ResNet-50 in plain PyTorch and Keras, and the energy of training."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from gpu_report import EAGER, TENSORFLOW
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch_resnet50 import resnet50

from aiperf_hpc.system.accelerators.nvidia import nvml
from aiperf_hpc.system.tools import AbsentError

MODE = "max-autotune-no-cudagraphs"


def network(classes: int) -> nn.Module:
    """Return the engine's ResNet-50: torchvision's, or one like it where that is not installed.

    torchvision has the stride of a stage in the 3x3 convolution of its first block; the engine's
    network has it in the 1x1 before that, which is 6 % fewer operations.
    """
    if importlib.util.find_spec("torchvision") is None:
        return resnet50(classes)
    from torchvision.models import resnet50 as theirs

    model: nn.Module = theirs(num_classes=classes)
    for stage in (model.layer2, model.layer3, model.layer4):
        first: Any = stage[0]  # type: ignore[index,unused-ignore]
        first.conv1.stride, first.conv2.stride = first.conv2.stride, first.conv1.stride
    return model


def _compiled(model: nn.Module, **options: Any) -> Any:  # noqa: ANN401
    on_cpu = next(model.parameters()).device.type == "cpu"  # A dry run compiles nothing.
    return torch.compile(model, backend="eager") if on_cpu else torch.compile(model, **options)


def _tuned(model: nn.Module) -> Any:  # noqa: ANN401
    """Return what timing chooses the kernels of; convolutions stay cuDNN's, as the engine's are."""
    options = torch._inductor.list_mode_options(MODE)
    return _compiled(model, options={**options, "max_autotune_conv_backends": "ATEN"})


PEERS: dict[str, Callable[[nn.Module], Any]] = {
    EAGER: lambda model: model,
    "torch.compile": _compiled,
    MODE: _tuned,
}
"""What makes each peer of the network."""


def peer(name: str, images: Tensor, labels: Tensor, classes: int) -> Callable[[], None]:
    """Return a peer's training step: channels-last, bf16 by autocast, a fused SGD.

    Args:
        name: which of ``PEERS``.
        images: (samples, height, width, channels), on the device.
        labels: (samples,).
        classes: how many there are.
    """
    device = images.device.type
    model = network(classes).to(device, memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, fused=True)
    forward, given = PEERS[name](model), images.permute(0, 3, 1, 2)
    torch.backends.cudnn.benchmark = True

    def step() -> None:
        optimizer.zero_grad()
        with torch.autocast(device, torch.bfloat16):
            loss = cross_entropy(forward(given).float(), labels)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()

    return step


def joules(device: str) -> float | None:
    """Return the energy that the GPU has used so far, by NVML; None without a counter."""
    if device != "cuda":
        return None
    try:
        with nvml() as library:
            uuid = f"GPU-{torch.cuda.get_device_properties(0).uuid}"
            try:
                handle = library.nvmlDeviceGetHandleByUUID(uuid)
                return float(library.nvmlDeviceGetTotalEnergyConsumption(handle)) / 1000.0
            except library.NVMLError as error:
                raise AbsentError(f"NVML: {error}") from None
    except AbsentError as error:
        print(f"no energy: {error}", file=sys.stderr)
        return None


def tensorflow_rate(case: tuple[int, int, str, int], cores: int) -> float | None:
    """Return images/s of the engine ``tensorflow``; None where TensorFlow is not installed.

    Args:
        case: image size, batch, precision and number of steps.
        cores: threads that it may use.
    """
    if importlib.util.find_spec("tensorflow") is None:
        return None
    command = [sys.executable, str(Path(__file__).with_name("training.py")), "--run", TENSORFLOW]
    command += [json.dumps(case), "--cores", str(cores)]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True)
    seconds = json.loads(done.stdout.splitlines()[-1])
    return case[1] / float(sorted(seconds)[len(seconds) // 2])
