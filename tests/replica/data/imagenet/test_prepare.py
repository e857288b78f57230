from __future__ import annotations

import hashlib
import io
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image
from tests.support.damage import Damage, cut, removed
from tests.support.imagenet_layouts import flatten, val_labels
from tests.support.imagenet_readers import stored_images
from tests.support.imagenet_source import cut_out, jpeg
from tests.support.refusals import refused

from aiperf_hpc.datasets import load_dataset_manifest
from aiperf_hpc.replica.data.imagenet.sources import prepare as prepare_imagenet
from aiperf_hpc.replica.data.imagenet.stored_image import encode
from aiperf_hpc.replica.data.sharded.dataset import load_index
from aiperf_hpc.replica.data.staging import Options
from aiperf_hpc.replica.tensorflow_import import tf


def _files(source: Path, part: str) -> dict[str, bytes]:
    return {
        f"{path.parent.name}/{path.name}": path.read_bytes()
        for path in (source / part).glob("*/*.JPEG")
    }


@pytest.mark.parametrize(("part", "folder"), [("train", "train"), ("validation", "val")])
def test_each_image_is_stored_once_with_its_label(
    part: str, folder: str, imagenet_source: Path, imagenet_folder: Path
) -> None:
    records = stored_images(imagenet_folder, part)
    files = _files(imagenet_source, folder)
    assert sorted(name for _, _, name in records) == sorted(files)
    wnids = sorted(path.name for path in (imagenet_source / "train").iterdir())
    for encoded, label, name in records:
        assert wnids[label] == name.split("/")[0]
        with Image.open(io.BytesIO(files[name])) as image:
            kept = image.format == "JPEG" and image.mode in ("RGB", "L")
        assert kept == (encoded == files[name])


def test_shards_are_of_one_size_and_of_mixed_classes(imagenet_folder: Path) -> None:
    index = load_index(imagenet_folder, "imagenet")
    assert [shard.file for shard in index.train] == [f"train-{n:05d}-of-00004" for n in range(4)]
    assert [shard.samples for shard in index.train] == [6, 7, 7, 7]
    assert [shard.samples for shard in index.validation] == [6, 6]
    labels = [label for _, label, _ in stored_images(imagenet_folder, "train")]
    assert all(len(set(shard)) > 1 for shard in (labels[:6], labels[6:13], labels[13:20]))
    assert labels != sorted(labels)


def test_the_index_describes_the_shards(imagenet_folder: Path) -> None:
    index = load_index(imagenet_folder, "imagenet")
    assert index.dataset_sha256 == load_dataset_manifest(imagenet_folder, "imagenet").sha256
    for shard in (*index.train, *index.validation):
        content = (imagenet_folder / shard.file).read_bytes()
        assert shard.bytes == len(content)
        assert shard.sha256 == hashlib.sha256(content).hexdigest()
        assert shard.head_sha256 == hashlib.sha256(content[:65_536]).hexdigest()


def test_the_digest_is_as_documented(imagenet_source: Path, imagenet_folder: Path) -> None:
    info = load_dataset_manifest(imagenet_folder, "imagenet")
    wnids = sorted(path.name for path in (imagenet_source / "train").iterdir())
    lines = ""
    for part, folder in (("train", "train"), ("validation", "val")):
        for name, content in sorted(_files(imagenet_source, folder).items()):
            label = wnids.index(name.split("/")[0])
            lines += f"{part}\t{name}\t{label}\t{hashlib.sha256(content).hexdigest()}\n"
    assert info.sha256 == hashlib.sha256(lines.encode()).hexdigest()
    assert (info.classes, info.train_samples, info.validation_samples) == (3, 27, 12)


def test_one_shard(imagenet_source: Path, imagenet_folder: Path, tmp_path: Path) -> None:
    one = prepare_imagenet(imagenet_source, tmp_path / "one")
    assert len(list((tmp_path / "one").glob("train-*"))) == 1
    assert one == load_dataset_manifest(imagenet_folder, "imagenet")


def test_cmyk_keeps_its_colors() -> None:
    red = Image.new("RGB", (16, 16), (250, 10, 20))
    content = io.BytesIO()
    red.convert("CMYK").save(content, "JPEG", quality=95)
    encoded, kind = encode(content.getvalue())
    assert kind == "CMYK JPEG"
    pixel = Image.open(io.BytesIO(encoded)).getpixel((8, 8))
    assert isinstance(pixel, tuple)
    assert all(abs(got - expected) < 8 for got, expected in zip(pixel, (250, 10, 20), strict=True))


def _taken(encoded: bytes) -> NDArray[np.uint8] | None:
    """What TensorFlow decodes, with the settings of a run; None when it refuses."""
    try:
        pixels = tf.io.decode_jpeg(encoded, channels=3, dct_method="INTEGER_ACCURATE")
    except tf.errors.InvalidArgumentError:
        return None
    decoded: NDArray[np.uint8] = pixels.numpy()
    return decoded


def _kept(encoded: bytes) -> NDArray[np.uint8] | None:
    """What Pillow decodes of what preparation takes."""
    try:
        kept, _ = encode(encoded)
    except ValueError:
        return None
    with Image.open(io.BytesIO(kept)) as image:
        return np.asarray(image.convert("RGB"))


def _damaged(encoded: bytes) -> Iterator[bytes]:
    yield from (encoded, encoded[:-2], encoded[:-2] + bytes(50), encoded + b"more", encoded[:-300])
    rng = np.random.default_rng(0)
    for place, bit in zip(rng.integers(2, len(encoded), 150), rng.integers(0, 8, 150), strict=True):
        flipped = bytearray(encoded)
        flipped[place] ^= 1 << bit
        yield bytes(flipped)
    for place in range(2, 640, 7):  # The headers decide what is refused.
        flipped = bytearray(encoded)
        flipped[place] ^= 0x10
        yield bytes(flipped)


@pytest.mark.parametrize("options", [{}, {"progressive": True}, {"subsampling": 1}])
def test_both_readers_decode_prepared_images_alike(options: dict[str, object]) -> None:
    taken, unlike = 0, []
    for number, encoded in enumerate(_damaged(jpeg(cut_out(3), **options))):
        theirs, ours = _taken(encoded), _kept(encoded)
        if ours is not None and (theirs is None or not np.array_equal(theirs, ours)):
            unlike.append(number)
        taken += ours is not None
    assert not unlike
    assert 100 < taken < 240


# What is refused


def _refused(source: Path, message: str, options: Options | None = None) -> None:
    with refused(message):
        prepare_imagenet(source, source.parent / "target", options)
    assert {path.name for path in source.parent.iterdir()} <= {"source", "target.partial"}


def _an_image(source: Path) -> Path:
    return sorted(source.glob("train/*/*.JPEG"))[4]


def _without_classes(source: Path) -> None:
    for folder in list((source / "train").iterdir()):
        shutil.rmtree(folder)
    (source / "train" / "n01440764.tar").touch()


def _dangling(source: Path) -> None:
    (image := _an_image(source)).unlink()
    image.symlink_to("nowhere")


def _truncated_png(source: Path) -> None:
    content = io.BytesIO()
    Image.effect_noise((90, 90), 50).save(content, "PNG")
    _an_image(source).write_bytes(content.getvalue()[:3000])


def _labels(change: Callable[[list[str]], list[str]]) -> Damage:
    """Return what makes validation flat and changes the lines of its labels."""

    def edit(source: Path) -> None:
        val_labels(source)
        labels = source / "val_labels.txt"
        labels.write_text("\n".join(change(labels.read_text().splitlines())))

    return edit


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (removed("val"), "cannot read .*/val: No such file or directory"),
        (shutil.rmtree, "cannot read .*/source: No such file or directory"),
        (_without_classes, "has 0 class folders; expected train/<wnid>/"),
        (lambda s: (s / "train" / "n09999999").mkdir(), "n09999999 has no JPEG files"),
        (
            lambda s: _an_image(s).with_name("notes.txt").touch(),
            "notes.txt does not have a JPEG file name",
        ),
        (flatten, "there are no labels of its images: expected .* val_labels.txt"),
        (_labels(lambda ls: [*ls, "one two three"]), "line 13: expected '<file> <wnid>'"),
        (
            _labels(lambda ls: [*ls[3:], f"x.JPEG {ls[0].split()[1]}"]),
            r"has no label for \S+ \(and 2 more\)$",
        ),
        (
            _labels(lambda ls: [*ls, *(f"{n}.JPEG {ls[0].split()[1]}" for n in "ab")]),
            r"names a.JPEG, which is not in \S+ \(and 1 more\)$",
        ),
        (
            lambda s: (flatten(s), (s / "val_labels.txt").write_bytes(b"\xff\xfe\x00")),
            "cannot read .*val_labels.txt: it is not text",
        ),
        (lambda s: cut(_an_image(s)), r"\.JPEG is corrupt"),
        (_truncated_png, r"\.JPEG is corrupt: "),
        *(
            (lambda s, content=content: _an_image(s).write_bytes(content), r"\.JPEG is corrupt: ")
            for content in (b"", b"\xff\xd8\xff", b"<html>", b"\x89PNG\r\n\x1a\n")
        ),
        (_dangling, r"cannot read .*\.JPEG: No such file or directory"),
    ],
)
def test_a_wrong_source_is_refused(change: Damage, message: str, source: Path) -> None:
    change(source)
    _refused(source, message)


def test_hidden_files_are_ignored(source: Path) -> None:
    _an_image(source).with_name(".hidden").touch()
    prepare_imagenet(source, source.parent / "target")


@pytest.mark.parametrize("shards", [0, -1, 28])
def test_impossible_numbers_of_shards(shards: int, source: Path) -> None:
    _refused(source, f"--shards {shards}: for 27 training images, 1 to 27", Options(shards=shards))
