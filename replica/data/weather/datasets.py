"""Datasets of synthetic weather: with bounding boxes or with masks of its phenomena.

Boxes and channels have the format and order of the ExtremeWeather dataset (Racah et al. 2017):
first row, first column, the row after the last and the column after the last, class; -1 in unused
rows. Longitude is periodic, but boxes are not: a phenomenon across the seam has a box on the side
of its center. Masks and their channels have the format of DeepCAM.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from aiperf_hpc.config import DatasetConfig
from aiperf_hpc.errors import DatasetError
from aiperf_hpc.replica.data import generated
from aiperf_hpc.replica.data.base import Batch
from aiperf_hpc.replica.data.weather import phenomena
from aiperf_hpc.replica.data.weather.fields import FORMULA, field_words, make_fields
from aiperf_hpc.trial import DatasetInfo, TensorSpec

BOX_CHANNELS = (
    "PRECT", "PS", "PSL", "QREFHT", "T200", "T500", "TMQ", "TREFHT",
    "TS", "U850", "UBOT", "V850", "VBOT", "Z100", "Z200", "ZBOT",
)  # fmt: skip
MOST_BOXES = 15
"""Number of box rows per sample, as in the ExtremeWeather dataset."""
NONE = -1
"""Value in unused box rows."""
MASK_CHANNELS = (
    "TMQ", "U850", "V850", "UBOT", "VBOT", "QREFHT", "PS", "PSL",
    "T200", "T500", "PRECT", "TS", "TREFHT", "Z1000", "Z200", "ZBOT",
)  # fmt: skip
CLASSES = {phenomena.Kind.RIVER: 2, phenomena.Kind.CYCLONE: 1}
"""Number of classes in a mask; 0 is the background. Cells of both phenomena have the last."""

Integers = NDArray[np.int32]


class Labels(NamedTuple):
    """The labels of a dataset's phenomena."""

    name: str
    """Name of the labels' array."""
    spec: TensorSpec
    make: Callable[[Sequence[phenomena.Phenomenon], Sequence[phenomena.Mask]], Integers]
    """Returns a sample's labels from its phenomena and the cells of each of them."""
    read: bool
    """Whether the network also reads the labels in training, in addition to the loss."""
    classes: int | None = None
    """Number of classes if each cell has a class."""


def load_boxes(config: DatasetConfig, cores: int) -> generated.GeneratedDataset:
    """Return a dataset of maps, float32 (size, 3/2 size, 16), and boxes, int32 (15, 5)."""
    # One core suffices: it generates about 20 maps of 96 rows per second, each only once.
    spec = TensorSpec(shape=(MOST_BOXES, 5), dtype="int32")
    return _load(config, BOX_CHANNELS, Labels("boxes", spec, boxes, read=True), weaker=True)


def load_masks(config: DatasetConfig, cores: int) -> generated.GeneratedDataset:
    """Return a dataset of maps, float32 (size, 3/2 size, 16), and masks, int32 (size, 3/2 size)."""
    spec = TensorSpec(shape=(config.image_size, config.image_size * 3 // 2), dtype="int32")
    labels = Labels("mask", spec, mask, read=False, classes=1 + len(CLASSES))
    return _load(config, MASK_CHANNELS, labels, weaker=False)


def boxes(planted: Sequence[phenomena.Phenomenon], marked: Sequence[phenomena.Mask]) -> Integers:
    """Return the boxes of a sample, int32 (15, 5)."""
    found = np.full((MOST_BOXES, 5), NONE, np.int32)
    for row, each, cells in zip(found, planted, marked, strict=False):
        row[:] = (*box(cells, each.along / phenomena.AROUND), int(each.kind))
    return found


def box(cells: phenomena.Mask, middle: float) -> tuple[int, int, int, int]:
    """Return the box of marked cells, (top, left, bottom, right), excluding bottom and right.

    Args:
        cells: mask of marked cells, (height, width).
        middle: center of the phenomenon as a fraction of the width; columns are unwrapped around
            it and clipped at the seam.
    """
    width = cells.shape[1]
    rows, columns = (np.flatnonzero(cells.any(axis)) for axis in (1, 0))
    first = round(middle % 1.0 * width) - width // 2
    near = (columns - first) % width + first
    left, right = max(0, int(near.min())), min(width, int(near.max()) + 1)
    return int(rows[0]), left, int(rows[-1]) + 1, right


def mask(planted: Sequence[phenomena.Phenomenon], marked: Sequence[phenomena.Mask]) -> Integers:
    """Return each cell's class, int32 (height, width)."""
    found = np.zeros(marked[0].shape, np.int32)
    for kind, number in CLASSES.items():
        for each, cells in zip(planted, marked, strict=True):
            if each.kind is kind:
                found[cells] = number
    return found


def _load(
    config: DatasetConfig, channels: Sequence[str], labels: Labels, *, weaker: bool
) -> generated.GeneratedDataset:
    """Return a dataset of weather.

    Args:
        config: settings of the dataset; ``image_size`` is the number of rows of a map.
        channels: names of the fields, in their order.
        labels: labels of the phenomena.
        weaker: see ``phenomena.draw``.

    Raises:
        DatasetError: the number of rows is odd.
    """
    height = config.image_size
    if height % 2:
        raise DatasetError(
            f"dataset.image_size={height}: {config.name} has maps that are half as wide "
            "again as they are high; use an even number"
        )
    image = TensorSpec(shape=(height, height * 3 // 2, len(channels)))
    info = DatasetInfo(
        name=config.name,
        sha256=weather_sha256(config, channels, weaker=weaker),
        inputs={"image": image} | ({labels.name: labels.spec} if labels.read else {}),
        targets={labels.name: labels.spec},
        classes=labels.classes,
        train_samples=config.train_samples,
        validation_samples=config.validation_samples,
    )

    def make_sample(part: int, sample: int) -> tuple[NDArray[np.float16], Integers]:
        planted = phenomena.draw(part, sample, weaker=weaker)
        fields, marked = make_fields(channels, height, part, sample, planted)
        return fields.astype(np.float16), labels.make(planted, marked)

    cache = generated.SampleCache(make_sample, height * (height * 3 // 2) * len(channels) * 2)

    def make(part: int, chosen: NDArray[np.intp]) -> Batch:
        samples = [cache.get(part, each) for each in chosen.tolist()]
        fields, found = (np.stack(each) for each in zip(*samples, strict=True))
        image = {"image": fields.astype(np.float32)}
        inputs = image | ({labels.name: found} if labels.read else {})
        return Batch(inputs, {labels.name: found})

    return generated.GeneratedDataset(info, make)


def weather_sha256(config: DatasetConfig, channels: Sequence[str], *, weaker: bool) -> str:
    """Return the SHA-256 of the inputs that determine all samples.

    It covers the formulas' version, rows and numbers of samples, whether there are weaker
    phenomena, the channels' names, and the random words of the first samples' phenomena and first
    fields (see ``generated.content_sha256``).
    """
    cells = config.image_size * (config.image_size * 3 // 2)
    counts = (config.train_samples, config.validation_samples)
    return generated.content_sha256(
        (FORMULA, config.image_size, *counts, int(weaker), *channels),
        config.train_samples,
        lambda sample: (
            phenomena.phenomenon_words(generated.TRAINING, sample),
            field_words(channels[0], cells, generated.TRAINING, sample),
        ),
    )
