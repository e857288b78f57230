"""Operations of one layer for one sample: pure arithmetic on shapes, in Python integers.

Convention (Ren et al. 2021): a multiply-accumulate is 2 operations;
an addition, subtraction, multiplication or comparison is 1; a division or square root is 4; an
exponential is 8. fvcore and ptflops count a multiply-accumulate as 1.

Where the paper is not consistent with itself (softmax, global average pooling and the backward
pass of batch normalisation, three small rows of its Table 3), docs/decisions/counting.md says
which reading is taken here and why.
"""

from __future__ import annotations

MAC = 2
ADD = SUBTRACT = MULTIPLY = COMPARE = 1
DIVIDE = SQRT = 4
EXP = 8


def conv_macs(kernel: int, inputs: int, outputs: int, height: int, width: int) -> int:
    """Return the multiply-accumulates of a k x k convolution with a height x width output."""
    return kernel * kernel * inputs * outputs * height * width


def conv_forward(kernel: int, inputs: int, outputs: int, height: int, width: int) -> int:
    """Return 2 k² Ci Co Ho Wo."""
    return MAC * conv_macs(kernel, inputs, outputs, height, width)


def conv_update(kernel: int, inputs: int, outputs: int) -> int:
    """Return the operations of applying the weight gradient, 2 k² Ci Co."""
    return MAC * kernel * kernel * inputs * outputs


def conv_backward(
    kernel: int, inputs: int, outputs: int, height: int, width: int, *, input_gradient: bool
) -> int:
    """Return the gradients by weights and, where it is needed, by inputs; and the update.

    Each gradient costs as much as the forward pass. A convolution below which nothing is
    trained computes no gradient by its inputs.
    """
    gradients = 1 + int(input_gradient)
    return gradients * conv_forward(kernel, inputs, outputs, height, width) + conv_update(
        kernel, inputs, outputs
    )


def dense_forward(inputs: int, outputs: int) -> int:
    """Return 2 Ci Co."""
    return MAC * inputs * outputs


def dense_update(inputs: int, outputs: int) -> int:
    """Return the operations of applying the gradients of weights and bias, 2 (Ci + 1) Co."""
    return MAC * (inputs + 1) * outputs


def dense_backward(inputs: int, outputs: int, *, input_gradient: bool) -> int:
    """Return the gradients by weights and, where it is needed, by inputs; and the update."""
    gradients = 1 + int(input_gradient)
    return gradients * dense_forward(inputs, outputs) + dense_update(inputs, outputs)


def batch_norm_forward(elements: int) -> int:
    """Return 7 an element."""
    return 7 * elements


def elementwise_forward(elements: int) -> int:
    """Return 1 an output element: a comparison (ReLU) or an addition."""
    return elements


def max_pool_forward(kernel: int, elements: int) -> int:
    """Return k² comparisons an output element."""
    return COMPARE * kernel * kernel * elements


def global_average_pool_forward(height: int, width: int, channels: int) -> int:
    """Return H W additions and one division a channel."""
    return ADD * height * width * channels + DIVIDE * channels


def softmax_forward(classes: int) -> int:
    """Return an exponential, an addition and a division a class: 13 a class."""
    return (EXP + ADD + DIVIDE) * classes
