"""Images a second of the input pipeline: ours beside plain tf.data and a plain torch DataLoader.

    python tests/fetch_photographs.py PHOTOGRAPHS
    python benchmarks/input_pipeline.py PHOTOGRAPHS [FILE.json]     # tables in Markdown
    python benchmarks/input_pipeline.py --bytes                     # batches: bytes, float32
    python benchmarks/input_pipeline.py PHOTOGRAPHS --kept          # what decoded images save
    python benchmarks/input_pipeline.py PHOTOGRAPHS --stored        # each format of stored images

PHOTOGRAPHS is a folder of JPEG files, at any depth. They are repeated until there are 4,096, in ten
classes, and prepared as ImageNet is. All are read in training: decoded, cropped at random, resized
to 224x224, mirrored, normalised, in batches of 16 float32 images. Each measurement is a process of
its own, with all cores for reading; cases take turns. Its first second or so, until the pipeline is
full, does not count; nothing is done with the batches. On a shared machine images a second depend
on what else is there; processor time, that of worker processes included, does so less.

The peers are written as their frameworks' tutorials and reference trainings do: tf.data reads the
same shards; the DataLoader has a worker process a core and reads the JPEG files with Pillow, with
torchvision's RandomResizedCrop (antialiased, its default). Nothing that they do has a seed.

With ``--wait`` it is not the pipeline alone that is measured: ResNet-50 is trained by the engine
``tensorflow``, and the share of its time that it waits for data is printed.

With ``--bytes`` it is what becomes of a batch of 448 images that were decoded, until the engine
``torch`` can compute on them: bytes that it normalises where it computes, beside float32 that the
host normalises first. On a GPU, where there is one, that is with the pinned copy and the transfer.

With ``--stored`` our readers read each format of ``aiperf data prepare imagenet --stored``.

With ``--kept`` it is the processor time of one image with and without its decoding, which is what
an image that ``dataset.decoded_gib`` keeps costs in the first epoch and in those after it.
"""

from __future__ import annotations

import argparse
import math
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple, get_args

import numpy as np
import psutil
from side_by_side import in_turns, machine, save, spread

from aiperf_hpc.config import DatasetConfig
from aiperf_hpc.replica.data import imagenet, load_dataset
from aiperf_hpc.replica.data.imagenet.sample_order import (
    CROP_AREA,
    CROP_ASPECT,
    MEAN,
    STD,
)
from aiperf_hpc.replica.data.staging import Options
from aiperf_hpc.trial import Stored

IMAGES, CLASSES, SHARDS = 4096, 10, 16
SIZE, BATCH = 224, 16
WHOLE_BATCH = 448
FILLING, MEASURED = 30, 100
"""Batches before the clock is started, and until it is stopped."""
TRAIN_STEPS = 40


def lay_out(
    photographs: Path, folder: Path, images: int = IMAGES, formats: Sequence[Stored] = ("jpeg",)
) -> None:
    """Make a source in ImageNet's layout out of photographs, and prepare it in each format."""
    found = sorted(p for p in photographs.rglob("*") if p.suffix.lower() in (".jpg", ".jpeg"))
    for part, number in (("train", images), ("val", CLASSES)):
        for place in range(number):
            path = folder / "source" / part / f"n{place % CLASSES}" / f"{place}.JPEG"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(found[place % len(found)].read_bytes())
    for stored in formats:
        options = Options(shards=SHARDS, stored=stored, cores=len(os.sched_getaffinity(0)))
        busy = time.process_time()
        imagenet.prepare(folder / "source", folder / stored, options)
        busy = 1e3 * (time.process_time() - busy) / (images + CLASSES)
        print(f"prepared as {stored}: {busy:.3g} processor ms an image", flush=True)


def ours(engine: str, stored: Stored = "jpeg") -> Callable[[Path], Iterator[int]]:
    """Return our reader for an engine: the sizes of its batches."""

    def batches(folder: Path) -> Iterator[int]:
        path = folder / stored
        config = DatasetConfig(name="imagenet", path=path, stored=stored, image_size=SIZE)
        dataset = load_dataset(config, len(os.sched_getaffinity(0)), engine)
        for batch in dataset.train(0, BATCH, 0):
            yield batch.size

    return batches


def plain_tf_data(folder: Path) -> Iterator[int]:
    """Read shards as it is usually written."""
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
    """Read JPEG files as it is usually written."""
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
    """Draw as torchvision's RandomResizedCrop.get_params does."""
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


FORMATS: tuple[Stored, ...] = get_args(Stored)
STORED = {
    f"{stored}, engine {engine}": ours(engine, stored)
    for engine in ("tensorflow", "torch")
    for stored in FORMATS
}
"""Our readers of each format."""


class Rate(NamedTuple):
    """How fast a case is, once its pipeline is full."""

    images: float
    """Images a second and core."""
    processor: float
    """Milliseconds an image, of all processes and threads."""


def rate(batches: Iterator[int]) -> Rate:
    """Measure a case in this process."""
    for _ in range(FILLING):
        next(batches)
    began, busy, images = time.perf_counter(), processor_seconds(), 0
    for _ in range(MEASURED):
        images += next(batches)
    busy, took = processor_seconds() - busy, time.perf_counter() - began
    return Rate(images / took / len(os.sched_getaffinity(0)), 1e3 * busy / images)


def processor_seconds() -> float:
    """Return the processor time so far of this process and of its children."""
    own = psutil.Process()
    times = [each.cpu_times() for each in (own, *own.children(recursive=True))]
    return sum(each.user + each.system for each in times)


def wait(folder: Path) -> float:
    """Train ResNet-50; return the share of the time, in percent, that it waits for data."""
    from aiperf_hpc.morphism.networks.resnet import resnet50
    from aiperf_hpc.morphism.weights.checkpoint import initial_weights
    from aiperf_hpc.replica.engines import load_engine
    from aiperf_hpc.trial import Hyperparameters

    cores = len(os.sched_getaffinity(0))
    config = DatasetConfig(name="imagenet", path=folder / "jpeg", image_size=SIZE)
    graph = resnet50((SIZE, SIZE, 3), CLASSES)
    used = Hyperparameters(batch_size=BATCH, learning_rate=0.01)
    network = load_engine("tensorflow", cores).build(
        graph, initial_weights(graph, np.random.default_rng(0)), used
    )
    batches = load_dataset(config, cores, "tensorflow").train(0, BATCH, 0)
    waited = 0.0
    for step in range(TRAIN_STEPS + 1):
        asked = time.perf_counter()
        batch = next(batches)
        waited += time.perf_counter() - asked
        network.train_step(batch, 0.01)
        if step == 0:
            network.drain_training()
            began, waited = time.perf_counter(), 0.0
    network.drain_training()
    return 100 * waited / (time.perf_counter() - began)


def ready_batches(rounds: int) -> None:
    """Print how long a batch takes from decoded bytes to normalised numbers on the device."""
    import torch

    from aiperf_hpc.replica.data.base import Batch, Pixels, labelled_images
    from aiperf_hpc.replica.data.imagenet.pillow_reader import SCALING
    from aiperf_hpc.replica.engines.torch.device import Feed, keep_freed_memory

    cores = len(os.sched_getaffinity(0))
    torch.set_num_threads(cores)
    keep_freed_memory()  # As the engine does.
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    feed = Feed(device)
    shape = (WHOLE_BATCH, SIZE, SIZE, 3)
    images = np.random.default_rng(0).integers(0, 256, shape, np.uint8)
    pixels, labels = Pixels(images, SCALING), np.zeros(WHOLE_BATCH, np.int32)

    def bring(batch: Batch) -> None:
        feed.inputs(batch, ["image"])
        feed.done()
        if device.type == "cuda":
            torch.cuda.synchronize()

    floats = labelled_images(np.asarray(pixels), labels)
    cases: dict[str, Callable[[], object]] = {
        "float32: normalised by numpy, one core": partial(np.asarray, pixels),
        "float32: brought to the device": partial(bring, floats),
        "bytes: brought to the device and normalised there": partial(
            bring, labelled_images(pixels, labels)
        ),
    }
    found = in_turns({name: partial(milliseconds, case) for name, case in cases.items()}, rounds)
    print(f"{machine()}, {cores} cores, on {device}; {rounds} rounds, median (least to most)\n")
    print(f"| batch of {WHOLE_BATCH} | ms | processor ms |\n|---|---|---|")
    for name, times in found.items():
        wall, processor = zip(*times, strict=True)
        print(f"| {name} | {spread(wall)} | {spread(processor)} |")


def kept_images(photographs: Path, rounds: int) -> None:
    """Print what it takes to decode and cut an image, and to cut one that was decoded."""
    from aiperf_hpc.replica.data.imagenet.decoded_images import PIXEL_BYTES
    from aiperf_hpc.replica.data.imagenet.pillow_reader import colours_of, cut
    from aiperf_hpc.replica.data.imagenet.sample_order import crop_draws

    files = [path.read_bytes() for path in sorted(photographs.rglob("*.jpg"))]
    decoded = [colours_of(file).copy() for file in files]
    crops = crop_draws(len(files), 0)

    def whole() -> None:
        for file, crop in zip(files, crops, strict=True):
            cut(colours_of(file), SIZE, crop)

    def of_kept() -> None:
        for colours, crop in zip(decoded, crops, strict=True):
            cut(colours, SIZE, crop)

    cases: dict[str, Callable[[], object]] = {"decoded and cut": whole, "kept, and cut": of_kept}
    found = in_turns({name: partial(milliseconds, case) for name, case in cases.items()}, rounds)
    held = sum(PIXEL_BYTES * each.width * each.height for each in decoded) / len(decoded)
    print(f"{machine()}; {len(files)} photographs, kept in {held / 2**20:.2f} MiB each;")
    print(f"{rounds} rounds, median (least to most)\n\n| image | processor ms |\n|---|---|")
    for name, times in found.items():
        print(f"| {name} | {spread([busy / len(files) for _, busy in times])} |")


def sizes(folder: Path) -> str:
    """Return the bytes of a training image in each format, in the mean."""
    totals = {f: sum(p.stat().st_size for p in (folder / f).glob("train-*")) for f in FORMATS}
    return ", ".join(f"{stored} {total / IMAGES / 1e3:.3g}" for stored, total in totals.items())


def milliseconds(action: Callable[[], object]) -> tuple[float, float]:
    """Return how long it takes, and how much of the processor."""
    began, busy = time.perf_counter(), time.process_time()
    action()
    return 1e3 * (time.perf_counter() - began), 1e3 * (time.process_time() - busy)


def measured(case: str, folder: Path) -> list[float]:
    """Measure a case in a process of its own."""
    command = [sys.executable, __file__, "--case", case, str(folder)]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, encoding="utf-8")
    return [float(word) for word in done.stdout.splitlines()[-1].split()]


def main() -> None:
    """Measure all, or one case for a process that does."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    parser = argparse.ArgumentParser()
    parser.add_argument("photographs", type=Path, nargs="?")
    parser.add_argument("file", type=Path, nargs="?", help="where to write all figures as JSON")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--wait", action="store_true", help="the trainer's wait for data instead")
    parser.add_argument("--bytes", action="store_true", help="bytes and float32 to the device")
    parser.add_argument("--kept", action="store_true", help="with and without decoding")
    parser.add_argument("--stored", action="store_true", help="each format of stored images")
    parser.add_argument("--case", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.bytes:
        ready_batches(options.rounds)
    elif options.photographs is None:
        parser.error("give a folder of photographs, or --bytes")
    elif options.kept:
        kept_images(options.photographs, options.rounds)
    elif options.case == "wait":
        print(wait(options.photographs))
    elif options.case:
        print(*rate({**CASES, **STORED}[options.case](options.photographs)))
    else:
        with tempfile.TemporaryDirectory() as folder:
            formats = FORMATS if options.stored else ("jpeg",)
            lay_out(options.photographs, Path(folder), formats=formats)
            compare(Path(folder), options)


def compare(folder: Path, options: argparse.Namespace) -> None:
    """Measure in turns and print the tables."""
    names = ["wait"] if options.wait else list(STORED if options.stored else CASES)
    found = in_turns({name: partial(measured, name, folder) for name in names}, options.rounds)
    cores = len(os.sched_getaffinity(0))
    print(f"{machine()}, {cores} cores; {options.rounds} rounds, median (least to most)\n")
    if options.wait:
        shares = [share for (share,) in found["wait"]]
        print(f"waiting for data: {spread(shares)} % of the time of training")
    else:
        images, processor = (
            {name: [one[place] for one in each] for name, each in found.items()} for place in (0, 1)
        )
        print("| reader | images a second and core | processor ms an image |\n|---|---|---|")
        for name in names:
            print(f"| {name} | {spread(images[name])} | {spread(processor[name])} |")
        if options.stored:
            print(f"\nKB an image: {sizes(folder)}")
        else:
            print_ratios(images, processor)
    save(options.file, machine(), found)


def print_ratios(
    images: Mapping[str, Sequence[float]], processor: Mapping[str, Sequence[float]]
) -> None:
    """Print how our readers compare with their peers, round by round."""
    print("\n| ours | peer | images a second: ratio, of each round | per processor second |")
    print("|---|---|---|---|")
    for own, peer in PAIRS:
        faster = [a / b for a, b in zip(images[own], images[peer], strict=True)]
        cheaper = [b / a for a, b in zip(processor[own], processor[peer], strict=True)]
        print(f"| {own} | {peer} | {spread(faster)} | {spread(cheaper)} |")


if __name__ == "__main__":
    main()
