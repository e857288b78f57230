"""The network that a run begins with."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from aiperf_hpc.config.section import Section

MOST_BLOCKS = 256
"""Blocks of a stage: more than the 200 of the deepest residual networks that were published, those
of 1,202 layers (He et al. 2016); four stages of them are a graph of 10,000 nodes."""
Blocks = Annotated[int, Field(ge=1, le=MOST_BLOCKS)]


class ModelConfig(Section):
    """The initial network."""

    initial: Literal["resnet50"] = Field("resnet50", description="what the search begins with")
    stem: Literal["imagenet", "cifar"] = Field(
        "imagenet", description="imagenet: 7x7 stride 2 and max-pool; cifar: 3x3 stride 1"
    )
    base_width: int = Field(64, ge=1, le=1024, description="channels of the stem; 64 is ResNet-50")
    blocks: tuple[Blocks, Blocks, Blocks, Blocks] = Field(
        (3, 4, 6, 3), description="blocks a stage; ResNet-50 has 3, 4, 6 and 3"
    )
