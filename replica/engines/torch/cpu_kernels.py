"""Activations and convolutions on a CPU, in the ways that are fast there.

What is fast depends on the processor's vectors: each way was measured
(docs/decisions/engines.md) and computes the same function by the same operations.

The backward passes of ReLU and leaky ReLU overwrite the gradient they receive. They are limited by
memory bandwidth: a pass that writes to the memory it reads needs about 0.6 times as long as one
that writes to memory of its own. Types of two bytes are compared as integers, which needs a third
of the time of PyTorch's conversion to fp32 and back.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

_aten = torch.ops.aten
_TWO_BYTES = 2
_INFINITE = {
    dtype: int(torch.tensor(-torch.inf, dtype=dtype).view(torch.int16))
    for dtype in (torch.bfloat16, torch.float16)
}
"""Minus infinity as an integer: no negative number but NaN is above it."""
AVX2 = torch.backends.cpu.get_cpu_capability() == "AVX2"
"""Whether these are the processor's longest vectors."""

HAS_PRODUCT = hasattr(torch.ops.mkldnn, "_linear_pointwise")
"""Whether PyTorch offers oneDNN's matrix product in fp32."""

NEVER_ONEDNN = 20480
"""Elements of a single image up to which PyTorch never convolves by oneDNN."""
FEW_PIXELS = 16384
"""Pixels of a batch up to which oneDNN multiplies matrices faster than it convolves, in types of
two bytes."""
MANY_CHANNELS, FEW_PIXELS_FP32 = 1024, 4096
"""In fp32, oneDNN's product is faster from so many input channels and up to so many pixels: the
kernel's gradient is up to 2.6 times faster."""
LARGE_IMAGE = 1 << 15
"""Elements of an image from which a channels-first copy pays for its kernel's gradient."""


def activate(x: Tensor, slope: float, overwrite: bool) -> Tensor:
    """Return max(x, slope * x); its backward pass overwrites the gradient that it receives.

    Only for an output to whose gradient nothing else refers:
    ``ModuleCode.owns_gradient``.

    Args:
        x: of any shape.
        slope: of the negative part, 0 for a ReLU and below 1.
        overwrite: whether the result is written over ``x``.
    """
    made: Tensor = _Activation.apply(x, slope, overwrite)  # type: ignore[no-untyped-call]
    return made


class _Activation(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, slope: float, overwrite: bool) -> Tensor:  # noqa: ANN401 -- of PyTorch
        made = x if overwrite else x.clone()
        if overwrite:
            ctx.mark_dirty(x)
        if slope:
            functional.leaky_relu_(made, slope)
        elif made.element_size() == _TWO_BYTES:
            torch.threshold_(made.view(torch.int16), _INFINITE[made.dtype], 0)
        else:
            made.relu_()
        ctx.save_for_backward(made)
        ctx.slope = slope
        return made

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:  # noqa: ANN401 -- of PyTorch
        (made,) = ctx.saved_tensors
        if ctx.slope:
            _aten.leaky_relu_backward.grad_input(
                gradient, made, ctx.slope, True, grad_input=gradient
            )
        else:
            of_bits, bits = _bits(gradient), _bits(made)
            _aten.threshold_backward.grad_input(of_bits, bits, 0, grad_input=of_bits)
        return gradient, None, None


def _bits(values: Tensor) -> Tensor:
    """Return 16-bit floats as integers: the comparison with zero agrees and is twice as fast."""
    return values.view(torch.int16) if values.element_size() == _TWO_BYTES else values


def pointwise_convolution(x: Tensor, kernel: Tensor, bias: Tensor | None = None) -> Tensor:
    """Convolve 1 x 1 without a stride: a product of matrices, over all images' pixels.

    oneDNN convolves images of few pixels slowly, so that all of them become one row, without a
    copy; in types of two bytes it multiplies matrices faster still, up to ``FEW_PIXELS``.

    In fp32 a BLAS multiplies. With AVX2 that is the fastest way; on an AMD EPYC with AVX-512 it has
    half of oneDNN's speed, which therefore multiplies there. PyTorch lets oneDNN convolve such a
    row on one thread, unless there is a dilation, which has no effect on single pixels.
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
    if bias is None and _by_contiguous(x):
        made: Tensor = _ContiguousConvolution.apply(x, kernel, stride, padding, False, 0)  # type: ignore[no-untyped-call]
        return made
    return torch.conv2d(x, kernel, bias, stride, padding)


def convolve_transposed(
    x: Tensor, kernel: Tensor, bias: Tensor | None, stride: int, padding: int, behind: int
) -> Tensor:
    """Convolve as ``torch.conv_transpose2d`` does, with output padding ``behind``."""
    if bias is None and _by_contiguous(x):
        made: Tensor = _ContiguousConvolution.apply(x, kernel, stride, padding, True, behind)  # type: ignore[no-untyped-call]
        return made
    return torch.conv_transpose2d(x, kernel, bias, stride, padding, behind)


def _avx2_in_fp32(x: Tensor) -> bool:
    return AVX2 and x.dtype is torch.float32


def _multiplied_by_onednn(x: Tensor, rows: int) -> bool:
    few = x.shape[1] >= MANY_CHANNELS and rows <= FEW_PIXELS_FP32
    return HAS_PRODUCT and few and x.dtype is torch.float32 and x.device.type == "cpu"


def _by_contiguous(x: Tensor) -> bool:
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


class _ContiguousConvolution(torch.autograd.Function):
    """A convolution whose kernel's gradient is computed of channels-first copies.

    With AVX2, oneDNN computes it on channels-last images at a third to nine tenths of the speed.
    With longer vectors it reorders them into blocks itself, in a small part of the time.
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
