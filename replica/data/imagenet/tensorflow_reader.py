"""Reader of ImageNet's shards with TensorFlow. No other module of this package imports it.

The samples depend only on the shards, the seed and the epoch. All random numbers are sampled by
``sample_order``, and no result depends on the number of parallel calls. TensorFlow's buffer shuffle
is not used, because its order also depends on the process's global seed, which belongs to the
engine.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple, TypeVar

import numpy as np

from aiperf_hpc.errors import DatasetError
from aiperf_hpc.replica.data import tfrecord
from aiperf_hpc.replica.data.arrays import Normalization
from aiperf_hpc.replica.data.base import WHOLE, Batch, Part, labelled_images, rank_parts
from aiperf_hpc.replica.data.imagenet import sample_order
from aiperf_hpc.replica.data.imagenet.dataset import ImageNetDataset
from aiperf_hpc.replica.data.imagenet.sample_order import ATTEMPTS, MEAN, OPEN_SHARDS, STD
from aiperf_hpc.replica.data.imagenet.stored_image import PPM_SIZE
from aiperf_hpc.replica.data.sharded.dataset import SampleFiles, verify_shards
from aiperf_hpc.replica.tensorflow_import import tf

Tensor = Any
OpError = Any
F = TypeVar("F", bound=Callable[..., Any])

SCALE, SHIFT = Normalization(MEAN, STD).scaling

READ_AHEAD = 4 * sample_order.WINDOW
"""Upper bound of the number of samples that are read ahead of the yielded ones."""

FEATURES = {
    "image/encoded": tf.io.FixedLenFeature([], tf.string),
    "image/class/label": tf.io.FixedLenFeature([], tf.int64),
}
Cut = Callable[[Tensor, Tensor], Tensor]
"""Function from an image and its crop to pixels, (size, size, 3).

An image is a JPEG file as a string, or pixels, uint8 (height, width, 3)."""


def as_written(function: F) -> F:
    """Disable AutoGraph for a function whose control flow does not depend on tensors.

    AutoGraph would write the converted function to a temporary file, which a killed process does
    not remove.
    """
    traced: F = tf.autograph.experimental.do_not_convert(function)
    return traced


def train(
    dataset: ImageNetDataset, epoch: int, batch_size: int, seed: int, part: Part = WHOLE
) -> Iterator[Batch]:
    """Yield the training samples of one epoch in the order of ``sample_order``."""
    files = dataset.training
    together = sample_order.groups(len(files.shards), seed, epoch)
    records = _shuffled(_records(files, together, dataset.parallel), dataset, seed, epoch)
    records = _part(records, dataset.info.train_samples, batch_size, part)
    size = dataset.info.input_shape("image")[0]
    cut = partial(_random, size=size) if dataset.augment else _centre(size)
    return _batches(dataset, _Reading(files, together), records, cut, batch_size, part)


def validation(dataset: ImageNetDataset, batch_size: int, part: Part = WHOLE) -> Iterator[Batch]:
    """Yield the validation samples in the reading order of the shards."""
    files = dataset.held_out
    together = sample_order.grouped(list(range(len(files.shards))))
    records = _records(files, together, dataset.parallel)
    records = records.map(as_written(lambda record: (record, 0.0)))
    records = _part(records, dataset.info.validation_samples, batch_size, part)
    cut = _centre(dataset.info.input_shape("image")[0])
    return _batches(dataset, _Reading(files, together), records, cut, batch_size, part)


def _part(records: Tensor, samples: int, batch_size: int, part: Part) -> Tensor:
    """Select a rank's part of each batch before decoding."""
    if part.ranks == 1:
        return records
    last_batch = samples // batch_size
    full, rest = part.bounds(batch_size), part.bounds(samples % batch_size)

    @as_written
    def is_own(place: Tensor, _: tuple[Tensor, Tensor]) -> Tensor:
        first, last = (
            tf.where(place // batch_size < last_batch, in_full, in_rest)
            for in_full, in_rest in zip(full, rest, strict=True)
        )
        within = tf.cast(place % batch_size, tf.int32)
        return tf.logical_and(within >= first, within < last)

    return records.enumerate().filter(is_own).map(as_written(lambda _, sample: sample))


def _records(files: SampleFiles, together: list[list[int]], parallel: int) -> Tensor:
    """Return a tf.data.Dataset of records that reads the shards of a group in turn."""
    groups = tf.ragged.constant(
        [[str(files.folder / files.shards[shard].file) for shard in group] for group in together]
    )

    @as_written
    def in_turn(paths: Tensor) -> Tensor:
        return tf.data.Dataset.from_tensor_slices(paths).interleave(
            tf.data.TFRecordDataset,
            cycle_length=OPEN_SHARDS,
            block_length=1,
            num_parallel_calls=min(parallel, OPEN_SHARDS),
            deterministic=True,
        )

    return tf.data.Dataset.from_tensor_slices(groups).flat_map(in_turn)


def _shuffled(records: Tensor, dataset: ImageNetDataset, seed: int, epoch: int) -> Tensor:
    """Shuffle the records window by window and add their crops; the next window is
    prefetched."""
    columns = 2 * ATTEMPTS + 3
    drawn = tf.data.Dataset.from_generator(
        lambda: sample_order.windows(
            dataset.info.train_samples, seed, epoch, dataset.min_crop_area
        ),
        output_signature=(
            tf.TensorSpec((None,), tf.int64),
            tf.TensorSpec((None, columns), tf.float32),
        ),
    )

    @as_written
    def shuffle(window: Tensor, draws: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        order, crops = draws
        return tf.gather(window, order), crops

    windows = tf.data.Dataset.zip(records.batch(sample_order.WINDOW), drawn)
    return windows.map(shuffle).prefetch(1).unbatch()


def _batches(
    dataset: ImageNetDataset,
    reading: _Reading,
    records: Tensor,
    cut: Cut,
    batch_size: int,
    part: Part,
) -> Iterator[Batch]:
    @as_written
    def prepared(record: Tensor, crop: Tensor) -> tuple[Tensor, Tensor]:
        features = tf.io.parse_single_example(record, FEATURES)
        encoded = features["image/encoded"]
        pixels = cut(_raw(encoded) if dataset.info.storage_format == "raw" else encoded, crop)
        label = tf.cast(features["image/class/label"], tf.int32)
        return pixels * tf.constant(SCALE) + tf.constant(SHIFT), label

    options = tf.data.Options()
    options.deterministic = True
    options.threading.private_threadpool_size = dataset.parallel
    options.threading.max_intra_op_parallelism = 1
    batches = records.map(prepared, num_parallel_calls=dataset.parallel, deterministic=True)
    first, last = part.bounds(batch_size)
    batches = batches.batch(max(1, last - first)).prefetch(2).with_options(options)
    done = 0
    missing = reading.own_samples(batch_size, part)
    problem = ""
    try:
        for images, labels in batches:
            yield labelled_images(images, labels)
            done += batch_size
            missing -= int(labels.shape[0])
    except tf.errors.OpError as error:
        problem = _line(error)
    if missing and not problem:
        problem = f"{missing} samples are missing"
    # Not within the handler: the iterator would be in a reference cycle with TensorFlow's error.
    # If a thread of the iterator then collects it, it waits for itself and blocks the collector.
    if problem:
        raise reading.failed(dataset.parallel, done, problem)


class _Reading(NamedTuple):
    """Shards being read, to locate a failure, which TensorFlow does not report."""

    files: SampleFiles
    together: list[list[int]]

    def own_samples(self, batch_size: int, part: Part) -> int:
        """Return the number of a rank's samples in all batches."""
        order = np.arange(sum(shard.samples for shard in self.files.shards))
        return sum(map(len, rank_parts(order, batch_size, part)))

    def failed(self, parallel: int, done: int, problem: str) -> DatasetError:
        """Return the error for a failure after ``done`` samples.

        Raises:
            DatasetError: a shard is not the prepared one.
        """
        folder, shards, start = self.files.folder, self.files.shards, 0
        verify_shards(folder, shards, parallel, "imagenet", whole=False)
        for group in self.together:
            end = start + sum(shards[number].samples for number in group)
            # Windows are read ahead of the yielded samples.
            if done < end and start < done + READ_AHEAD:
                for file in (shards[number].file for number in group):
                    if damage := tfrecord.damage(folder / file):
                        problem = f"{file}: {damage}"
                        break
            start = end
        return DatasetError(
            f"dataset 'imagenet': reading {folder} failed: {problem}; prepare it again"
        )


def _raw(encoded: Tensor) -> Tensor:
    """Return the pixels of a PPM file that ``stored_image`` wrote."""
    content = tf.io.decode_raw(encoded, tf.uint8)
    digits = tf.strings.substr([encoded, encoded], [3, 9], [5, 5])
    width, height = tf.unstack(tf.strings.to_number(digits, tf.int32))
    return tf.reshape(content[PPM_SIZE:], (height, width, 3))


def _shape(image: Tensor) -> Tensor:
    """Return the height and width of an image, int32 (2,)."""
    return (tf.io.extract_jpeg_shape(image) if image.dtype == tf.string else tf.shape(image))[:2]


def _random(image: Tensor, crop: Tensor, size: int) -> Tensor:
    """Cut a training crop out of an image, like ``sample_order.random_box``, and resize it."""
    shape = _shape(image)
    height, width = tf.cast(shape[0], tf.float64), tf.cast(shape[1], tf.float64)
    numbers = tf.cast(crop, tf.float64)
    root = tf.sqrt(height * width)
    widths, heights = tf.round(root * numbers[:ATTEMPTS]), tf.round(root * numbers[ATTEMPTS:-3])
    fits = (widths > 0) & (widths <= width) & (heights > 0) & (heights <= height)
    first = tf.argmax(fits)
    tall, wide = (
        tf.where(tf.reduce_any(fits), tried[first], whole)
        for tried, whole in ((heights, height), (widths, width))
    )
    top = tf.floor(numbers[-3] * (height - tall + 1))
    left = tf.floor(numbers[-2] * (width - wide + 1))
    pixels = _resized(image, tf.cast(tf.stack([top, left, tall, wide]), tf.int32), size)
    return tf.cond(crop[-1] < 0.5, lambda: tf.reverse(pixels, [1]), lambda: pixels)


def _centre(size: int) -> Cut:
    """Return the function that cuts the part for validation, like ``sample_order.central_box``."""
    share = size / sample_order.resized_side(size)

    def cut(image: Tensor, crop: Tensor) -> Tensor:
        shape = _shape(image)
        shorter = tf.cast(tf.reduce_min(shape), tf.float64)
        side = tf.maximum(1, tf.cast(tf.round(shorter * share), tf.int32))
        corner = (shape - side) // 2
        return _resized(image, tf.stack([corner[0], corner[1], side, side]), size)

    return cut


def _resized(image: Tensor, window: Tensor, size: int) -> Tensor:
    if image.dtype == tf.string:
        pixels = tf.image.decode_and_crop_jpeg(
            image, window, channels=3, dct_method="INTEGER_ACCURATE"
        )
    else:
        pixels = tf.slice(image, [window[0], window[1], 0], [window[2], window[3], 3])
    return tf.ensure_shape(tf.image.resize(pixels, (size, size)), (size, size, 3))


def _line(error: OpError) -> str:
    """Return the first line of a TensorFlow error, without the name of the operation."""
    return str(error.message).splitlines()[0].split(" [Op:")[0].strip().rstrip(".")
