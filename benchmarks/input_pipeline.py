"""Images per second of the input pipeline, compared with plain tf.data and a torch DataLoader.

    python tests/fetch_photographs.py PHOTOGRAPHS
    python benchmarks/input_pipeline.py PHOTOGRAPHS [FILE.json]     # tables in Markdown
    python benchmarks/input_pipeline.py PHOTOGRAPHS --formats       # each format of stored images

PHOTOGRAPHS is a folder of JPEG files, at any depth. They are repeated until there are 4,096, in ten
classes, and prepared as ImageNet is. All are read in training: decoded, cropped at random, resized
to 224x224, mirrored, normalized, in batches of 16 float32 images. Each measurement is a process of
its own, with all cores for reading; cases take turns. Its first second or so, until the pipeline is
full, does not count; nothing is done with the batches. On a shared machine images a second depend
on what else is there; processor time, that of worker processes included, does so less.

The peers are written as their frameworks' tutorials and reference trainings do: tf.data reads the
same shards; the DataLoader has a worker process a core and reads the JPEG files with Pillow, with
torchvision's RandomResizedCrop (antialiased, its default). Nothing that they do has a seed.

With ``--formats`` our readers read each ``--storage-format`` of ``aiperf data prepare imagenet``.
"""

from __future__ import annotations

import argparse
import math
import os
import random
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import get_args

import numpy as np
from side_by_side import (
    Rate,
    heading,
    in_turns,
    machine,
    rate,
    ratios,
    report,
    row,
    save,
    spread,
    work,
)

from aiperf_hpc.config import DatasetConfig
from aiperf_hpc.replica.data import load_dataset
from aiperf_hpc.replica.data.imagenet.sample_order import (
    CROP_AREA,
    CROP_ASPECT,
    MEAN,
    STD,
)
from aiperf_hpc.replica.data.imagenet.sources import prepare as prepare_imagenet
from aiperf_hpc.replica.data.staging import Options
from aiperf_hpc.trial import StorageFormat

IMAGES, CLASSES, SHARDS = 4096, 10, 16
SIZE, BATCH = 224, 16
FILLING, MEASURED = 30, 100
"""Batches before the clock is started, and until it is stopped."""


def lay_out(
    photographs: Path,
    folder: Path,
    images: int = IMAGES,
    formats: Sequence[StorageFormat] = ("jpeg",),
) -> None:
    """Make a source in ImageNet's layout out of photographs, and prepare it in each format."""
    found = sorted(p for p in photographs.rglob("*") if p.suffix.lower() in (".jpg", ".jpeg"))
    for part, number in (("train", images), ("val", CLASSES)):
        for place in range(number):
            path = folder / "source" / part / f"n{place % CLASSES}" / f"{place}.JPEG"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(found[place % len(found)].read_bytes())
    for stored in formats:
        options = Options(shards=SHARDS, storage_format=stored, cores=len(os.sched_getaffinity(0)))
        busy = time.process_time()
        prepare_imagenet(folder / "source", folder / stored, options)
        busy = 1e3 * (time.process_time() - busy) / (images + CLASSES)
        print(f"prepared as {stored}: {busy:.3g} processor ms per image", flush=True)


def ours(engine: str, stored: StorageFormat = "jpeg") -> Callable[[Path], Iterator[int]]:
    """Return our reader for an engine: the sizes of its batches."""

    def batches(folder: Path) -> Iterator[int]:
        path = folder / stored
        config = DatasetConfig(name="imagenet", path=path, storage_format=stored, image_size=SIZE)
        dataset = load_dataset(config, len(os.sched_getaffinity(0)), engine)
        for batch in dataset.train(0, BATCH, 0):
            yield batch.size

    return batches


def plain_tf_data(folder: Path) -> Iterator[int]:
    """Read shards with a typical tf.data pipeline."""
    from aiperf_hpc.replica.tensorflow_import import tf

    mean, deviation = tf.constant(MEAN), tf.constant(STD)

    def prepared(record: object) -> tuple[object, object]:
        wanted = {
            "image/encoded": tf.io.FixedLenFeature([], tf.string),
            "image/class/label": tf.io.FixedLenFeature([], tf.int64),
        }
        features = tf.io.parse_single_example(record, wanted)
        encoded = features["image/encoded"]
        begin, size, _ = tf.image.sample_distorted_bounding_box(
            tf.io.extract_jpeg_shape(encoded),
            tf.constant([[[0.0, 0.0, 1.0, 1.0]]]),
            min_object_covered=0.1,
            aspect_ratio_range=CROP_ASPECT,
            area_range=CROP_AREA,
            max_attempts=10,
            use_image_if_no_bounding_boxes=True,
        )
        window = tf.stack([begin[0], begin[1], size[0], size[1]])
        image = tf.image.decode_and_crop_jpeg(encoded, window, channels=3)
        image = tf.image.resize(image, (SIZE, SIZE))
        image = tf.image.random_flip_left_right(image)
        return (image - mean) / deviation, features["image/class/label"]

    files = tf.data.Dataset.list_files(str(folder / "jpeg" / "train-*"), shuffle=True)
    batches = (
        files.interleave(
            tf.data.TFRecordDataset,
            cycle_length=SHARDS,
            num_parallel_calls=tf.data.AUTOTUNE,
            deterministic=False,
        )
        .shuffle(1024)
        .map(prepared, num_parallel_calls=tf.data.AUTOTUNE)
        .batch(BATCH)
        .prefetch(tf.data.AUTOTUNE)
    )
    for images, _ in batches:
        yield int(images.shape[0])


def plain_dataloader(folder: Path) -> Iterator[int]:
    """Read JPEG files with a typical DataLoader."""
    import torch
    from PIL import Image
    from torch import Tensor
    from torch.utils.data import DataLoader, Dataset

    mean, deviation = (torch.tensor(v).view(3, 1, 1) / 255 for v in (MEAN, STD))

    class ImageFolder(Dataset[tuple[Tensor, int]]):
        """Like torchvision's, with its transforms for training."""

        def __init__(self) -> None:
            self.files = sorted((folder / "source" / "train").glob("*/*.JPEG"))

        def __len__(self) -> int:
            return len(self.files)

        def __getitem__(self, index: int) -> tuple[Tensor, int]:
            with Image.open(self.files[index]) as file:
                image = file.convert("RGB")
            left, top, width, height = random_crop(*image.size)
            image = image.crop((left, top, left + width, top + height))
            image = image.resize((SIZE, SIZE), Image.Resampling.BILINEAR)
            if random.random() < 0.5:  # noqa: S311 -- not for cryptography
                image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
            pixels = torch.from_numpy(np.array(image)).permute(2, 0, 1).contiguous()
            scaled = pixels.to(torch.float32).div(255)
            return scaled.sub_(mean).div_(deviation), int(self.files[index].parent.name[1:])

    loader = DataLoader(
        ImageFolder(), batch_size=BATCH, shuffle=True, num_workers=len(os.sched_getaffinity(0))
    )
    for images, _ in loader:
        yield int(images.shape[0])


def random_crop(width: int, height: int) -> tuple[int, int, int, int]:
    """Sample a crop as torchvision's RandomResizedCrop.get_params does."""
    low, high = (math.log(ratio) for ratio in CROP_ASPECT)
    for _ in range(10):
        area = width * height * random.uniform(*CROP_AREA)  # noqa: S311
        aspect = math.exp(random.uniform(low, high))  # noqa: S311
        wide, tall = round(math.sqrt(area * aspect)), round(math.sqrt(area / aspect))
        if 0 < wide <= width and 0 < tall <= height:
            left, top = random.randint(0, width - wide), random.randint(0, height - tall)  # noqa: S311
            return left, top, wide, tall
    return 0, 0, width, height


CASES: dict[str, Callable[[Path], Iterator[int]]] = {
    "aiperf, engine tensorflow": ours("tensorflow"),
    "plain tf.data": plain_tf_data,
    "aiperf, engine torch": ours("torch"),
    "plain torch DataLoader": plain_dataloader,
}
PAIRS = (
    ("aiperf, engine tensorflow", "plain tf.data"),
    ("aiperf, engine torch", "plain torch DataLoader"),
)


FORMATS: tuple[StorageFormat, ...] = get_args(StorageFormat)
STORED = {
    f"{stored}, engine {engine}": ours(engine, stored)
    for engine in ("tensorflow", "torch")
    for stored in FORMATS
}
"""Our readers of each format."""


def sizes(folder: Path) -> str:
    """Return the mean bytes of a training image in each format."""
    totals = {f: sum(p.stat().st_size for p in (folder / f).glob("train-*")) for f in FORMATS}
    return ", ".join(f"{stored} {total / IMAGES / 1e3:.3g}" for stored, total in totals.items())


def main() -> None:
    """Measure all, or one case for a process that does."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("photographs", type=Path)
    parser.add_argument("file", type=Path, nargs="?", help="where to write all figures as JSON")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--formats", action="store_true", help="each format of stored images")
    parser.add_argument("--work", metavar="CASE", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.work:
        batches = {**CASES, **STORED}[options.work](options.photographs)
        report(rate(batches, FILLING, MEASURED))
        return
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        lay_out(options.photographs, folder, formats=FORMATS if options.formats else ("jpeg",))
        cases = STORED if options.formats else CASES
        turns = {case: partial(work, __file__, case, folder) for case in cases}
        cores = len(os.sched_getaffinity(0))
        found = {
            case: [Rate(samples / cores, processor) for samples, processor in rates]
            for case, rates in in_turns(turns, options.rounds).items()
        }
        print(f"{machine()}, {cores} cores; {options.rounds} rounds, median (least to most)\n")
        show(found)
        if options.formats:
            print(f"\nKB an image: {sizes(folder)}")
        else:
            compare(found)
    save(options.file, machine(), found)


def show(found: Mapping[str, Sequence[Rate]]) -> None:
    """Print the rates."""
    heading("reader", "images per second and core", "processor ms per image")
    for name, rates in found.items():
        row(name, spread([r.samples for r in rates]), spread([r.processor for r in rates]))


def compare(found: Mapping[str, Sequence[Rate]]) -> None:
    """Print how our readers compare with their peers, round by round."""
    print()
    heading("ours", "peer", "images a second: ratio, of each round", "per processor second")
    for own, peer in PAIRS:
        ours, theirs = found[own], found[peer]
        faster = ratios([r.samples for r in ours], [r.samples for r in theirs])
        cheaper = ratios([r.processor for r in theirs], [r.processor for r in ours])
        row(own, peer, faster, cheaper)


if __name__ == "__main__":
    main()
