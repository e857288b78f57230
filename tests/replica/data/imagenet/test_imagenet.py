from __future__ import annotations

import io
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image
from tests.support.damage import Damage, cut, flip, gone, longer, removed, resized, written
from tests.support.imagenet_readers import (
    agree,
    both_readers,
    open_folder,
    pixels_of,
    stored_images,
)
from tests.support.refusals import refused

from aiperf_hpc.datasets import save_dataset_manifest
from aiperf_hpc.errors import DatasetError
from aiperf_hpc.replica.data import tfrecord
from aiperf_hpc.replica.data.base import Part, Pixels
from aiperf_hpc.replica.data.imagenet import sample_order, tensorflow_reader
from aiperf_hpc.replica.data.imagenet.dataset import DecodedImages, ImageNetDataset
from aiperf_hpc.replica.data.imagenet.sources import prepare as prepare_imagenet
from aiperf_hpc.replica.data.sharded.dataset import load_index
from aiperf_hpc.replica.data.staging import Options
from aiperf_hpc.replica.tensorflow_import import tf

Floats = NDArray[np.float32]


Load = Callable[..., ImageNetDataset]


@pytest.fixture(params=["tensorflow", "torch"])
def load(request: pytest.FixtureRequest) -> Load:
    """Open a prepared folder for each reader."""
    return partial(open_folder, engine=request.param)


def _epoch(dataset: ImageNetDataset, epoch: int = 0) -> Floats:
    return np.concatenate(
        [np.asarray(batch.inputs["image"]) for batch in dataset.train(epoch, 5, 0)]
    )


# Reading


@pytest.mark.parametrize(
    ("engine", "images", "labels"),
    [("tensorflow", tf.Tensor, tf.Tensor), ("torch", Pixels, np.ndarray)],
)
def test_batches_are_what_the_engine_takes(
    engine: str, images: type[object], labels: type[object], imagenet_folder: Path
) -> None:
    batch = next(open_folder(imagenet_folder, engine=engine).train(0, 5, 0))
    assert isinstance(batch.inputs["image"], images)
    assert isinstance(batch.targets["label"], labels)
    assert batch.size == 5


def test_decoded_bytes_are_normalized(imagenet_folder: Path) -> None:
    pixels: Pixels = next(open_folder(imagenet_folder).validation(5)).inputs["image"]
    assert pixels.bytes.dtype == np.uint8
    deviation = np.array(sample_order.STD)
    scale = (1 / deviation).astype(np.float32)
    shift = ((0.5 - np.array(sample_order.MEAN)) / deviation).astype(np.float32)
    np.testing.assert_array_equal(np.asarray(pixels), pixels.bytes * scale + shift)


@pytest.mark.parametrize(
    ("transforms", "cores", "parallel"), [(48, 2, 2), (1, 16, 1), (48, 0, 1), (3, 16, 3)]
)
def test_decoding_threads_are_bounded(
    load: Load, transforms: int, cores: int, parallel: int, imagenet_folder: Path
) -> None:
    dataset = load(imagenet_folder, cores=cores, parallel_transforms=transforms)
    assert dataset.parallel == parallel


def test_tensorflow_writes_no_python(imagenet_folder: Path) -> None:
    """What it writes of functions in the temporary folder stays there where a process is killed."""
    dataset = open_folder(imagenet_folder, engine="tensorflow")
    before = _written_by_tensorflow()
    part = Part(0, 2)
    assert sum(batch.size for batch in dataset.train(0, 6, 0, part)) == 14
    assert sum(batch.size for batch in dataset.validation(6, part)) == 6
    assert _written_by_tensorflow() == before


def _written_by_tensorflow() -> set[str]:
    return {name for name in sys.modules if name.startswith("__autograph_generated_file")}


def test_samples_do_not_depend_on_the_parallel_calls(load: Load, imagenet_folder: Path) -> None:
    one = _epoch(load(imagenet_folder, parallel_transforms=1))
    assert np.array_equal(one, _epoch(load(imagenet_folder, cores=8)))


# Both readers


@pytest.mark.parametrize(("part", "augment"), [(Part(), True), (Part(1, 3), False)])
def test_readers_agree(
    part: Part, augment: bool, imagenet_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sample_order, "OPEN_SHARDS", 3)  # of 4, which are not of one size
    monkeypatch.setattr(tensorflow_reader, "OPEN_SHARDS", 3)
    monkeypatch.setattr(sample_order, "WINDOW", 10)
    theirs, ours = both_readers(imagenet_folder, augment=augment)
    for epoch in range(3):
        agree(theirs.train(epoch, 5, 7, part), ours.train(epoch, 5, 7, part))
    agree(theirs.validation(5, part), ours.validation(5, part))


def test_both_readers_agree_on_photographs(photographs: list[bytes], tmp_path: Path) -> None:
    for part, own in (("train", photographs), ("val", photographs[::5])):
        for number, content in enumerate(own):
            path = tmp_path / "source" / part / f"n{number % 2}" / f"{number}.JPEG"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
    prepare_imagenet(tmp_path / "source", tmp_path / "prepared", Options(shards=2, cores=2))
    theirs, ours = both_readers(tmp_path / "prepared", image_size=224)
    agree(theirs.train(0, 8, 1), ours.train(0, 8, 1))
    agree(theirs.validation(8), ours.validation(8))


def test_without_tensorflow(imagenet_source: Path, imagenet_folder: Path, tmp_path: Path) -> None:
    script = f"""
import sys
sys.modules["tensorflow"] = sys.modules["torch"] = None
from pathlib import Path
from aiperf_hpc.config import DatasetConfig
from aiperf_hpc.replica.data import load_dataset
from aiperf_hpc.replica.data.imagenet.sources import prepare as prepare_imagenet
from aiperf_hpc.replica.data.staging import Options
folder = Path({str(tmp_path / "prepared")!r})
prepare_imagenet(Path({str(imagenet_source)!r}), folder, Options(shards=4))
dataset = load_dataset(DatasetConfig(name="imagenet", path=folder, image_size=32), 2, "torch")
print(sum(batch.size for batch in dataset.train(0, 5, 0)))
"""
    done = subprocess.run(
        [sys.executable, "-c", script], check=True, capture_output=True, text=True
    )
    assert done.stdout == "27\n"
    assert load_index(tmp_path / "prepared", "imagenet") == load_index(imagenet_folder, "imagenet")


# Decoded images in memory


@pytest.mark.parametrize("kept", [0, 5, 39])
def test_decoded_images_are_cached(
    kept: int, imagenet_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of 27 images of training and 12 of validation; those of one size are kept in one place."""
    plain = open_folder(imagenet_folder)
    largest = 4 * max(_sizes(imagenet_folder))
    dataset = replace(plain, decoded=DecodedImages(kept * largest), parallel=1)
    reads: list[int] = []
    read_record = tfrecord.read_record

    def counted(file: int, offset: int, size: int) -> bytes:
        reads.append(offset)
        return read_record(file, offset, size)

    for number in range(2):
        wanted = [*plain.train(number, 5, 3), *plain.validation(5)]
        with monkeypatch.context() as patched:
            patched.setattr(tfrecord, "read_record", counted)
            found = [*dataset.train(number, 5, 3), *dataset.validation(5)]
        for one, other in zip(wanted, found, strict=True):
            assert one.inputs["image"].bytes.tobytes() == other.inputs["image"].bytes.tobytes()
            assert one.targets["label"].tolist() == other.targets["label"].tolist()
    assert len(reads) == 2 * 39 - len(dataset.decoded._images)
    assert kept <= len(dataset.decoded._images) <= 39
    assert len(dataset.decoded._images) < 39 or kept == 39


def _sizes(folder: Path) -> list[int]:
    """Return the pixels of each image that was prepared."""
    sizes = []
    for image in (*stored_images(folder, "train"), *stored_images(folder, "validation")):
        with Image.open(io.BytesIO(image.encoded)) as opened:
            sizes.append(opened.width * opened.height)
    return sizes


# Geometry, on images whose red says the column and whose green says the row of each pixel

WIDTH, HEIGHT = 240, 120


def _ramp() -> bytes:
    pixels = np.zeros((HEIGHT, WIDTH, 3))
    pixels[..., 0] = (np.arange(WIDTH) + 0.5) / WIDTH * 255
    pixels[..., 1] = ((np.arange(HEIGHT) + 0.5) / HEIGHT * 255)[:, None]
    content = io.BytesIO()
    image = Image.fromarray(pixels.round().astype(np.uint8))
    image.save(content, "JPEG", quality=100, subsampling=0)
    return content.getvalue()


@pytest.fixture(scope="module")
def ramps(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("ramps")
    for part, each in (("train", 100), ("val", 1)):
        for wnid in ("n1", "n2"):
            (folder / "source" / part / wnid).mkdir(parents=True)
            for number in range(each):
                (folder / "source" / part / wnid / f"{number}.JPEG").write_bytes(_ramp())
    prepare_imagenet(folder / "source", folder / "prepared", Options(shards=3))
    return folder / "prepared"


def test_validation_is_a_resize_and_a_centre_crop(load: Load, ramps: Path) -> None:
    """Of 240x120 pixels the shorter side becomes 37, of which 32 are kept: 104 source pixels."""
    batch = next(load(ramps).validation(2))
    pixels = pixels_of(batch.inputs["image"])[0]
    side = 120 * 32 / 37
    across = (WIDTH - side) / 2 + (np.arange(32) + 0.5) * side / 32
    down = (HEIGHT - side) / 2 + (np.arange(32) + 0.5) * side / 32
    assert np.abs(pixels[..., 0] - (across / WIDTH * 255)).max() < 2.5
    assert np.abs(pixels[..., 1] - (down / HEIGHT * 255)[:, None]).max() < 2.5
    assert np.abs(pixels[..., 2]).max() < 4


def _windows(load: Load, ramps: Path, **values: object) -> NDArray[np.float64]:
    """Return left, right, top and bottom of each training crop, in source pixels.

    Fitted to the crop's pixels; right is left of left when the crop is a mirror image.
    """
    places = (np.arange(32) + 0.5) / 32
    windows = []
    for sample in pixels_of(_epoch(load(ramps, **values))):
        edges: list[float] = []
        for channel, extent in ((0, WIDTH), (1, HEIGHT)):
            profile = sample[..., channel].mean(channel)
            slope, start = np.polyfit(places[2:-2], profile[2:-2] / 255 * extent, 1)
            residual = profile[2:-2] / 255 * extent - (start + slope * places[2:-2])
            assert np.abs(residual).max() < 3
            edges += [start, start + slope]
        windows.append(edges)
    return np.array(windows)


def test_training_crops_are_parts_of_the_image(ramps: Path) -> None:
    left, right, top, bottom = _windows(open_folder, ramps).T
    mirrored = right < left
    left, right = np.minimum(left, right), np.maximum(left, right)
    for low, high, extent in ((left, right, WIDTH), (top, bottom, HEIGHT)):
        assert low.min() > -4
        assert high.max() < extent + 4
    share = (right - left) * (bottom - top) / (WIDTH * HEIGHT)
    assert share.min() > 0.07
    assert share.max() < 1.05
    assert share.max() - share.min() > 0.4
    aspect = (right - left) / (bottom - top)
    whole = share > 0.95  # the whole image stands in when no crop fits
    assert aspect[~whole].min() > 0.7
    assert aspect[~whole].max() < 1.4
    # 200 flips of a coin have a deviation of 7.
    assert abs(int(mirrored.sum()) - 100) < 36


def test_crops_can_be_kept_large(load: Load, ramps: Path) -> None:
    left, right, top, bottom = _windows(load, ramps, min_crop_area=0.6).T
    share = np.abs(right - left) * (bottom - top) / (WIDTH * HEIGHT)
    assert 0.55 < share.min() < 0.75


def test_crops_differ_between_samples_and_epochs(ramps: Path) -> None:
    dataset = open_folder(ramps)
    crops = [{sample.tobytes() for sample in _epoch(dataset, epoch)} for epoch in (0, 1)]
    assert len(crops[0]) == len(crops[1]) == 200
    assert not crops[0] & crops[1]


# Damaged folders


def _swap(folder: Path) -> None:
    first, second = folder / "train-00001-of-00004", folder / "train-00002-of-00004"
    first.rename(folder / "aside")
    second.rename(first)
    (folder / "aside").rename(second)


def _manifest(folder: Path, **changed: object) -> None:
    save_dataset_manifest(folder, open_folder(folder).info.model_copy(update=changed))


THIRD, FOURTH = "train-00002-of-00004", "train-00003-of-00004"
HELD_OUT = "validation-00001-of-00002"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (shutil.rmtree, "there is no folder"),
        (removed("dataset.json"), "has no dataset.json"),
        (removed(THIRD), f"cannot read .*{THIRD}: No such file or directory"),
        (resized(FOURTH, 100), f"{FOURTH} is truncated: it has 100 bytes, not"),
        (resized(HELD_OUT, 100), f"{HELD_OUT} is truncated: it has 100 bytes, not"),
        (lambda f: longer(f / THIRD), f"{THIRD} is not the shard that was prepared: it has"),
        (_swap, "train-0000[12]-of-00004 is (truncated|not the shard)"),
        (lambda f: flip(f / THIRD, 100), f"{THIRD} is not the shard that was prepared: its"),
        (written("sizes.npy", b"x"), "sizes.npy is damaged; prepare it again"),
        (removed("sizes.npy"), "cannot read .*sizes.npy: No such file .*; prepare it again"),
        *(
            (written("shards.json", content), "is damaged")
            for content in ("", "{}", '{"schema_version": 2}', "[]", "\x00")
        ),
        (removed("shards.json"), "cannot read .*shards.json: No such file"),
        (lambda f: _manifest(f, train_samples=26), "from different preparations"),
        (lambda f: _manifest(f, name="cifar10"), "holds 'cifar10'"),
    ],
)
def test_a_damaged_folder_is_not_loaded(change: Damage, message: str, folder: Path) -> None:
    change(folder)
    with refused(message):
        open_folder(folder)


def test_files_of_another_preparation_are_refused(folder: Path, ramps: Path) -> None:
    shutil.copy(ramps / "sizes.npy", folder)
    with refused("sizes.npy does not belong to the shards in .*; prepare it again"):
        open_folder(folder)
    shutil.copy(ramps / "shards.json", folder)
    with refused("dataset.json and shards.json of .* are from different preparations"):
        open_folder(folder)


def _damage(shard: Path) -> None:
    """Flip a bit behind the part that is checked when a dataset is opened."""
    assert shard.stat().st_size > 70_000
    flip(shard, -200)


def _exchange(shard: Path) -> None:
    """Another dataset's shard, of the same size."""
    size = shard.stat().st_size
    with shard.open("wb") as file:
        tfrecord.write_record(file, bytes(size - tfrecord.OVERHEAD))


def _shorten(shard: Path) -> None:
    """Another dataset's shard: good records, but fewer."""
    with shard.open("rb+") as file:
        sizes = [len(c) + tfrecord.OVERHEAD for c in tfrecord.contents(file.fileno())]
        file.truncate(sum(sizes[:-1]))


@pytest.mark.parametrize("change", [_damage, cut, _shorten, _exchange, gone])
def test_a_shard_that_changes_in_a_run_is_named(
    load: Load, change: Damage, ramps: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sample_order, "WINDOW", 1)  # a missing record is a missing window
    folder = Path(shutil.copytree(ramps, tmp_path / "copy"))
    dataset = load(folder)
    change(folder / "train-00002-of-00003")
    said: dict[Damage, str] = {
        _damage: "train-00002-of-00003: the record at byte .* is damaged",
        cut: "train-00002-of-00003(: it ends within the record| is truncated)",
        _shorten: "train-00002-of-00003(: it ends within the record| is truncated)",
        _exchange: "train-00002-of-00003(: there is no record| is not the shard that was)",
        gone: "cannot read .*train-00002-of-00003: No such file or directory",
    }
    with refused(f"{said[change]}.*; prepare .* again"):
        _epoch(dataset)


def test_a_reading_error_has_no_context_of_tensorflow(ramps: Path, tmp_path: Path) -> None:
    """Which would be left to the garbage collector, and that may run in the iterator's thread."""
    folder = Path(shutil.copytree(ramps, tmp_path / "copy"))
    dataset = open_folder(folder, engine="tensorflow")
    _damage(folder / "train-00002-of-00003")
    with pytest.raises(DatasetError) as error:
        _epoch(dataset)
    assert error.value.__context__ is None
