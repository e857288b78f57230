"""Fast implementations of activations and convolutions on CPUs.

The fastest implementation depends on the processor's vector instructions. All were measured
(docs/decisions/engines.md) and compute the same function by the same operations.

The backward passes of ReLU and leaky ReLU overwrite the gradient they receive. They are limited by
memory bandwidth: in place, they need about 0.6 times the time of a pass that writes to other
memory. Two-byte types are compared as integers, in a third of the time of PyTorch's conversion to
fp32 and back.
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
"""Bits of minus infinity as an integer, which exceeds those of all negative numbers except NaN."""
AVX2 = torch.backends.cpu.get_cpu_capability() == "AVX2"
"""Whether AVX2 has the longest vectors of this processor."""

HAS_PRODUCT = hasattr(torch.ops.mkldnn, "_linear_pointwise")
"""Whether PyTorch provides oneDNN's matrix product in fp32."""

NEVER_ONEDNN = 20480
"""Maximum elements of a single image that PyTorch never convolves by oneDNN."""
FEW_PIXELS = 16384
"""Maximum pixels of a batch for which oneDNN's matrix product is faster than its convolution, in
two-byte types."""
MANY_CHANNELS, FEW_PIXELS_FP32 = 1024, 4096
"""Minimum input channels and maximum pixels for which oneDNN's matrix product is faster in fp32:
the gradient of the kernel is up to 2.6 times faster."""
LARGE_IMAGE = 1 << 15
"""Minimum elements of an image for which a channels-first copy speeds up the kernel's gradient."""


def activate(x: Tensor, slope: float, overwrite: bool) -> Tensor:
    """Return max(x, slope * x); its backward pass overwrites the gradient that it receives.

    Only for outputs whose gradient has no other references (see ``ModuleCode.owns_gradient``).

    Args:
        x: input of any shape.
        slope: slope of the negative part: 0 for a ReLU, and below 1.
        overwrite: whether to overwrite ``x`` with the result.
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
    """View 16-bit floats as integers: comparisons with zero agree and are twice as fast."""
    return values.view(torch.int16) if values.element_size() == _TWO_BYTES else values


def pointwise_convolution(x: Tensor, kernel: Tensor, bias: Tensor | None = None) -> Tensor:
    """Convolve 1 x 1 without stride, as a matrix product over the pixels of all images.

    oneDNN convolves images of few pixels slowly. Therefore all images are viewed as one row of
    pixels. In two-byte types, its matrix product is even faster, up to ``FEW_PIXELS``.

    PyTorch's matrix product in fp32 uses a BLAS. This is fastest with AVX2, but has half the speed
    of oneDNN on an AMD EPYC with AVX-512, where oneDNN is used instead. PyTorch convolves such a
    row with one thread unless it is dilated, which has no effect on single pixels.
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
    """Convolve as ``torch.conv2d`` does."""
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
    """A 1 x 1 convolution in fp32 as a matrix product by oneDNN."""

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
    """A convolution whose kernel gradient is computed from channels-first copies.

    With AVX2, oneDNN has only a third to nine tenths of this speed on channels-last images. With
    longer vectors, it reorders images into blocks itself, in a small fraction of the time.
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
