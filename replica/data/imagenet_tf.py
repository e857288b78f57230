"""Writing and reading ImageNet's shards with TensorFlow. The one module here that imports it.

What is read depends on the shards, the seed and the epoch alone. Every random number of a
sample comes from a stateless generator keyed by (seed, epoch, the sample's place in the shards),
and no step's outcome depends on how many calls run at once. TensorFlow's own buffer shuffle is
not used: its order depends on the process's global seed as well, which is the engine's to set.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from aiperf_hpc.errors import DatasetError
from aiperf_hpc.replica.data import draws
from aiperf_hpc.replica.data.base import WHOLE, Batch, Part
from aiperf_hpc.replica.data.draws import Purpose
from aiperf_hpc.replica.data.imagenet_shards import Shard

if TYPE_CHECKING:
    from aiperf_hpc.replica.data.imagenet import ImageNetDataset

MEAN = (123.675, 116.28, 103.53)
"""Of the red, green and blue training pixels, 0 to 255: 0.485, 0.456 and 0.406 of 255, the
values in general use for ILSVRC 2012."""
STD = (58.395, 57.12, 57.375)
"""Their standard deviations: 0.229, 0.224 and 0.225 of 255."""

RESIZED_RATIO = 256 / 224
"""In validation the shorter side is resized to this multiple of the image size."""

CROP_AREA = (0.08, 1.0)
"""Share of the image that a training crop covers (Szegedy et al., 2015)."""
CROP_ASPECT = (3 / 4, 4 / 3)
"""Width over height of a training crop."""

OPEN_SHARDS = 16
"""Shards read at once. Fixed, since the order depends on it."""
WINDOW = 2048
"""Records shuffled together; about 230 MB of ImageNet, of which three are in memory at once."""

Tensor = Any
OpError = Any
Features = dict[str, Tensor]
Prepared = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]


def write_shard(path: Path, records: Iterable[tuple[bytes, int, str]]) -> None:
    """Write a TFRecord file of (JPEG bytes, label, name).

    Raises:
        DatasetError: the file cannot be written.
    """
    try:
        with tf.io.TFRecordWriter(str(path)) as writer:
            for encoded, label, name in records:
                writer.write(_example(encoded, label, name))
    except tf.errors.OpError as error:
        raise DatasetError(f"cannot write {path}: {_line(error)}") from None


def check_decodes(encoded: bytes) -> None:
    """Decode an image as it is decoded when it is read. Raises ValueError when that fails."""
    try:
        tf.io.decode_jpeg(encoded, channels=3)
    except tf.errors.InvalidArgumentError as error:
        raise ValueError(_line(error)) from None


def train(
    dataset: ImageNetDataset, epoch: int, batch_size: int, seed: int, part: Part = WHOLE
) -> Iterator[Batch]:
    """Yield the training samples of one epoch: shards in a drawn order, 16 of them interleaved,
    records shuffled in windows."""
    shards = dataset.index.train
    order = draws.permutation(len(shards), Purpose.SHARDS, seed, epoch).tolist()
    records = _records(dataset, shards, order)
    records = _shuffled(records, draws.seed(Purpose.WINDOWS, seed, epoch))
    size = dataset.info.sample_shape[0]
    crop_seed = draws.seed(Purpose.CROP, seed, epoch)
    mirror_seed = draws.seed(Purpose.MIRROR, seed, epoch)

    def prepared(index: Tensor, record: Tensor) -> tuple[Tensor, Tensor]:
        features = _features(record)
        encoded = features["image/encoded"]
        if not dataset.augment:
            return _normalised(_central(encoded, size)), features["image/class/label"]
        crop = _random_crop(encoded, size, tf.stack([crop_seed, index]))
        mirrored = tf.image.stateless_random_flip_left_right(crop, tf.stack([mirror_seed, index]))
        return _normalised(mirrored), features["image/class/label"]

    records = _part(records, dataset.info.train_samples, batch_size, part)
    return _batches(dataset, records, prepared, _part_size(batch_size, part))


def validation(dataset: ImageNetDataset, batch_size: int, part: Part = WHOLE) -> Iterator[Batch]:
    """Yield the validation samples: 16 shards interleaved in a fixed order."""
    shards = dataset.index.validation
    size = dataset.info.sample_shape[0]

    def prepared(index: Tensor, record: Tensor) -> tuple[Tensor, Tensor]:
        del index
        features = _features(record)
        return _normalised(_central(features["image/encoded"], size)), features["image/class/label"]

    records = _records(dataset, shards, list(range(len(shards))))
    records = _part(records, dataset.info.validation_samples, batch_size, part)
    return _batches(dataset, records, prepared, _part_size(batch_size, part))


def _part(records: Tensor, samples: int, batch_size: int, part: Part) -> Tensor:
    """Leave only a rank's part of each batch, before anything is decoded."""
    if part.ranks == 1:
        return records
    last_batch = samples // batch_size
    full, rest = part.bounds(batch_size), part.bounds(samples % batch_size)

    def is_own(place: Tensor, _: Tensor) -> Tensor:
        first, last = (
            tf.where(place // batch_size < last_batch, in_full, in_rest)
            for in_full, in_rest in zip(full, rest, strict=True)
        )
        within = tf.cast(place % batch_size, tf.int32)
        return tf.logical_and(within >= first, within < last)

    return records.enumerate().filter(is_own).map(lambda _, record: record)


def _part_size(batch_size: int, part: Part) -> int:
    """Return how many samples a rank has in a full batch; batches of such are its parts."""
    first, last = part.bounds(batch_size)
    return max(1, last - first)


def _example(encoded: bytes, label: int, name: str) -> bytes:
    feature = tf.train.Feature
    text = name.encode("utf-8", "surrogateescape")
    features = {
        "image/encoded": feature(bytes_list=tf.train.BytesList(value=[encoded])),
        "image/class/label": feature(int64_list=tf.train.Int64List(value=[label])),
        "image/filename": feature(bytes_list=tf.train.BytesList(value=[text])),
    }
    example = tf.train.Example(features=tf.train.Features(feature=features))
    serialized: bytes = example.SerializeToString()
    return serialized


def _features(record: Tensor) -> Features:
    wanted = {
        "image/encoded": tf.io.FixedLenFeature([], tf.string),
        "image/class/label": tf.io.FixedLenFeature([], tf.int64),
    }
    features: Features = tf.io.parse_single_example(record, wanted)
    return features | {"image/class/label": tf.cast(features["image/class/label"], tf.int32)}


def _records(dataset: ImageNetDataset, shards: tuple[Shard, ...], order: list[int]) -> Tensor:
    """Return a tf.data.Dataset of (index of the sample, record), the shards in this order."""
    files = [str(dataset.folder / shards[place].file) for place in order]
    starts = [0, *accumulate(shard.samples for shard in shards)]
    first = tf.constant([starts[place] for place in order], tf.int64)
    return tf.data.Dataset.from_tensor_slices((files, first)).interleave(
        lambda file, start: tf.data.TFRecordDataset(file).enumerate(start),
        cycle_length=OPEN_SHARDS,
        block_length=1,
        num_parallel_calls=min(dataset.parallel, OPEN_SHARDS),
        deterministic=True,
    )


def _shuffled(records: Tensor, seed: int) -> Tensor:
    """Shuffle window after window; the next one is read while one is used up."""

    def shuffle(window: Tensor, content: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        indices, encoded = content
        keys = tf.random.stateless_uniform(
            tf.shape(indices), tf.stack([tf.constant(seed, tf.int64), window]), alg="philox"
        )
        order = tf.argsort(keys, stable=True)
        return tf.gather(indices, order), tf.gather(encoded, order)

    return records.batch(WINDOW).enumerate().map(shuffle).prefetch(1).unbatch()


def _batches(
    dataset: ImageNetDataset, records: Tensor, prepared: Prepared, batch_size: int
) -> Iterator[Batch]:
    options = tf.data.Options()
    options.deterministic = True
    options.threading.private_threadpool_size = dataset.parallel
    options.threading.max_intra_op_parallelism = 1
    batches = records.map(prepared, num_parallel_calls=dataset.parallel, deterministic=True)
    batches = batches.batch(batch_size).prefetch(2).with_options(options)
    try:
        for inputs, labels in batches:
            yield Batch(inputs, labels)
    except tf.errors.OpError as error:
        raise DatasetError(
            f"dataset 'imagenet': reading the shards in {dataset.folder} failed: {_line(error)}; "
            "to find a damaged one: python -m aiperf_hpc.replica.data describe imagenet --verify "
            f"--path {dataset.folder}"
        ) from None


def _random_crop(encoded: Tensor, size: int, seed: Tensor) -> Tensor:
    """Decode a random part of an image and resize it to float32 (size, size, 3)."""
    shape = tf.io.extract_jpeg_shape(encoded)
    corner, extent, _ = tf.image.stateless_sample_distorted_bounding_box(
        shape,
        tf.constant([[[0.0, 0.0, 1.0, 1.0]]]),
        seed,
        min_object_covered=0.0,
        aspect_ratio_range=CROP_ASPECT,
        area_range=CROP_AREA,
        max_attempts=10,
    )
    window = tf.stack([corner[0], corner[1], extent[0], extent[1]])
    return _resized(encoded, window, size)


def _central(encoded: Tensor, size: int) -> Tensor:
    """Resize an image's shorter side to 256/224 of ``size`` and crop its centre.

    The part that will be the centre is cut out first, to the pixel, and it alone is resized: the
    same result for less work.
    """
    shape = tf.io.extract_jpeg_shape(encoded)[:2]
    shorter = tf.cast(tf.reduce_min(shape), tf.float64)
    share = size / round(size * RESIZED_RATIO)
    side = tf.maximum(1, tf.cast(tf.round(shorter * share), tf.int32))
    corner = (shape - side) // 2
    return _resized(encoded, tf.stack([corner[0], corner[1], side, side]), size)


def _resized(encoded: Tensor, window: Tensor, size: int) -> Tensor:
    pixels = tf.image.decode_and_crop_jpeg(
        encoded, window, channels=3, dct_method="INTEGER_ACCURATE"
    )
    return tf.ensure_shape(tf.image.resize(pixels, (size, size)), (size, size, 3))


def _normalised(pixels: Tensor) -> Tensor:
    return (pixels - tf.constant(MEAN)) / tf.constant(STD)


def _line(error: OpError) -> str:
    """Return the first line of a TensorFlow error, without the name of the operation."""
    return str(error.message).splitlines()[0].split(" [Op:")[0].strip().rstrip(".")
