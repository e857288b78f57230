"""A graph executed by PyTorch: the independent witness of the counter and of the morphisms."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from aiperf_hpc.graph import (
    Add,
    AtrousConv2D,
    BatchNorm,
    ChannelAffine,
    Concat,
    Conv2D,
    Conv3D,
    ConvTranspose2D,
    Dense,
    DepthwiseConv2D,
    Dropout,
    Flatten,
    GlobalAveragePool2D,
    Graph,
    ImagePool2D,
    Input,
    LeakyReLU,
    MaxPool2D,
    MaxPool3D,
    Node,
    ReLU,
    Scale,
    Softmax,
    Tanh,
    Tile,
)
from aiperf_hpc.morphism.weights.weight_file import Array, Weights
from aiperf_hpc.replica.data.base import Batch

torch.set_num_threads(1)


def to_tensors(
    graph: Graph, weights: Weights, dtype: torch.dtype = torch.float32
) -> dict[str, Tensor]:
    """Weights as leaves that take gradients; convolution kernels in PyTorch's layout."""
    tensors: dict[str, Tensor] = {}
    for name, array in weights.items():
        values = np.array(array)  # A copy: nothing here can write into the weights.
        if array.ndim >= 4:
            values = values.transpose(-1, -2, *range(array.ndim - 2))
        tensor = torch.from_numpy(np.ascontiguousarray(values)).to(dtype)
        tensors[name] = tensor.requires_grad_(name in graph.parameters)
    return tensors


def meta_tensors(graph: Graph) -> dict[str, Tensor]:
    """Weights that have shapes and no values."""
    tensors: dict[str, Tensor] = {}
    for name, shape in {**graph.parameters, **graph.statistics}.items():
        places = (shape[-1], shape[-2], *shape[:-2]) if len(shape) >= 4 else shape
        tensors[name] = torch.empty(places, device="meta", requires_grad=name in graph.parameters)
    return tensors


def run(
    graph: Graph, tensors: Mapping[str, Tensor], images: Tensor, *, training: bool = False
) -> dict[str, Tensor]:
    """Return what every node gives for ``images`` (samples, channels, [depth,] height, width)."""
    outputs: dict[str, Tensor] = {}
    for node in graph.nodes:
        inputs = [outputs[source] for source in node.inputs]
        outputs[node.name] = _layer(node, inputs, tensors, images, training)
    return outputs


def logits(
    graph: Graph, tensors: Mapping[str, Tensor], images: Tensor, *, training: bool = False
) -> Tensor:
    """Return what the final softmax reads."""
    assert isinstance(graph.output.layer, Softmax)
    return run(graph, tensors, images, training=training)[graph.output.inputs[0]]


def _layer(
    node: Node,
    inputs: list[Tensor],
    tensors: Mapping[str, Tensor],
    images: Tensor,
    training: bool,
) -> Tensor:
    match node.layer:
        case Input():
            return images
        case Conv2D(kernel=kernel, stride=stride, bias=biased):
            shift = tensors[f"{node.name}/bias"] if biased else None
            weight = tensors[f"{node.name}/kernel"]
            return functional.conv2d(inputs[0], weight, shift, stride, (kernel - 1) // 2)
        case DepthwiseConv2D(kernel=kernel, stride=stride, dilation=dilation):
            weight, padding = tensors[f"{node.name}/kernel"], dilation * (kernel - 1) // 2
            groups = inputs[0].shape[1]
            return functional.conv2d(inputs[0], weight, None, stride, padding, dilation, groups)
        case AtrousConv2D(kernel=kernel, dilation=dilation):
            weight, padding = tensors[f"{node.name}/kernel"], dilation * (kernel - 1) // 2
            return functional.conv2d(inputs[0], weight, None, 1, padding, dilation)
        case ConvTranspose2D(kernel=kernel, stride=stride):
            weight, padding = tensors[f"{node.name}/kernel"], (kernel - 1) // 2
            return functional.conv_transpose2d(
                inputs[0], weight, None, stride, padding, output_padding=stride - 1
            )
        case ChannelAffine():
            scale, shift = (tensors[f"{node.name}/{key}"] for key in ("scale", "shift"))
            last = inputs[0].movedim(1, -1)
            return (last * scale + shift).movedim(-1, 1)
        case Concat():
            return torch.cat(inputs, dim=-1 if inputs[0].ndim == 3 else 1)
        case ImagePool2D():
            return inputs[0].mean(dim=(2, 3), keepdim=True)
        case Tile(height=height, width=width):
            return inputs[0].repeat(1, 1, height, width)
        case Conv3D(kernel=kernel, stride=stride, bias=biased):
            volumes = functional.pad(inputs[0], ((kernel - 1) // 2, kernel // 2) * 3)
            shift = tensors[f"{node.name}/bias"] if biased else None
            return functional.conv3d(volumes, tensors[f"{node.name}/kernel"], shift, stride)
        case BatchNorm(epsilon=epsilon):
            gamma, beta, mean, variance = (
                tensors[f"{node.name}/{key}"] for key in ("gamma", "beta", "mean", "variance")
            )
            if training:
                return functional.batch_norm(
                    inputs[0], None, None, gamma, beta, training=True, eps=epsilon
                )
            return functional.batch_norm(inputs[0], mean, variance, gamma, beta, eps=epsilon)
        case ReLU():
            return functional.relu(inputs[0])
        case LeakyReLU(slope=slope):
            return functional.leaky_relu(inputs[0], slope)
        case Tanh():
            return torch.tanh(inputs[0])
        case Scale(factor=factor):
            return inputs[0] * factor
        case Dropout(rate=rate):
            return functional.dropout(inputs[0], rate, training)
        case Flatten():
            pixels = inputs[0].movedim(1, -1) if inputs[0].ndim > 3 else inputs[0]
            return pixels.flatten(start_dim=1)
        case Add():
            total = inputs[0]
            for addend in inputs[1:]:
                total = total + addend
            return total
        case MaxPool2D(kernel=kernel, stride=stride, same=True):
            (rows, columns) = node.layer.padding(*inputs[0].shape[2:])
            padded = functional.pad(inputs[0], (*columns, *rows), value=-torch.inf)
            return functional.max_pool2d(padded, kernel, stride)
        case MaxPool2D(kernel=kernel, stride=stride):
            return functional.max_pool2d(inputs[0], kernel, stride, padding=(kernel - 1) // 2)
        case MaxPool3D(kernel=kernel, stride=stride):
            edges = ((kernel - 1) // 2, kernel // 2) * 3
            volumes = functional.pad(inputs[0], edges, value=-torch.inf)
            return functional.max_pool3d(volumes, kernel, stride)
        case GlobalAveragePool2D():
            return inputs[0].mean(dim=(2, 3))
        case Dense():
            weight, bias = tensors[f"{node.name}/kernel"], tensors[f"{node.name}/bias"]
            return torch.addmm(bias, inputs[0], weight)
        case Softmax():
            return functional.softmax(inputs[0], dim=1 if inputs[0].ndim > 3 else -1)
        case _:
            raise NotImplementedError(node.layer.kind)


def channels_first(inputs: Array) -> Tensor:
    """Return inputs, (samples, ..., channels), as PyTorch reads them: (samples, channels, ...)."""
    tensor = torch.from_numpy(inputs)
    return (tensor.movedim(-1, 1) if tensor.ndim > 3 else tensor).contiguous()


def moments(graph: Graph, weights: Weights, inputs: Tensor) -> NDArray[np.float64]:
    """Those of what every normalisation reads in training mode, as PyTorch sees it."""
    with torch.no_grad():
        tensors = to_tensors(graph, weights, torch.float64)
        outputs = run(graph, tensors, inputs.double(), training=True)
    found = []
    for name in graph.statistics:
        node, what = name.split("/")
        read = outputs[graph.by_name[node].inputs[0]]
        axes = tuple(axis for axis in range(read.ndim) if axis != 1)
        values = read.mean(axes) if what == "mean" else read.var(axes, unbiased=False)
        found.append(values.numpy())
    return np.concatenate(found)


def gradients(
    graph: Graph, weights: Weights, batch: Batch, smoothing: float = 0.0
) -> tuple[float, Weights]:
    """Return the loss of a classification and its gradients, kernels (k, ..., in, out)."""
    tensors = to_tensors(graph, weights)
    output = logits(graph, tensors, channels_first(batch.inputs["image"]), training=True)
    labels = torch.from_numpy(batch.targets["label"]).long()
    loss = functional.cross_entropy(output, labels, label_smoothing=smoothing)
    return loss.item(), gradients_of(loss, graph, tensors)


def gradients_of(loss: Tensor, graph: Graph, tensors: Mapping[str, Tensor]) -> Weights:
    """Return a loss's gradients of a graph's parameters, kernels (k, ..., in, out)."""
    loss.backward()  # type: ignore[no-untyped-call]
    found = {}
    for name in graph.parameters:
        gradient = tensors[name].grad
        assert gradient is not None
        array = gradient.numpy()
        last_first = (*range(2, array.ndim), 1, 0) if array.ndim > 3 else range(array.ndim)
        found[name] = array.transpose(*last_first)
    return found
