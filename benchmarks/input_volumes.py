"""CosmoFlow's files, and tf.data over them: for benchmarks/workload_input.py.

tf.data is written as the reference has it (records, a parallel map of parse, decode and log1p, a
batch, a prefetch), and with records read in parallel, which the reference does not.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from input_case import FILES, PREPARED, Case, ours

from aiperf_hpc.replica.data import cosmoflow, density
from aiperf_hpc.replica.data.cosmoflow import samples
from aiperf_hpc.replica.data.cosmoflow.samples import Sample
from aiperf_hpc.replica.data.staging import Options

BATCH, DISTINCT, TRAINING = 4, 2, 64


def lay_out(folder: Path, side: int, *, compressed: bool) -> None:
    """Write volumes as TFRecord files, a few of them again and again, and prepare them."""
    made = [samples.written(_sample(n, side), compressed=compressed) for n in range(DISTINCT)]
    for part, number in (("train", TRAINING), ("validation", 1)):
        (folder / FILES / part).mkdir(parents=True)
        for place in range(number):
            path = folder / FILES / part / f"univ_{place:03d}.tfrecord"
            path.write_bytes(made[place % DISTINCT])
    cosmoflow.prepare(folder / FILES, folder / PREPARED, Options(shards=1, cores=2))


def _sample(number: int, side: int) -> Sample:
    targets = density.draw_targets(0, number)
    counts = density.make_counts(targets, side, 0, number)
    return Sample(counts, np.array([*targets, 0.0, 0.0], np.float32))


def tf_data(folder: Path, *, compressed: bool, parallel: bool) -> Iterator[int]:
    """Read the files as mlcommons/hpc, cosmoflow/data/cosmo.py does."""
    from aiperf_hpc.replica.tensorflow_import import tf

    wanted = {
        "x": tf.io.FixedLenFeature([], tf.string),
        "y": tf.io.FixedLenFeature([4], tf.float32),
    }
    files = sorted((folder / FILES / "train").iterdir())
    shape = samples.read(files[0].read_bytes()).counts.shape

    def parsed(record: object) -> tuple[Any, Any]:
        features = tf.io.parse_single_example(record, wanted)
        counts = tf.reshape(tf.io.decode_raw(features["x"], tf.int16), shape)
        return tf.math.log(tf.cast(counts, tf.float32) + 1.0), features["y"]

    records = tf.data.TFRecordDataset(
        tf.data.Dataset.from_tensor_slices(list(map(str, files))).shuffle(len(files)),
        compression_type="GZIP" if compressed else "",
        num_parallel_reads=tf.data.AUTOTUNE if parallel else None,
    )
    batches = records.map(parsed, num_parallel_calls=tf.data.AUTOTUNE).batch(BATCH)
    for volumes, _ in batches.prefetch(4):
        yield int(volumes.shape[0])


def _case(*, compressed: bool) -> Case:
    return Case(
        128,
        BATCH,
        partial(lay_out, compressed=compressed),
        {
            "ours": partial(ours, "cosmoflow", BATCH),
            "tf.data": partial(tf_data, compressed=compressed, parallel=False),
            "tf.data, parallel reads": partial(tf_data, compressed=compressed, parallel=True),
        },
    )


CASES = {"cosmoflow": _case(compressed=False), "cosmoflow-gzip": _case(compressed=True)}
