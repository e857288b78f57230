"""Small detectors of two stages, and what they read."""

from __future__ import annotations

import numpy as np

from aiperf_hpc.config import ExtremeWeatherConfig
from aiperf_hpc.graph import Graph, Shape
from aiperf_hpc.replica.data.base import Batch
from aiperf_hpc.workloads.networks.extreme_weather import extreme_weather

CLASSES = 4
BOXES = (15, 5)
SHAPE = (64, 96, 16)
THIN = {
    "width": 2,
    "blocks": (1, 1, 1, 1),
    "fpn_channels": 4,
    "box_head_width": 8,
    "anchors": (8, 16, 24, 32, 48),
    "pre_nms_top_n": 30,
    "post_nms_top_n": 20,
    "regions_per_image": 8,
}


def detector(shape: Shape = SHAPE, /, **settings: object) -> Graph:
    """Return a thin one: with a pyramid, unless ``variant`` says otherwise."""
    return extreme_weather(
        shape, BOXES, CLASSES, ExtremeWeatherConfig.model_validate(THIN | settings)
    )


def maps_with_boxes(samples: int = 2) -> Batch:
    """Return noise with one to three boxes a map, in which there is something."""
    rng, shape = np.random.default_rng(0), SHAPE
    maps = rng.standard_normal((samples, *shape)).astype(np.float32)
    boxes = np.full((samples, *BOXES), -1, np.int32)
    for sample in range(samples):
        for row in range(1 + sample % 3):
            top, left = rng.integers(0, (shape[0] - 24, shape[1] - 24))
            height, width = rng.integers(8, 24, 2)
            boxes[sample, row] = top, left, top + height, left + width, row % CLASSES
            maps[sample, top : top + height, left : left + width, row % CLASSES] += 3.0
    return Batch({"image": maps, "boxes": boxes}, {"boxes": boxes})
