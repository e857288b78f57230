"""CosmoFlow's volumes: TensorFlow's own code writes and reads the same files."""

from __future__ import annotations

import gzip
import io
import shutil
from pathlib import Path

import numpy as np
import pytest
from tests.support.damage import Damage
from tests.support.official_files import of_floats, sample_file, volume, write_volumes
from tests.support.refusals import refused

from aiperf_hpc.config import DatasetConfig
from aiperf_hpc.replica.data import cosmoflow, load_dataset
from aiperf_hpc.replica.data.cosmoflow import Sample, logarithms, read_sample
from aiperf_hpc.replica.data.tfrecord import example, of_bytes, of_integer, write_record
from aiperf_hpc.replica.tensorflow_import import tf

PLAIN, GZIP = False, True
PARAMETERS = (0.5, -1.0, 1.0, 0.25)


def a_sample(side: int = 4, seed: int = 0) -> Sample:
    rng = np.random.default_rng(seed)
    counts = rng.poisson(3.0, (side, side, side, 4)).astype(np.int16)
    return Sample(counts, np.array(PARAMETERS, np.float32))


def file_of(x: bytes, y: tuple[float, ...] = PARAMETERS) -> bytes:
    return record(example({b"x": of_bytes(x), b"y": of_floats(y)}))


def record(content: bytes) -> bytes:
    file = io.BytesIO()
    write_record(file, content)
    return file.getvalue()


@pytest.mark.parametrize("compressed", [PLAIN, GZIP])
def test_tensorflow_reads_what_is_written_and_its_files_are_read(compressed: bool) -> None:
    sample = a_sample()
    options = "GZIP" if compressed else None
    content = sample_file(sample, compressed=compressed)
    whole = gzip.decompress(content) if compressed else content
    parsed = tf.train.Example.FromString(whole[12:-4]).features.feature
    assert parsed["x"].bytes_list.value[0] == sample.counts.tobytes()
    assert tuple(parsed["y"].float_list.value) == PARAMETERS
    feature = tf.train.Feature
    features = {
        "x": feature(bytes_list=tf.train.BytesList(value=[sample.counts.tobytes()])),
        "y": feature(float_list=tf.train.FloatList(value=PARAMETERS)),
    }
    theirs = tf.train.Example(features=tf.train.Features(feature=features)).SerializeToString()
    for file in (content, gzip.compress(record(theirs)) if options else record(theirs)):
        found = read_sample(file)
        np.testing.assert_array_equal(found.counts, sample.counts)
        np.testing.assert_array_equal(found.parameters, sample.parameters)
        assert found.sha256 == sample.sha256


def test_the_digest_is_of_the_numbers() -> None:
    assert a_sample().sha256 == a_sample().sha256 != a_sample(seed=1).sha256
    other = Sample(a_sample().counts, np.array((0.5, -1.0, 1.0, 0.5), np.float32))
    assert other.sha256 != a_sample().sha256


def test_logarithms_are_of_one_more_than_the_count() -> None:
    counts = np.array([0, 1, 2, 100, 32767], np.int16)
    found = np.empty(5, np.float32)
    logarithms(counts, found)
    np.testing.assert_array_equal(found, np.log1p(counts.astype(np.float64)).astype(np.float32))


WHOLE = sample_file(a_sample(), compressed=PLAIN)
PACKED = sample_file(a_sample(), compressed=GZIP)
FLOATS = np.zeros((6, 6, 6, 4), np.float32).tobytes()
COUNTS = a_sample().counts.tobytes()


@pytest.mark.parametrize(
    ("file", "problem"),
    [
        (b"", "it has 0 records, not 1"),
        (WHOLE * 2, "it has 2 records, not 1"),
        (WHOLE[:100], "it ends within the record at byte 0"),
        (WHOLE[:60] + b"\x07" + WHOLE[61:], "damaged: its checksum differs"),
        (PACKED[:60], "truncated: its compressed content has no end"),
        (PACKED[:20] + b"\xff\xff\xff" + PACKED[23:], "it is damaged"),
        (PACKED + b"\0" * 8, "it has 8 bytes after its compressed content"),
        (PACKED * 2, f"it has {len(PACKED)} bytes after its compressed content"),
        (record(b"no example"), "a record contains no example"),
        (record(example({b"image": of_bytes(b"1")})), "the features x and y is expected"),
        (file_of(FLOATS), "as float32 it would be one of 6, the other variant"),
        (file_of(COUNTS[:-8]), "504 bytes, no cube of 4 channels in int16$"),
        (file_of(b""), "0 bytes, no cube"),
        (file_of(np.full((2, 2, 2, 4), -3, np.int16).tobytes()), "the count -3; counts cannot be"),
        (
            record(example({b"x": of_bytes(COUNTS), b"y": of_integer(1)})),
            "its parameters y are not stored as floating point numbers",
        ),
        (file_of(COUNTS, (0.1, 0.2)), "it has 2 parameters, not 4"),
        (file_of(COUNTS, (0.1, 0.2, float("nan"), 0.0)), "not finite"),
        (file_of(COUNTS, (0.1, 0.2, 70.0, 0.0)), r"its parameter 70 is not scaled to \[-1, 1\]"),
    ],
)
def test_invalid_samples(file: bytes, problem: str) -> None:
    with pytest.raises(ValueError, match=problem) as caught:
        read_sample(file)
    assert "\n" not in str(caught.value)


# Folders of them


def test_volumes_are_read_as_logarithms_with_their_parameters(tmp_path: Path) -> None:
    write_volumes(tmp_path / "source")
    info = cosmoflow.prepare(tmp_path / "source", tmp_path / "prepared")
    write_volumes(tmp_path / "plain", compressed=False)
    assert cosmoflow.prepare(tmp_path / "plain", tmp_path / "again") == info
    dataset = load_dataset(DatasetConfig(name="cosmoflow", path=tmp_path / "prepared"), 2)
    (batch,) = dataset.validation(5)
    for number, found, values in zip(
        range(50, 55), batch.inputs["volume"], batch.targets["values"], strict=True
    ):
        wanted = np.log1p(volume(number).counts.astype(np.float64)).astype(np.float32)
        np.testing.assert_array_equal(found, wanted)
        np.testing.assert_array_equal(values, volume(number).parameters)


def _write(folder: Path, content: bytes) -> None:
    (folder / "train" / "univ_003.tfrecord").write_bytes(content)


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda f: shutil.rmtree(f / "validation"), "with train/ and validation/"),
        (
            lambda f: [p.unlink() for p in (f / "train").iterdir()],
            r"has no files named \*.tfrecord\*",
        ),
        (
            lambda f: _write(f, sample_file(volume(1, side=6), compressed=True)),
            "another variant: 6 x 6 x 6 x 4, GZIP, and the",
        ),
        (
            lambda f: _write(f, sample_file(volume(1), compressed=False)),
            "another variant: .* not compressed",
        ),
        (lambda f: _write(f, PACKED[:-20]), "univ_003.tfrecord: it is truncated"),
    ],
)
def test_damaged_sources(spoil: Damage, message: str, tmp_path: Path) -> None:
    write_volumes(tmp_path / "source")
    spoil(tmp_path / "source")
    with refused(message):
        cosmoflow.prepare(tmp_path / "source", tmp_path / "target")
    assert not (tmp_path / "target").exists()
