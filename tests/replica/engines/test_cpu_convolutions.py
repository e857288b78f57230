"""On a CPU images are convolved the ways that are fast there: each is PyTorch's own function."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
import torch
from tests.support.engine_steps import relative_error
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

from aiperf_hpc.replica.engines.torch import cpu_kernels
from aiperf_hpc.replica.engines.torch.cpu_kernels import (
    LARGE_IMAGE,
    MANY_CHANNELS,
    convolve,
    convolve_transposed,
    pointwise_convolution,
)

Convolution = Callable[[Tensor, Tensor], Tensor]


@pytest.fixture(params=[False, True], ids=["other vectors", "AVX2"])
def avx2(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    monkeypatch.setattr(cpu_kernels, "AVX2", request.param)
    return bool(request.param)


def gradients(convolution: Convolution, *given: Tensor) -> list[Tensor]:
    """Return what it gives, and both gradients of half the sum of its squares."""
    x, kernel = (tensor.clone().requires_grad_() for tensor in given)
    made = convolution(x, kernel)
    made.square().sum().div(2.0).backward()  # type: ignore[no-untyped-call]
    assert x.grad is not None
    assert kernel.grad is not None
    return [made.detach(), x.grad, kernel.grad]


def assert_close(found: list[Tensor], wanted: list[Tensor]) -> None:
    for mine, theirs in zip(found, wanted, strict=True):
        assert mine.shape == theirs.shape
        assert relative_error(mine.numpy(), theirs.float().numpy()) < 1e-5


@pytest.mark.parametrize("side", [7, 40])
@pytest.mark.parametrize(
    ("ours", "plain", "kernel"),
    [
        (pointwise_convolution, torch.conv2d, (9, 32, 1, 1)),
        (
            partial(convolve, bias=None, stride=1, padding=1),
            partial(torch.conv2d, padding=1),
            (9, 32, 3, 3),
        ),
        (
            partial(convolve, bias=None, stride=2, padding=3),
            partial(torch.conv2d, stride=2, padding=3),
            (9, 32, 7, 7),
        ),
        (
            partial(convolve_transposed, bias=None, stride=2, padding=1, behind=1),
            partial(torch.conv_transpose2d, stride=2, padding=1, output_padding=1),
            (32, 9, 3, 3),
        ),
    ],
    ids=["pixels", "3 x 3", "7 x 7, strided", "transposed"],
)
def test_outputs_and_gradients_are_those_of_pytorch(
    avx2: bool, ours: Convolution, plain: Convolution, kernel: tuple[int, ...], side: int
) -> None:
    generator = torch.Generator().manual_seed(side)
    x, weights = (
        torch.randn(*shape, generator=generator).contiguous(memory_format=torch.channels_last)
        for shape in ((3, 32, side, side), kernel)
    )
    assert_close(gradients(ours, x, weights), gradients(plain, x.double(), weights.double()))


def test_the_gradient_by_what_is_read_is_left_out_where_nobody_needs_it(avx2: bool) -> None:
    x, kernel = torch.ones(1, 32, 40, 40), torch.ones(4, 32, 3, 3, requires_grad=True)
    assert x.numel() >= LARGE_IMAGE
    convolve(x, kernel, None, 1, 1).sum().backward()  # type: ignore[no-untyped-call]
    assert x.grad is None
    assert kernel.grad is not None
    assert kernel.grad[0, 0].tolist() == [[39.0**2, 39.0 * 40, 39.0**2],
                                          [39.0 * 40, 1600.0, 39.0 * 40],
                                          [39.0**2, 39.0 * 40, 39.0**2]]  # fmt: skip


@pytest.mark.skipif(not torch.backends.mkldnn.enabled, reason="PyTorch has no oneDNN here")
@pytest.mark.parametrize(("avx2", "function"), [(False, "mkldnn_convolution"), (True, "addmm")],
                         indirect=["avx2"])  # fmt: skip
def test_single_pixels_use_the_fast_library_on_one_thread(avx2: bool, function: str) -> None:
    """Single images without a dilation PyTorch gives to a BLAS there, which may be half as fast."""
    images, kernel, bias = torch.ones(2, 32, 20, 25), torch.ones(8, 32, 1, 1), torch.ones(8)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with profile(activities=[ProfilerActivity.CPU]) as profiled:
            found = pointwise_convolution(images, kernel, bias)
    finally:
        torch.set_num_threads(threads)
    assert torch.equal(found, torch.full((2, 8, 20, 25), 33.0))
    assert f"aten::{function}" in {event.key for event in profiled.key_averages()}


@pytest.mark.skipif(not cpu_kernels.HAS_PRODUCT, reason="PyTorch has no oneDNN here")
def test_few_pixels_of_many_channels_use_onednn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu_kernels, "AVX2", False)
    generator = torch.Generator().manual_seed(0)
    x, kernel = (
        torch.randn(*shape, generator=generator).contiguous(memory_format=torch.channels_last)
        for shape in ((3, MANY_CHANNELS, 2, 2), (9, MANY_CHANNELS, 1, 1))
    )
    with profile(activities=[ProfilerActivity.CPU]) as profiled:
        found = gradients(pointwise_convolution, x, kernel)
    calls = {event.key: event.count for event in profiled.key_averages()}
    assert calls["mkldnn::_linear_pointwise"] == 3
    assert_close(found, gradients(torch.conv2d, x.double(), kernel.double()))
