"""Which samples are trained on."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field, model_validator

from aiperf_hpc.config.section import Section
from aiperf_hpc.trial import Stored


class DatasetConfig(Section):
    """Which samples are trained on, and how they are prepared."""

    name: Literal[
        "digits",
        "cifar10",
        "cosmoflow",
        "deepcam",
        "density",
        "extremeweather",
        "imagenet",
        "simulated",
        "synthetic",
        "volumes",
        "weather_boxes",
        "weather_masks",
    ] = Field("imagenet", description="the dataset; only imagenet's runs can be VALID")
    path: Path | None = Field(None, description="folder made by `aiperf data prepare`")
    stored: Stored = Field("jpeg", description="format in which the folder stores images; imagenet")
    augment: bool = Field(True, description="the dataset's standard augmentation in training")
    least_crop: float = Field(
        0.08, gt=0.0, le=1.0, description="least share of an image that a training crop covers; "
        "imagenet"
    )  # fmt: skip
    parallel_transforms: int = Field(48, ge=1, le=1024, description="bounded by the cores")
    cache: Literal["none", "memory", "disk"] = Field(
        "none",
        description="what the folder is brought to first: the page cache, or cache_path; takes "
        "time of the run",
    )
    cache_path: Path | None = Field(None, description="folder on a disk of the node")
    decoded_gib: float = Field(
        0.0,
        ge=0.0,
        le=65_536.0,
        description="decoded images a rank keeps in memory; imagenet and synthetic, engine torch",
    )
    image_size: int = Field(
        224,
        ge=8,
        le=1024,
        description="imagenet and made-up, pixels or cells a side; weather: rows, for 1.5 columns",
    )
    classes: int = Field(
        10, ge=2, le=100_000, description="made-up data only: synthetic, simulated"
    )
    train_samples: int = Field(
        512, ge=1, description="made-up data only: density, synthetic, simulated, volumes, weather"
    )
    validation_samples: int = Field(
        128, ge=1, description="made-up data only: density, synthetic, simulated, volumes, weather"
    )

    @model_validator(mode="after")
    def _has_a_place_for_its_copy(self) -> DatasetConfig:
        if (self.cache == "disk") != (self.cache_path is not None):
            raise ValueError(
                "cache disk and cache_path go together: write cache: disk and cache_path: FOLDER, "
                "or neither"
            )
        if self.cache != "none" and self.path is None:
            raise ValueError(f"cache {self.cache} is for a dataset in a folder, and path is none")
        if self.decoded_gib and self.name not in ("imagenet", "synthetic"):
            raise ValueError(
                f"decoded_gib is for the datasets imagenet and synthetic, not '{self.name}'; "
                "leave it out"
            )
        if self.stored != "jpeg" and self.name != "imagenet":
            raise ValueError(
                f"stored is a format of imagenet's images, and the dataset is '{self.name}'; leave "
                "it out"
            )
        return self
