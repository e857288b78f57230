"""On a CPU activations overwrite the gradient that they receive, unless something else reads it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.support.engine_steps import relative_error
from torch import Tensor, fx, nn

from aiperf_hpc.graph import Graph, Node, layers
from aiperf_hpc.morphism.weights.weight_file import initial_weights
from aiperf_hpc.replica.engines.torch.cpu_kernels import activate
from aiperf_hpc.replica.engines.torch.device import OVERCOMMIT
from aiperf_hpc.replica.engines.torch.graph import build_module
from aiperf_hpc.replica.engines.torch.layers import (
    ModuleCode,
    copy_strided,
    mean_of_pixels,
    strided,
)


def gradient_through(activation: object, x: Tensor, slope: Tensor) -> tuple[Tensor, Tensor]:
    """Return what an activation gives, and the gradient of what it reads."""
    read = x.clone().requires_grad_()
    made = activation(read * 1.0)  # type: ignore[operator]
    made.backward(slope.clone())
    assert read.grad is not None
    return made.detach(), read.grad


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("negative", [0.0, 0.3])
@pytest.mark.parametrize("overwrite", [False, True])
def test_activations_match_pytorch(dtype: torch.dtype, negative: float, overwrite: bool) -> None:
    x = torch.randn(3, 4, 5, 6, generator=torch.Generator().manual_seed(0)).to(dtype)
    x[0, 0, 0] = torch.tensor([0.0, -0.0, 1e-30, -1e-30, 1.0, -1.0])
    slope = torch.randn(x.shape, generator=torch.Generator().manual_seed(1)).to(dtype)
    ours = gradient_through(lambda t: activate(t, negative, overwrite), x, slope)
    plain = gradient_through(lambda t: nn.functional.leaky_relu(t, negative), x, slope)
    assert all(torch.equal(own, theirs) for own, theirs in zip(ours, plain, strict=True))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_relu_of_every_two_bytes_is_pytorchs(dtype: torch.dtype) -> None:
    """Infinities, and numbers that are none, of either sign are among them."""
    every_value = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16).view(dtype)
    found, wanted = activate(every_value.clone(), 0.0, True), torch.relu(every_value)
    assert torch.equal(found.isnan(), wanted.isnan())
    assert torch.equal(found.nan_to_num(), wanted.nan_to_num())


def test_the_gradient_is_written_over_the_one_received() -> None:
    x, slope = torch.tensor([1.0, -1.0], requires_grad=True), torch.ones(2)
    activate(x * 1.0, 0.0, True).backward(slope)  # type: ignore[no-untyped-call]
    assert slope.tolist() == [1.0, 0.0]


def branched() -> Graph:
    """Return a network of activations that are read by one convolution, by two layers, by a sum
    alone, and by a mean alone.
    """
    nodes = (
        ("input", layers.Input((6, 6, 3)), ()),
        ("stem", layers.Conv2D(8, 3), ("input",)),
        ("of one", layers.ReLU(), ("stem",)),
        ("body", layers.Conv2D(8, 3), ("of one",)),
        ("of two", layers.LeakyReLU(0.3), ("body",)),
        ("branch", layers.Conv2D(8, 1), ("of two",)),
        ("of a sum", layers.ReLU(), ("branch",)),
        ("sum", layers.Add(), ("of a sum", "of two")),
        ("of a mean", layers.ReLU(), ("sum",)),
        ("mean", layers.GlobalAveragePool2D(), ("of a mean",)),
        ("dense", layers.Dense(5), ("mean",)),
        ("output", layers.Softmax(), ("dense",)),
    )
    return Graph(tuple(Node(name, layer, inputs) for name, layer, inputs in nodes))


def test_only_gradients_that_nothing_else_reads_are_overwritten() -> None:
    graph = branched()
    code = ModuleCode(graph, fx.Graph(), training=True, on_cpu=True)
    owners = [n.name for n in graph.nodes if "of" in n.name and code.owns_gradient(n)]
    assert owners == ["of one", "of two"]
    code = ModuleCode(graph, fx.Graph(), training=True, on_cpu=False)
    assert not any(code.owns_gradient(n) for n in graph.nodes if "of" in n.name)


def test_gradients_of_a_branched_network_are_those_of_plain_operations() -> None:
    graph = branched()
    weights = initial_weights(graph, np.random.default_rng(0))
    images = torch.randn(4, 3, 6, 6, generator=torch.Generator().manual_seed(0))
    found = []
    for on_cpu in (True, False):
        tensors = {
            name: nn.Parameter(torch.from_numpy(np.moveaxis(array, (-1, -2), (0, 1)).copy()))
            if array.ndim == 4
            else nn.Parameter(torch.from_numpy(array.copy()))
            for name, array in weights.items()
        }
        module = build_module(graph, tensors, training=True, on_cpu=on_cpu)
        module(images).square().sum().backward()
        found.append([t.grad.numpy() for t in tensors.values() if t.grad is not None])
    assert len(found[0]) == len(found[1]) == len(weights)
    for own, plain in zip(*found, strict=True):
        assert relative_error(own, plain) < 1e-5


def test_what_a_stride_leaves_has_the_gradient_of_plain_slices() -> None:
    x = torch.randn(2, 3, 5, 6).contiguous(memory_format=torch.channels_last)
    slope = torch.randn(2, 3, 3, 3)
    results = []
    for function in (strided, copy_strided):
        read = x.clone().requires_grad_()
        made = function(read, 2)
        made.backward(slope)  # type: ignore[no-untyped-call]
        assert read.grad is not None
        assert read.grad.stride() == x.stride()
        results.append((made.detach(), read.grad))
    assert all(torch.equal(plain, own) for plain, own in zip(*results, strict=True))


def test_the_gradient_of_a_mean_lies_as_the_images_do() -> None:
    x = torch.randn(2, 3, 5, 6).contiguous(memory_format=torch.channels_last).requires_grad_()
    gradients = []
    for function in (mean_of_pixels, lambda t: t.mean((2, 3))):
        made = function(x * 1.0)
        torch.testing.assert_close(made, x.double().mean((2, 3)).float())
        read = torch.autograd.grad(made.square().sum(), x)[0]
        gradients.append(read)
    torch.testing.assert_close(*gradients)
    of_mean = torch.autograd.grad(mean_of_pixels(x).sum(), x)[0]
    assert of_mean.is_contiguous(memory_format=torch.channels_last)


def test_freed_memory_is_kept_however_much_it_is() -> None:
    """A step of a large network frees more than 2 GiB, mallopt's largest threshold."""
    code = (
        "import ctypes\n"
        "from aiperf_hpc.replica.engines.torch.device import keep_freed_memory\n"
        "library = ctypes.CDLL(None)\n"
        "library.malloc.restype = library.sbrk.restype = ctypes.c_void_p\n"
        "library.malloc.argtypes, library.free.argtypes = [ctypes.c_size_t], [ctypes.c_void_p]\n"
        "assert keep_freed_memory()\n"
        "block = library.malloc(3 * 2**30)\n"
        "end = library.sbrk(0)\n"
        "library.free(block)\n"
        "assert library.sbrk(0) == end, 'given back'\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


THP = Path("/sys/kernel/mm/transparent_hugepage/enabled")


@pytest.mark.skipif(
    not THP.exists() or "[never]" in THP.read_text() or OVERCOMMIT.read_text().strip() == "2",
    reason="the kernel gives no huge pages here",
)
def test_huge_pages_back_the_heap_also_after_memory_was_given_back() -> None:
    code = (
        "import torch\n"
        "from pathlib import Path\n"
        "from aiperf_hpc.replica.engines.torch import device\n"
        "def huge():\n"
        "    lines = Path('/proc/self/smaps_rollup').read_text().splitlines()\n"
        "    return next(int(x.split()[1]) for x in lines if x.startswith('AnonHugePages'))\n"
        "assert device.keep_freed_memory()\n"
        "for _ in range(2):\n"
        "    before, ones = huge(), torch.ones(2**24)\n"
        "    assert huge() - before > 2**15, 'KiB of 2**16'\n"
        "    del ones\n"
        "    device.release_freed_memory(torch.device('cpu'))\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
