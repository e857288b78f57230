"""The network that a run begins with."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from aiperf_hpc.config.section import Section

MOST_BLOCKS = 256
"""Blocks of a stage: more than the 200 of the deepest residual networks that were published, those
of 1,202 layers (He et al. 2016); four stages of them are a graph of 10,000 nodes."""
Blocks = Annotated[int, Field(ge=1, le=MOST_BLOCKS)]


class CosmoFlowConfig(Section):
    """What there is to choose of CosmoFlow's network; the defaults are the reference's."""

    kernel: Literal[2, 3] = Field(
        3, description="cells a side of the convolutions: 3 since v1.0 of MLPerf HPC, 2 in v0.7"
    )
    width: int = Field(
        32, ge=1, le=1024, description="channels of the first convolution, doubled by each further"
    )
    convolutions: int = Field(5, ge=1, le=8, description="each halves the volume's sides")
    dropout: float = Field(
        0.5, ge=0.0, lt=1.0, description="share of the hidden dense layers' outputs"
    )
    l2: float = Field(
        0.0,
        ge=0.0,
        le=1.0,
        description="times the squares of the hidden dense layers' kernels, in what is minimized",
    )


class DeepCAMConfig(Section):
    """What there is to choose of DeepCAM's network; the defaults are the reference's."""

    width: int = Field(
        32,
        ge=1,
        le=1024,
        description="channels of the first convolution; all others are in proportion",
    )
    middle_blocks: int = Field(
        16, ge=0, le=MOST_BLOCKS, description="blocks of 728 channels between entry and exit"
    )


class ResNet50Config(Section):
    """What there is to choose of ResNet-50 v1.5 besides stem, width and blocks."""

    spare_outputs: int = Field(
        0, ge=0, le=1000, description="behind those of the classes; HPC AI500's code has 1 of 1,001"
    )


Sizes = Annotated[
    tuple[Annotated[int, Field(ge=1, le=4096)], ...], Field(min_length=5, max_length=5)
]


class ExtremeWeatherConfig(Section):
    """What there is to choose of Extreme Weather Analytics' Faster R-CNN."""

    variant: Literal["fpn", "c4"] = Field(
        "fpn", description="fpn: features of five strides; c4: of one, and a stage for each region"
    )
    width: int = Field(64, ge=1, le=1024, description="channels of the stem; 64 is ResNet-50")
    blocks: tuple[Blocks, Blocks, Blocks, Blocks] = Field(
        (3, 4, 6, 3), description="blocks a stage; ResNet-50 has 3, 4, 6 and 3"
    )
    pyramid: int = Field(256, ge=1, le=4096, description="fpn: channels of its features")
    hidden: int = Field(1024, ge=1, le=65_536, description="fpn: units of both dense layers")
    anchors: Sizes = Field((32, 64, 128, 256, 512), description="sides in pixels, five of them")
    proposals: int = Field(
        2000, ge=1, le=100_000, description="anchors a level that are compared with each other"
    )
    kept: int = Field(
        2000, ge=1, le=100_000, description="boxes among which regions are drawn in training"
    )
    regions: int = Field(
        512, ge=1, le=10_000, description="boxes of each sample that the second stage looks at"
    )


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
    cosmoflow: CosmoFlowConfig = CosmoFlowConfig()
    deepcam: DeepCAMConfig = DeepCAMConfig()
    resnet50: ResNet50Config = ResNet50Config()
    extreme_weather: ExtremeWeatherConfig = ExtremeWeatherConfig()
