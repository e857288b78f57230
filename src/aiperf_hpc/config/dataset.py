"""The dataset section of the configuration."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field, model_validator

from aiperf_hpc.config.section import Section
from aiperf_hpc.trial import StorageFormat


class DatasetConfig(Section):
    """Dataset and its preprocessing."""

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
    ] = "imagenet"
    """Dataset. Only runs on imagenet can be VALID."""
    path: Path | None = None
    """Folder created by `aiperf data prepare`."""
    storage_format: StorageFormat = "jpeg"
    """Format of the images in the folder (imagenet only)."""
    augment: bool = True
    """Apply the dataset's standard augmentation in training."""
    min_crop_area: float = Field(0.08, gt=0.0, le=1.0)
    """Minimum fraction of the image area that a random training crop covers (imagenet only)."""
    parallel_transforms: int = Field(48, ge=1, le=1024)
    """Maximum number of samples that are transformed concurrently; at most the number of cores."""
    cache: Literal["none", "memory", "disk"] = "none"
    """Where to copy the dataset before training: nowhere, into the page cache, or to cache_path.
    The time for copying is charged to the run."""
    cache_path: Path | None = None
    """Folder on a local disk of the node, for cache: disk."""
    decoded_cache_gib: float = Field(0.0, ge=0.0, le=65_536.0)
    """Memory in GiB in which a rank keeps decoded images (imagenet and synthetic with engine
    torch)."""
    image_size: int = Field(224, ge=8, le=1024)
    """Height and width in pixels (imagenet and generated images), side in cells (volumes), or
    rows of a 2:3 map (weather)."""
    classes: int = Field(10, ge=2, le=100_000)
    """Number of classes of generated data (synthetic, simulated)."""
    train_samples: int = Field(512, ge=1)
    """Number of training samples of generated data (density, synthetic, simulated, volumes,
    weather)."""
    validation_samples: int = Field(128, ge=1)
    """Number of validation samples of generated data (density, synthetic, simulated, volumes,
    weather)."""

    @model_validator(mode="after")
    def _has_a_place_for_its_copy(self) -> DatasetConfig:
        if (self.cache == "disk") != (self.cache_path is not None):
            raise ValueError(
                "cache disk and cache_path go together: write cache: disk and cache_path: FOLDER, "
                "or neither"
            )
        if self.cache != "none" and self.path is None:
            raise ValueError(f"cache {self.cache} is for a dataset in a folder, and path is none")
        if self.decoded_cache_gib and self.name not in ("imagenet", "synthetic"):
            raise ValueError(
                f"decoded_cache_gib is for the datasets imagenet and synthetic, not '{self.name}'; "
                "leave it out"
            )
        if self.storage_format != "jpeg" and self.name != "imagenet":
            raise ValueError(
                f"storage_format is for the images of imagenet, and the dataset is '{self.name}'; "
                "leave it out"
            )
        return self
