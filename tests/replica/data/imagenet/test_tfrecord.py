"""TFRecord files and the examples in them, against TensorFlow's own code."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aiperf_hpc.replica.data import tfrecord
from aiperf_hpc.replica.data.imagenet.stored_image import LabelledImage, pack, unpack
from aiperf_hpc.replica.tensorflow_import import tf

IMAGES = st.builds(
    LabelledImage,
    st.binary(max_size=300),
    st.integers(0, 2**40),
    st.text(max_size=20).map(lambda text: text.encode("utf-8", "replace").decode()),
)


def _example(image: LabelledImage) -> tf.train.Example:
    feature = tf.train.Feature
    features = {
        "image/encoded": feature(bytes_list=tf.train.BytesList(value=[image.encoded])),
        "image/class/label": feature(int64_list=tf.train.Int64List(value=[image.label])),
        "image/filename": feature(bytes_list=tf.train.BytesList(value=[image.name.encode()])),
    }
    return tf.train.Example(features=tf.train.Features(feature=features))


@given(IMAGES)
def test_tensorflow_understands_what_is_packed(image: LabelledImage) -> None:
    assert tf.train.Example.FromString(pack(image)) == _example(image)


@given(IMAGES)
def test_what_tensorflow_packs_is_understood(image: LabelledImage) -> None:
    assert unpack(_example(image).SerializeToString()) == image


def test_a_name_that_is_no_text_is_kept() -> None:
    image = LabelledImage(b"", 0, os.fsdecode(b"n1/\xff.JPEG"))
    assert unpack(pack(image)) == image


@given(st.binary(max_size=100))
def test_what_is_no_example_is_refused_in_words(content: bytes) -> None:
    with pytest.raises(ValueError, match="a record contains no labeled image"):
        unpack(content)


def test_an_example_of_something_else_is_refused() -> None:
    other = _example(LabelledImage(b"x", 1, "x"))
    del other.features.feature["image/encoded"]
    with pytest.raises(ValueError, match="a record contains no labeled image"):
        unpack(other.SerializeToString())
    with pytest.raises(ValueError, match="a record contains no labeled image"):
        unpack(tf.train.Example().SerializeToString())


CONTENTS = [b"", b"a", bytes(range(256)) * 40, b"last"]


@pytest.fixture
def written(tmp_path: Path) -> Path:
    path = tmp_path / "ours"
    with path.open("wb") as file:
        for content in CONTENTS:
            tfrecord.write_record(file, content)
    return path


@pytest.fixture
def opened(written: Path) -> Iterator[int]:
    file = os.open(written, os.O_RDONLY)
    yield file
    os.close(file)


def test_files_are_those_that_tensorflow_writes(written: Path, tmp_path: Path) -> None:
    with tf.io.TFRecordWriter(str(tmp_path / "theirs")) as writer:
        for content in CONTENTS:
            writer.write(content)
    assert written.read_bytes() == (tmp_path / "theirs").read_bytes()


def test_records_are_read_where_they_are(opened: int) -> None:
    sizes = [len(content) + tfrecord.OVERHEAD for content in tfrecord.contents(opened)]
    assert sizes == [len(content) + tfrecord.OVERHEAD for content in CONTENTS]
    for number, content in enumerate(CONTENTS):
        offset = sum(sizes[:number])
        assert tfrecord.read_record(opened, offset, sizes[number]) == content


@pytest.mark.parametrize(("offset", "size"), [(0, 17), (1, 16), (16, 18), (17, 17)])
def test_a_record_that_is_not_there(offset: int, size: int, opened: int) -> None:
    with pytest.raises(ValueError, match=f"there is no record of {size} bytes at byte {offset}"):
        tfrecord.read_record(opened, offset, size)


@pytest.mark.parametrize("cut", range(1, 20))
def test_a_cut_file_is_noticed(cut: int, written: Path, opened: int) -> None:
    os.truncate(written, written.stat().st_size - cut)
    if cut == len(CONTENTS[-1]) + tfrecord.OVERHEAD:
        pytest.fail("a whole record is cut off, which the number of records tells")
    with pytest.raises(ValueError, match="it ends within the record at byte"):
        list(tfrecord.contents(opened))


@pytest.mark.parametrize("place", [0, 7, 8, 11, 12, 15, 16, 30, 10_000, -1, -5, -9])
def test_every_damaged_byte_is_noticed(place: int, written: Path, opened: int) -> None:
    content = bytearray(written.read_bytes())
    content[place] ^= 0x10
    written.write_bytes(content)
    with pytest.raises(ValueError, match="record"):
        list(tfrecord.contents(opened))
