"""Memory traffic: by hand on small graphs, and against the tensors that PyTorch really touches."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import cast

import pytest
import torch
from tests.support.detectors import detector
from tests.support.networks import deepcam, flat_images, residual, two_stems, volumes
from tests.support.torch_network import logits, meta_tensors
from torch import Tensor
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode

from aiperf_hpc.errors import CountError
from aiperf_hpc.graph import (
    Add,
    BatchNorm,
    ChannelAffine,
    Concat,
    Conv2D,
    Dense,
    Dropout,
    Embedding,
    Flatten,
    Graph,
    ImagePool2D,
    Input,
    Layer,
    Node,
    Proposals,
    RegionAlign,
    RegionAverage,
    ReLU,
    Shape,
    Tile,
)
from aiperf_hpc.morphism.resnet import resnet50
from aiperf_hpc.ops_counter.layers import COSTS, LayerContext, Moved
from aiperf_hpc.ops_counter.memory import GraphTraffic, LayerTraffic, traffic
from aiperf_hpc.replica.engines.torch.optimizers import OPTIMIZERS

IMAGE = Node("image", Input((4, 4, 3)))


def of(
    graph: Graph, name: str, precision: str = "fp32", optimizer: str = "sgd", *, fused: bool = False
) -> LayerTraffic:
    return traffic(graph, precision, optimizer, fused=fused).layers[name]


def by_kind(found: GraphTraffic) -> Counter[str]:
    """The bytes a sample of each kind of layer."""
    kinds: Counter[str] = Counter()
    for layer in found.layers.values():
        kinds[layer.kind] += layer.forward + layer.backward
    return kinds


def test_the_first_convolution_by_hand() -> None:
    """4 x 4 x 3 = 48 elements in, 4 x 4 x 2 = 32 out, 7 x 7 x 3 x 2 = 294 weights.

    Forward 48 + 32. Backward input and output's gradient, 80 again; nothing by the image. A step
    reads the weights once and writes their gradient; SGD reads gradient, weight and momentum, and
    writes the latter two: 5 numbers.
    """
    graph = Graph((IMAGE, Node("conv", Conv2D(2, 7), ("image",))))
    expected = LayerTraffic("conv2d", 4 * 80, 4 * 80, 4 * 2 * 294, 4 * 5 * 294)
    assert of(graph, "conv") == expected
    assert of(graph, "conv", fused=True) == expected
    assert traffic(graph).sample == 640
    assert traffic(graph).step == 2352 + 5880
    assert traffic(graph).training(samples=10, steps=2) == 10 * 640 + 2 * 8232


def test_precision_halves_what_layers_compute_with_and_copies_the_weights() -> None:
    """294 weights: 2 bytes each read and written in the step. The update is in fp32, 5 numbers of
    4 bytes; the new weight is read (4) and copied (2), the gradient read (2) and copied (4)."""
    graph = Graph((IMAGE, Node("conv", Conv2D(2, 7), ("image",))))
    expected = LayerTraffic("conv2d", 2 * 80, 2 * 80, 2 * 2 * 294, (20 + 6 + 6) * 294)
    assert of(graph, "conv", precision="bf16") == expected
    assert of(graph, "conv", precision="fp16") == expected


@pytest.mark.parametrize(
    ("optimizer", "numbers"),
    [
        ("sgd", 5),  # g, w, m read; w, m written
        ("asgd", 5),  # g, w, mean read; w, mean written
        ("adam", 7),  # g, w, m, v read; w, m, v written
        ("adamw", 7),
        ("lamb", 12),  # as adam with u written for w: 7; w and u for norms; w, u read, w written
    ],
)
def test_what_an_update_moves(optimizer: str, numbers: int) -> None:
    graph = Graph((IMAGE, Node("flat", Flatten(), ("image",)), Node("dense", Dense(2), ("flat",))))
    assert of(graph, "dense", optimizer=optimizer).update == 4 * numbers * (48 * 2 + 2)


def test_every_optimizer_has_its_traffic() -> None:
    for optimizer in OPTIMIZERS:
        assert traffic(residual(), optimizer=optimizer).step > 0


def test_dropout_also_moves_its_mask() -> None:
    """8 elements; a fused one is part of the layer before it."""
    nodes = (
        Node("vector", Input((8,))),
        Node("first", Dense(8), ("vector",)),
        Node("dropout", Dropout(0.5), ("first",)),
        Node("second", Dense(1), ("dropout",)),
    )
    apart, fused = of(Graph(nodes), "dropout"), of(Graph(nodes), "dropout", fused=True)
    assert (apart.forward, apart.backward) == (3 * 8 * 4, 3 * 8 * 4)
    assert (fused.forward, fused.backward) == (0, 0)


def test_a_residual_sum_by_hand() -> None:
    """A convolution of 4 x 4 x 3 -> 4 x 4 x 3, normalised, and added to itself: 48 elements each.

    conv: 9 x 3 x 3 = 81 weights; no gradient by the image.
    norm: 3 x 48 forward; backward 2 x 48 for gamma and beta and 3 x 48 for its input. It is read
    twice, by relu and by sum: two gradients are read and one written, 3 x 48 (fused: one read).
    relu: 2 x 48 and 3 x 48. sum: reads 2 x 48, writes 48, and gives its gradient on as it is.
    """
    graph = Graph(
        (
            IMAGE,
            Node("conv", Conv2D(3, 3), ("image",)),
            Node("norm", BatchNorm(), ("conv",)),
            Node("relu", ReLU(), ("norm",)),
            Node("sum", Add(), ("norm", "relu")),
        )
    )
    apart = traffic(graph)
    assert apart.layers["conv"] == LayerTraffic("conv2d", 4 * 96, 4 * 96, 4 * 2 * 81, 4 * 5 * 81)
    # gamma and beta, 6: read forward, read backward, gradient written. Mean and variance, 6: moved
    # on, so read and written.
    assert apart.layers["norm"] == LayerTraffic(
        "batch_norm", 4 * 144, 4 * (240 + 144), 4 * 3 * 6 + 4 * 2 * 6, 4 * 5 * 6
    )
    assert apart.layers["relu"] == LayerTraffic("relu", 4 * 96, 4 * 144, 0, 0)
    assert apart.layers["sum"] == LayerTraffic("add", 4 * 144, 0, 0, 0)
    assert by_kind(apart) == {
        "input": 0, "conv2d": 768, "batch_norm": 2112, "relu": 960, "add": 576
    }  # fmt: skip
    fused = traffic(graph, fused=True)
    assert by_kind(fused) == {
        "input": 0, "conv2d": 768, "batch_norm": 4 * 48, "relu": 0, "add": 4 * 48
    }  # fmt: skip
    assert fused.step == apart.step


def test_nothing_is_differentiated_below_what_is_trained() -> None:
    graph = Graph((IMAGE, Node("relu", ReLU(), ("image",)), Node("conv", Conv2D(1, 1), ("relu",))))
    assert of(graph, "relu") == LayerTraffic("relu", 4 * 96, 0, 0, 0)
    assert of(graph, "conv").backward == 4 * (48 + 16)


@pytest.mark.parametrize("layer", [BatchNorm(), ChannelAffine()])
def test_a_normalisation_of_samples_has_the_gradients_of_its_parameters(layer: Layer) -> None:
    """Both read the input and the output's gradient; there is none by the input."""
    assert of(Graph((IMAGE, Node("norm", layer, ("image",)))), "norm").backward == 4 * 2 * 48


def test_an_embedding_moves_rows_with_samples_and_its_table_with_steps() -> None:
    """5 words of 3 numbers, of a table of 7 x 3: its gradient is written whole, and applied."""
    graph = Graph((Node("words", Input((5,), "int32")), Node("table", Embedding(7, 3), ("words",))))
    expected = LayerTraffic("embedding", 4 * (5 + 30), 4 * (5 + 45), 4 * 21, 4 * 5 * 21)
    assert of(graph, "table") == expected


def test_a_pixel_repeated_scaled_and_put_behind_an_image() -> None:
    """4 x 4 x 3 elements; what is repeated is written, not read as often."""
    graph = Graph(
        (
            IMAGE,
            Node("affine", ChannelAffine(), ("image",)),
            Node("pool", ImagePool2D(), ("affine",)),
            Node("tile", Tile(4, 4), ("pool",)),
            Node("concat", Concat(), ("affine", "tile")),
        )
    )
    moved = {name: (t.forward // 4, t.backward // 4) for name, t in traffic(graph).layers.items()}
    # The affine's gradient is the sum of two: 3 x 48 more.
    assert moved == {
        "image": (0, 0), "affine": (96, 96 + 144), "pool": (51, 51), "tile": (48, 48),
        "concat": (192, 192),
    }  # fmt: skip
    fused = traffic(graph, fused=True).layers
    assert [fused[name].forward for name in ("affine", "tile", "concat")] == [0, 0, 0]


@pytest.mark.parametrize(
    ("layer", "inputs", "expected"),
    [
        # Each of 5 x 7 x 7 x 3 = 735 elements reads 16 places; backward they are read and written.
        (RegionAlign(7, (8,)), ((5, 4), (10, 12, 3)), Moved(17 * 735, 33 * 735)),
        (RegionAverage(), ((5, 7, 7, 3),), Moved(735 + 15, 735 + 15)),
        # 2 x 3 places of 3 anchors, 5 numbers each, and 2 boxes of 5; 4 boxes of 4.
        (Proposals(4, 8, 6, ((2, 3, 8),), (16,), 16, 24), ((18, 5), (2, 5)), Moved(90 + 10 + 16)),
    ],
)
def test_layers_of_a_detector_by_hand(
    layer: Layer, inputs: tuple[Shape, ...], expected: Moved
) -> None:
    contexts = [
        LayerContext(layer, inputs, layer.output_shape(*inputs), input_gradient=True, fused=fused)
        for fused in (False, True)
    ]
    assert {COSTS[type(layer)].traffic(context) for context in contexts} == {expected}


Tensors = Sequence[Tensor | None]


def numbers(tensors: Tensors) -> int:
    return sum(int(tensor.numel()) for tensor in tensors if isinstance(tensor, Tensor))


def all_of(read: Tensors, made: Tensors) -> int:
    return numbers(read) + numbers(made)


def backward_of_convolution(read: Tensors, made: Tensors) -> int:
    """The gradient by the weights reads gy and x; that by x, where it is made, reads gy again."""
    return numbers(read[:2]) * (1 + int(made[0] is not None))


RULES: dict[str, Callable[[Tensors, Tensors], int]] = {
    "convolution": lambda read, made: numbers(read[:1]) + numbers(made),
    "convolution_backward": backward_of_convolution,
    "native_batch_norm": lambda read, made: 2 * numbers(read[:1]) + numbers(made[:1]),
    "native_batch_norm_backward": lambda read, made: 5 * numbers(read[:1]),
    "relu": all_of,
    "threshold_backward": all_of,
    "add": all_of,
    "max_pool2d_with_indices": lambda read, made: numbers(read[:1]) + numbers(made[:1]),
    "max_pool2d_with_indices_backward": lambda read, made: all_of(read[:2], made),
}
"""Elements of activations that each operator of PyTorch reads and writes."""


class Touched(TorchDispatchMode):
    """Adds up what PyTorch's own operators read and write, forward and backward."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.elements = 0

    def __torch_dispatch__(
        self,
        func: Callable[..., object],
        types: object,
        args: Sequence[Tensor] = (),
        kwargs: Mapping[str, object] | None = None,
    ) -> object:
        out = func(*args, **(kwargs or {}))
        rule = RULES.get(func.overloadpacket.__name__)  # type: ignore[attr-defined]
        if rule is not None:
            self.elements += rule(args, out if isinstance(out, tuple) else (cast("Tensor", out),))
        return out


def executed(graph: Graph, samples: int) -> int:
    *places, channels = graph.nodes[0].layer.output_shape()
    images = torch.empty((samples, channels, *places), device="meta")
    labels = torch.zeros(samples, dtype=torch.long, device="meta")
    touched = Touched()
    with touched:
        loss = functional.cross_entropy(
            logits(graph, meta_tensors(graph), images, training=True), labels
        )
        loss.backward()  # type: ignore[no-untyped-call]
    return touched.elements


@pytest.mark.parametrize(("make", "more"), [(resnet50, 0), (residual, 0), (two_stems, 4 * 108)])
def test_activations_are_those_that_pytorch_moves(make: Callable[[], Graph], more: int) -> None:
    """All but pooling to one value, dense layers and the loss: some elements a channel.

    PyTorch adds three tensors in two steps: 2 more of 6 x 6 x 3 elements for either sum of three.
    """
    graph = make()
    kinds = by_kind(traffic(graph))
    wide = sum(kinds.get(kind, 0) for kind in ("conv2d", "batch_norm", "relu", "add", "max_pool2d"))
    assert 4 * executed(graph, samples=3) == 3 * (wide + 4 * more)


def test_resnet50_updates_its_published_parameters() -> None:
    """25,557,032 of them, in five accesses of 4 bytes."""
    layers = traffic(resnet50()).layers.values()
    assert sum(layer.update for layer in layers) == 20 * 25_557_032


@pytest.mark.parametrize(
    "make",
    [
        resnet50,
        residual,
        two_stems,
        volumes,
        flat_images,
        deepcam,
        detector,
        partial(detector, variant="c4"),
    ],
)
def test_fusing_saves_and_never_costs(make: Callable[[], Graph]) -> None:
    graph = make()
    apart, fused = traffic(graph), traffic(graph, fused=True)
    for name, layer in fused.layers.items():
        assert layer.forward <= apart.layers[name].forward
        assert layer.backward <= apart.layers[name].backward
    assert 0 < fused.sample < apart.sample
    assert fused.step == apart.step


def test_what_has_no_formula_is_named() -> None:
    class Other(ReLU):
        """A layer that nobody knows."""

    graph = Graph((IMAGE, Node("strange", Other(), ("image",))))
    with pytest.raises(CountError, match=r"node 'strange': no memory traffic .* kind 'relu'"):
        traffic(graph)
    with pytest.raises(CountError, match="no memory traffic is known for sgd in int8"):
        traffic(residual(), "int8")
