"""The recorded form of layers in a graph's JSON, its hash and its operation counts.

A layer is recorded as the kind of its class and all of its fields. If ``VARIANTS`` has a kind for
its parameters, it is recorded as that kind and the remaining fields. Graphs stored by earlier
versions remain readable, and a network has the same record and hash in all versions.
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
"""Kinds of layers with some fixed fields, which are not recorded."""
KINDS: Mapping[str, type[Layer]] = LAYERS | {kind: layer for kind, (layer, _) in VARIANTS.items()}
"""Layer classes by recorded kind."""


class Recorded(NamedTuple):
    """Recorded form of a layer."""

    kind: str
    fields: Mapping[str, object]
    text: str
    """Text that enters the graph's hash."""


@lru_cache(maxsize=65_536)
def recorded(layer: Layer) -> Recorded:
    """Return the recorded form of a layer, cached because networks repeat layers."""
    held = {field.name: getattr(layer, field.name) for field in fields(layer)}
    for kind, (cls, fixed) in VARIANTS.items():
        if type(layer) is cls and fixed.items() <= held.items():
            free = {key: value for key, value in held.items() if key not in fixed}
            text = ", ".join(f"{key}={value!r}" for key, value in free.items())
            # The kind's former class name, such as FanOutConv2D for fan_out_conv2d.
            return Recorded(kind, free, f"{kind.title().replace('_', '')}({text})")
    return Recorded(layer.kind, held, repr(layer))


def layer_from(kind: str, values: Mapping[str, object]) -> Layer:
    """Return the layer of a recorded kind and its fields.

    Raises:
        GraphError: a value is invalid.
        TypeError: a field is missing or unknown.
    """
    fixed = {} if kind in LAYERS else VARIANTS[kind][1]
    return KINDS[kind](**fixed, **values)
