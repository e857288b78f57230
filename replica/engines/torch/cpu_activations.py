"""ReLU and leaky ReLU on a CPU, whose backward passes overwrite the gradient they receive.

They are limited by memory bandwidth: a pass that writes where it reads takes about 0.6 times as
long as one that writes to memory of its own. Types of two bytes are compared as integers, which
takes a third of the time of PyTorch's conversion to fp32 and back (docs/decisions/engines.md).
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
"""Minus infinity as an integer: what is negative is not above it, unless it is not a number."""


def activate(x: Tensor, slope: float, overwrite: bool) -> Tensor:
    """Return max(x, slope * x); its backward pass overwrites the gradient that it receives.

    Only for an output whose gradient is a tensor that nothing else refers to:
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
