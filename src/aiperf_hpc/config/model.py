"""The model section of the configuration: the initial network."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from aiperf_hpc.config.section import Section

MOST_BLOCKS = 256
"""Maximum number of blocks per stage. The deepest published residual networks (1,202 layers, He et
al. 2016) have 200; four stages of 256 are a graph of 10,000 nodes."""
Blocks = Annotated[int, Field(ge=1, le=MOST_BLOCKS)]


class CosmoFlowConfig(Section):
    """Hyperparameters of CosmoFlow's network; the defaults are those of MLPerf's reference."""

    kernel_size: Literal[2, 3] = 3
    """Kernel size of the convolutions: 3 since MLPerf HPC v1.0, 2 in v0.7."""
    width: int = Field(32, ge=1, le=1024)
    """Channels of the first convolution; each further convolution doubles them."""
    conv_layers: int = Field(5, ge=1, le=8)
    """Number of convolutions; each is followed by a pooling that halves the sides."""
    dropout: float = Field(0.5, ge=0.0, lt=1.0)
    """Dropout rate of the hidden dense layers."""
    l2: float = Field(0.0, ge=0.0, le=1.0)
    """Coefficient of L2 regularization of the hidden dense layers' kernels."""


class DeepCAMConfig(Section):
    """Hyperparameters of DeepCAM's network; the defaults are those of MLPerf's reference."""

    width: int = Field(32, ge=1, le=1024)
    """Channels of the first convolution; all others scale with it."""
    middle_blocks: int = Field(16, ge=0, le=MOST_BLOCKS)
    """Number of 728-channel blocks in the middle flow."""


class ResNet50Config(Section):
    """Hyperparameters of ResNet-50 v1.5 in addition to stem, width and blocks."""

    unused_outputs: int = Field(0, ge=0, le=1000)
    """Outputs beyond the number of classes; the code of HPC AI500 has 1 (1,001 outputs)."""


Sizes = Annotated[
    tuple[Annotated[int, Field(ge=1, le=4096)], ...], Field(min_length=5, max_length=5)
]


class ExtremeWeatherConfig(Section):
    """Hyperparameters of the Faster R-CNN of HPC AI500's Extreme Weather Analytics."""

    variant: Literal["fpn", "c4"] = "fpn"
    """Faster R-CNN variant: a feature pyramid (fpn), or one feature map with a stage for each
    region (c4)."""
    width: int = Field(64, ge=1, le=1024)
    """Channels of the stem; 64 in ResNet-50."""
    blocks: tuple[Blocks, Blocks, Blocks, Blocks] = (3, 4, 6, 3)
    """Residual blocks per stage; 3, 4, 6 and 3 in ResNet-50."""
    fpn_channels: int = Field(256, ge=1, le=4096)
    """Channels of the feature pyramid (fpn only)."""
    box_head_width: int = Field(1024, ge=1, le=65_536)
    """Units of each of the two dense layers (fpn only)."""
    anchors: Sizes = (32, 64, 128, 256, 512)
    """Anchor sizes in pixels: one per pyramid level (fpn), or all at each position (c4)."""
    pre_nms_top_n: int = Field(2000, ge=1, le=100_000)
    """Number of highest-scoring anchors per level before non-maximum suppression."""
    post_nms_top_n: int = Field(2000, ge=1, le=100_000)
    """Number of proposals after non-maximum suppression from which training regions are sampled."""
    regions_per_image: int = Field(512, ge=1, le=10_000)
    """Number of regions of a sample that the second stage processes."""


class ModelConfig(Section):
    """The initial network."""

    initial: Literal["resnet50"] = "resnet50"
    """Initial network of the search."""
    stem: Literal["imagenet", "cifar"] = "imagenet"
    """Stem of the network: 7x7 convolution with stride 2 and max-pooling (imagenet), or 3x3
    convolution with stride 1 (cifar)."""
    base_width: int = Field(64, ge=1, le=1024)
    """Channels of the stem; 64 in ResNet-50."""
    blocks: tuple[Blocks, Blocks, Blocks, Blocks] = (3, 4, 6, 3)
    """Residual blocks per stage; 3, 4, 6 and 3 in ResNet-50."""
    cosmoflow: CosmoFlowConfig = CosmoFlowConfig()
    deepcam: DeepCAMConfig = DeepCAMConfig()
    resnet50: ResNet50Config = ResNet50Config()
    extreme_weather: ExtremeWeatherConfig = ExtremeWeatherConfig()
