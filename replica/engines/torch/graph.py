"""A graph as a PyTorch module: straight-line code, channels-last, made by ``torch.fx``.

Each graph gets code of its own, which drops an activation after its last reader and which
``torch.compile`` can take whole. Images are (samples, channels, height, width) in channels-last
memory, which is what (samples, height, width, channels) is without a copy.
"""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor, fx, nn
from torch.fx.passes.split_module import split_module

from aiperf_hpc.errors import EngineError
from aiperf_hpc.graph import Graph
from aiperf_hpc.replica.engines.torch import regions as _regions  # noqa: F401 -- registers builders
from aiperf_hpc.replica.engines.torch.layers import BUILDERS
from aiperf_hpc.replica.engines.torch.module_code import ModuleCode, attribute


def build_module(
    graph: Graph, tensors: Mapping[str, Tensor], *, training: bool, on_cpu: bool
) -> fx.GraphModule:
    """Return a module that computes ``graph`` up to its softmax.

    Args:
        graph: with one input.
        tensors: every parameter and statistic by its name; convolution kernels (out, in, k, ...).
        training: whether normalizations use the batch and update the running statistics, and
            dropouts drop.
        on_cpu: whether a CPU executes it eagerly, with the kernels of ``cpu_kernels``: inductor has
            its own, and plans memory itself.

    Raises:
        EngineError: a layer is not known; the message names the node.
    """
    root = nn.Module()
    for name, tensor in tensors.items():
        if isinstance(tensor, nn.Parameter):
            root.register_parameter(attribute(name), tensor)
        else:
            root.register_buffer(attribute(name), tensor)
    lines = fx.Graph()
    code = ModuleCode(graph, lines, training=training, on_cpu=on_cpu)
    for node in graph.nodes:
        builder = BUILDERS.get(type(node.layer))
        if builder is None:
            raise EngineError(
                f"node '{node.name}': the torch engine has no layer '{node.layer.kind}'"
            )
        code.values[node.name] = builder(code, node, node.layer)
    lines.output(code.values[graph.output.name])
    module = fx.GraphModule(root, lines)
    # The graph refers to its module for hooks, which are not used; the cycle would keep all tensors
    # after the network is closed, until the garbage collector runs.
    lines.owning_module = None
    return module


def split_by_bucket(module: fx.GraphModule, bucket_of: Mapping[str, int]) -> fx.GraphModule:
    """Return a module of consecutive modules, one for each bucket of gradients.

    The backward pass of each ends when the gradients of its bucket are final. Each begins with the
    operation that reads the first parameter of its bucket: if that is a convolution, the split
    prevents no fusion.

    Args:
        module: shares its parameters with the result.
        bucket_of: the bucket of each parameter, by its attribute; the last bucket has the first
            parameter that is read.
    """
    place, place_of = max(bucket_of.values()), {}
    for node in module.graph.nodes:
        read = [bucket_of[n.target] for n in node.all_input_nodes if n.target in bucket_of]
        place = place_of[node] = min([place, *read])
    parts = split_module(module, module, place_of.__getitem__, keep_original_order=True)
    for part in parts.modules():
        if isinstance(part, fx.GraphModule):
            part.graph.owning_module = None  # As above.
    return parts
