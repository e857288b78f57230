"""How layers are recorded: in a graph's JSON, in its hash and in counts.

A layer is recorded by its class's kind and all of its fields, unless ``VARIANTS`` has a kind for
its parameters: then by that kind and the other fields. So graphs that earlier versions stored can
be read, and a network has the same record and the same hash in all versions.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from functools import lru_cache
from typing import NamedTuple

from aiperf_hpc.graph import layers
from aiperf_hpc.graph.layers import LAYERS, Layer

VARIANTS: Mapping[str, tuple[type[Layer], Mapping[str, object]]] = {
    "conv2d": (layers.Conv2D, {"initial": "he_normal", "bias": False}),
    "fan_out_conv2d": (layers.Conv2D, {"initial": "fan_out_truncated_normal", "bias": False}),
    "uniform_conv2d": (layers.Conv2D, {"initial": "fan_in_uniform", "stride": 1}),
    "biased_conv2d": (layers.Conv2D, {"initial": "glorot_uniform", "stride": 1, "bias": True}),
    "dense": (layers.Dense, {"initial": "he_normal", "l2": 0.0}),
    "fan_out_dense": (layers.Dense, {"initial": "fan_out_truncated_normal", "l2": 0.0}),
    "glorot_dense": (layers.Dense, {"initial": "glorot_uniform"}),
    "positionwise_dense": (layers.PositionwiseDense, {"initial": "he_normal", "l2": 0.0}),
    "class_scores": (layers.PositionwiseDense, {"initial": "normal_hundredth", "l2": 0.0}),
    "box_shifts": (layers.PositionwiseDense, {"initial": "normal_thousandth", "l2": 0.0}),
    "input": (layers.Input, {"dtype": "float32"}),
    "integer_input": (layers.Input, {"dtype": "int32"}),
    "max_pool2d": (layers.MaxPool2D, {"same": False}),
    "same_max_pool2d": (layers.MaxPool2D, {"same": True}),
}
"""The kinds that stand for a layer with some fields fixed, which are not recorded."""
KINDS: Mapping[str, type[Layer]] = LAYERS | {kind: layer for kind, (layer, _) in VARIANTS.items()}
"""The layers by all kinds that are recorded."""


class Recorded(NamedTuple):
    """What is recorded of a layer."""

    kind: str
    fields: Mapping[str, object]
    text: str
    """The text that a graph's hash is computed from."""


@lru_cache(maxsize=65_536)
def recorded(layer: Layer) -> Recorded:
    """Return what is recorded of a layer. A network has few different ones."""
    held = {field.name: getattr(layer, field.name) for field in fields(layer)}
    for kind, (cls, fixed) in VARIANTS.items():
        if type(layer) is cls and fixed.items() <= held.items():
            free = {key: value for key, value in held.items() if key not in fixed}
            text = ", ".join(f"{key}={value!r}" for key, value in free.items())
            # The class that the kind had: FanOutConv2D of fan_out_conv2d.
            return Recorded(kind, free, f"{kind.title().replace('_', '')}({text})")
    return Recorded(layer.kind, held, repr(layer))


def layer_from(kind: str, values: Mapping[str, object]) -> Layer:
    """Return the layer that is recorded so.

    Raises:
        GraphError: a value is not possible.
        TypeError: a field is missing or unknown.
    """
    fixed = {} if kind in LAYERS else VARIANTS[kind][1]
    return KINDS[kind](**fixed, **values)
