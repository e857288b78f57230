"""Convolutions of images on a CPU, the ways that they are fast there.

What is fast depends on the processor's vectors: each way was measured
(docs/decisions/engines.md) and computes the same function by the same operations.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

AVX2 = torch.backends.cpu.get_cpu_capability() == "AVX2"
"""Whether the processor has these vectors, and no longer ones."""

HAS_PRODUCT = hasattr(torch.ops.mkldnn, "_linear_pointwise")
"""Whether PyTorch has oneDNN's product of matrices in fp32."""

NEVER_ONEDNN = 20480
"""The numbers of a single image up to which PyTorch does not convolve by oneDNN in any case."""
FEW_PIXELS = 16384
"""The pixels of a batch up to which oneDNN multiplies matrices faster than it convolves, in types
of two bytes."""
MANY_CHANNELS, FEW_PIXELS_FP32 = 1024, 4096
"""In fp32, what is read is worth oneDNN's product from so many channels and up to so many pixels:
it is the kernel's gradient that is faster, by up to 2.6 times."""
LARGE_IMAGE = 1 << 15
"""The numbers of an image from which it is worth being laid out anew for its kernel's gradient."""


def convolve_pixels(x: Tensor, kernel: Tensor, bias: Tensor | None = None) -> Tensor:
    """Convolve 1 x 1 without a stride: a product of matrices, over all images' pixels.

    oneDNN convolves slowly where images have few pixels, so that here they are all one row, without
    a copy; in types of two bytes it multiplies matrices faster still, while there are few pixels.

    In fp32 it is a BLAS that multiplies. With AVX2 it is the fastest way; on an AMD EPYC with
    AVX-512 it has half of oneDNN's speed, which therefore multiplies there. PyTorch has it convolve
    such a row on one thread, unless there is a dilation, which means nothing here.
    """
    pixels = x.permute(0, 2, 3, 1)
    samples, height, width, channels = pixels.shape
    rows = samples * height * width
    if (x.element_size() == 2 and rows <= FEW_PIXELS) or _avx2_in_fp32(x):
        made = functional.linear(pixels.reshape(-1, channels), kernel.flatten(1), bias)
    elif bias is None and _multiplied_by_onednn(x, rows):
        made = _Product.apply(pixels.reshape(-1, channels), kernel.flatten(1))  # type: ignore[no-untyped-call]
    else:
        row = pixels.reshape(1, 1, -1, channels).permute(0, 3, 1, 2)
        dilation = 2 if row.numel() > NEVER_ONEDNN else 1
        made = torch.conv2d(row, kernel, bias, dilation=dilation).permute(0, 2, 3, 1)
    return made.reshape(samples, height, width, -1).permute(0, 3, 1, 2)


def convolve(x: Tensor, kernel: Tensor, bias: Tensor | None, stride: int, padding: int) -> Tensor:
    """Convolve, as ``torch.conv2d`` does."""
    if bias is None and _laid_out_anew(x):
        made: Tensor = _LaidOutAnew.apply(x, kernel, stride, padding, False, 0)  # type: ignore[no-untyped-call]
        return made
    return torch.conv2d(x, kernel, bias, stride, padding)


def convolve_transposed(
    x: Tensor, kernel: Tensor, bias: Tensor | None, stride: int, padding: int, behind: int
) -> Tensor:
    """Convolve as ``torch.conv_transpose2d`` does, with so much more padding ``behind``."""
    if bias is None and _laid_out_anew(x):
        made: Tensor = _LaidOutAnew.apply(x, kernel, stride, padding, True, behind)  # type: ignore[no-untyped-call]
        return made
    return torch.conv_transpose2d(x, kernel, bias, stride, padding, behind)


def _avx2_in_fp32(x: Tensor) -> bool:
    return AVX2 and x.dtype is torch.float32


def _multiplied_by_onednn(x: Tensor, rows: int) -> bool:
    few = x.shape[1] >= MANY_CHANNELS and rows <= FEW_PIXELS_FP32
    return HAS_PRODUCT and few and x.dtype is torch.float32 and x.device.type == "cpu"


def _laid_out_anew(x: Tensor) -> bool:
    return _avx2_in_fp32(x) and x[0].numel() >= LARGE_IMAGE


def _product(left: Tensor, right: Tensor) -> Tensor:
    """Return ``left @ right.t()`` by oneDNN."""
    made: Tensor = torch.ops.mkldnn._linear_pointwise(left, right, None, "none", [], "")
    return made


class _Product(torch.autograd.Function):
    """A 1 x 1 convolution in fp32 as a product of matrices, by oneDNN."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, kernel: Tensor) -> Tensor:  # noqa: ANN401 -- of PyTorch
        ctx.save_for_backward(rows, kernel)
        return _product(rows, kernel)

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor | None, Tensor | None]:  # noqa: ANN401
        rows, kernel = ctx.saved_tensors
        slope = slope.contiguous()
        of_rows = of_kernel = None
        if ctx.needs_input_grad[0]:
            of_rows = _product(slope, kernel.t())
        if ctx.needs_input_grad[1]:
            of_kernel = _product(slope.t(), rows.t())
        return of_rows, of_kernel


class _LaidOutAnew(torch.autograd.Function):
    """A convolution whose kernel's gradient is computed of images that are not channels-last.

    With AVX2, oneDNN computes that one at a third to nine tenths of the speed where channels are
    last; elsewhere they are laid out anew by it, in blocks, which takes a small part of the time.
    """

    @staticmethod
    def forward(
        ctx: Any,  # noqa: ANN401 -- of PyTorch
        x: Tensor,
        kernel: Tensor,
        stride: int,
        padding: int,
        transposed: bool,
        behind: int,
    ) -> Tensor:
        ctx.save_for_backward(x, kernel)
        ctx.options = [stride] * 2, [padding] * 2, [1, 1], transposed, [behind] * 2, 1
        made: Tensor = torch.ops.aten.convolution(x, kernel, None, *ctx.options)
        return made

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor | None, ...]:  # noqa: ANN401
        x, kernel = ctx.saved_tensors
        of_x = of_kernel = None
        backward = torch.ops.aten.convolution_backward
        if ctx.needs_input_grad[0]:
            of_x = backward(slope, x, kernel, None, *ctx.options, [True, False, False])[0]
        if ctx.needs_input_grad[1]:
            channels_first = (tensor.contiguous() for tensor in (slope, x, kernel))
            of_kernel = backward(*channels_first, None, *ctx.options, [False, True, False])[1]
        return of_x, of_kernel, None, None, None, None
