"""Datasets of weather: what both have in common."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from aiperf_hpc.config import DatasetConfig
from aiperf_hpc.errors import DatasetError
from aiperf_hpc.replica.data.base import Batch
from aiperf_hpc.replica.data.generated import TRAINING, GeneratedDataset
from aiperf_hpc.replica.data.weather.fields import FORMULA, field_words, make_fields
from aiperf_hpc.replica.data.weather.phenomena import (
    Floats,
    Mask,
    Phenomenon,
    draw,
    phenomenon_words,
)
from aiperf_hpc.trial import DatasetInfo, TensorSpec

IMAGE = "image"
KEPT_BYTES = 1 << 30
"""Fields that are kept in memory, at most; what is more is made anew in each epoch."""
_DIGEST_SAMPLES = 64

Integers = NDArray[np.int32]


class Marks(NamedTuple):
    """How a dataset tells what was planted in a sample."""

    name: str
    """Of the array that does."""
    spec: TensorSpec
    make: Callable[[Sequence[Phenomenon], Sequence[Mask]], Integers]
    """Takes what was planted, and the cells that each is marked in."""
    read: bool
    """Whether networks read it in training too, and not only the loss."""
    classes: int | None = None
    """Of what each cell has one."""


class _Sample(NamedTuple):
    fields: NDArray[np.float16]
    marks: Integers


def height_of(config: DatasetConfig) -> int:
    """Return the rows of a map. Raises DatasetError unless a map can be half as wide again."""
    if config.image_size % 2:
        raise DatasetError(
            f"dataset.image_size={config.image_size}: {config.name} has maps that are half as wide "
            "again as they are high; use an even number"
        )
    return config.image_size


def load_weather(
    config: DatasetConfig, channels: Sequence[str], marks: Marks, *, weaker: bool
) -> GeneratedDataset:
    """Return a dataset of weather.

    Args:
        config: with the rows of a map as ``image_size``.
        channels: the fields, in their order.
        marks: how it tells what was planted.
        weaker: as ``phenomena.draw``.
    """
    height = height_of(config)
    image = TensorSpec(shape=(height, height * 3 // 2, len(channels)))
    info = DatasetInfo(
        name=config.name,
        sha256=content_sha256(config, channels, weaker=weaker),
        inputs={IMAGE: image} | ({marks.name: marks.spec} if marks.read else {}),
        targets={marks.name: marks.spec},
        classes=marks.classes,
        train_samples=config.train_samples,
        validation_samples=config.validation_samples,
    )
    kept: dict[tuple[int, int], _Sample] = {}
    most = KEPT_BYTES // (height * (height * 3 // 2) * len(channels) * 2)

    def made(part: int, sample: int) -> _Sample:
        found = kept.get((part, sample))
        if found is None:
            planted = draw(part, sample, weaker=weaker)
            fields, marked = make_fields(channels, height, part, sample, planted)
            found = _Sample(fields.astype(np.float16), marks.make(planted, marked))
            if len(kept) < most:
                kept[part, sample] = found
        return found

    def make(part: int, chosen: NDArray[np.intp]) -> Batch:
        samples = [made(part, each) for each in chosen.tolist()]
        fields: Floats = np.stack([each.fields for each in samples]).astype(np.float32)
        told = np.stack([each.marks for each in samples])
        inputs = {IMAGE: fields} | ({marks.name: told} if marks.read else {})
        return Batch(inputs, {marks.name: told})

    return GeneratedDataset(info, make)


def content_sha256(config: DatasetConfig, channels: Sequence[str], *, weaker: bool) -> str:
    """Return the SHA-256 of what all samples follow from.

    Taken over the formulas' version, rows and numbers of samples, whether there are weaker
    phenomena (as ASCII decimals, each ended by a newline), the channels' names (each ended so), and
    the random words behind the first 64 training samples. Not over the fields: the last bits of a
    Fourier transform differ between machines.
    """
    numbers = (FORMULA, config.image_size, config.train_samples, config.validation_samples, weaker)
    lines = [f"{number:d}\n" for number in numbers] + [f"{name}\n" for name in channels]
    digest = hashlib.sha256("".join(lines).encode())
    cells = config.image_size * (config.image_size * 3 // 2)
    for sample in range(min(_DIGEST_SAMPLES, config.train_samples)):
        digest.update(phenomenon_words(TRAINING, sample).astype("<u8").tobytes())
        digest.update(field_words(channels[0], cells, TRAINING, sample).tobytes())
    return digest.hexdigest()
