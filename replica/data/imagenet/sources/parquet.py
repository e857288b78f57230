"""ImageNet in Hugging Face's parquet files: ``data/train-*.parquet`` and ``validation-*.parquet``.

Each row has an image's file as bytes, its path ``<file>_<wnid>.JPEG``, and its label. A parquet
file is read sequentially, but a shard has images of all files. Therefore each parquet file is first
unpacked to one file of concatenated images.
"""

from __future__ import annotations

import json
import os
import re
import threading
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING

from aiperf_hpc.datasets import stat_of
from aiperf_hpc.errors import DatasetError, restated
from aiperf_hpc.extras import PARQUET
from aiperf_hpc.replica.data.imagenet.sources.base import Image, ImageSource, and_more, entries
from aiperf_hpc.replica.data.progress import Meter, in_threads
from aiperf_hpc.replica.data.staging import FileNote, Options, note_of
from aiperf_hpc.run.paths import write_whole

if TYPE_CHECKING:
    from pyarrow.parquet import ParquetFile

BATCH = 64
"""Number of rows unpacked at a time."""
_PART = re.compile(r"(?P<part>train|validation)-(?P<number>\d+)-of-(?P<files>\d+)(-\w+)?\.parquet")
_WNID = r"n\d{8}"
_SUFFIXED = re.compile(rf"(?P<file>.+)_(?P<wnid>{_WNID})(?P<ending>\.\w+)")
_EXPECTED = "image: struct<bytes: binary, path: string> and label: int64, as in imagenet-1k"


class _Unpacked(FileNote):
    """The note of a parquet file whose images are unpacked, with the end offset of each image."""

    ends: tuple[int, ...]


def parquet_folder(source: Path) -> Path | None:
    """Return the folder below ``source`` with the training images, or None."""
    for folder in (source / "data", source):
        if folder.is_dir() and any(folder.glob("train-*.parquet")):
            return folder
    return None


def open_parquet(folder: Path, options: Options) -> ParquetSource:
    """List the images of a folder's parquet files.

    Raises:
        DatasetError: a package is missing, or the files do not have this layout.
    """
    if not PARQUET.installed:
        raise DatasetError(f"reading Parquet needs the package 'pyarrow': {PARQUET.remedy}")
    files = _files(folder)
    total = sum(map(len, files.values()))
    meter = Meter(options.progress, "listing Parquet files", total, "files")

    def rows(path: Path, _: object) -> list[Image]:
        return list(_rows(path))

    parts = {
        part: [row for some in in_threads(rows, paths, options.cores, meter) for row in some]
        for part, paths in files.items()
    }
    wnids = _wnids(parts["train"], _named_classes(files["train"][0]))
    training, held_out = (sorted(_with_classes(parts[part], wnids)) for part in files)
    found = ParquetSource(
        layout="Hugging Face's parquet",
        wnids=wnids,
        training=training,
        validation=held_out,
        folders=(folder,),
    )
    found.check(*(f"{folder}/{part}-*.parquet" for part in files))
    return found


@dataclass(kw_only=True, eq=False)
class ParquetSource(ImageSource):
    """A source whose images are rows of parquet files."""

    starts: dict[str, list[int]] = field(default_factory=dict)
    """Offsets of each file's unpacked images, and the end of the last image."""
    files: dict[str, int] = field(default_factory=dict)
    """File descriptors of the open unpacked files."""

    @property
    def unpacked_size(self) -> int:
        """Number of bytes of all images, which are unpacked."""
        return sum(image.size for image in (*self.training, *self.validation))

    @contextmanager
    def opened(self, unpacked: Path, options: Options) -> Iterator[None]:
        """Unpack the files that have not been unpacked yet."""
        paths = sorted({image.path for image in (*self.training, *self.validation)})
        meter = Meter(options.progress, "unpacking", len(paths), "parquet files")

        def unpack(path: str, stopped: threading.Event) -> list[int]:
            return [0, *_unpack(Path(path), unpacked, stopped)]

        self.starts |= zip(paths, in_threads(unpack, paths, options.cores, meter), strict=True)
        with ExitStack() as stack:
            for path in paths:
                file = stack.enter_context(_images_file(Path(path), unpacked).open("rb"))
                self.files[path] = file.fileno()
            yield

    def read(self, image: Image) -> bytes:
        start, end = self.starts[image.path][image.row : image.row + 2]
        return os.pread(self.files[image.path], end - start, start)


def _files(folder: Path) -> dict[str, list[Path]]:
    """Return the files of both parts. Raises DatasetError if one is missing."""
    found = [
        (match, folder / entry.name)
        for entry in entries(folder)
        if (match := _PART.fullmatch(entry.name))
    ]
    files: dict[str, list[Path]] = {}
    for part in ("train", "validation"):
        own = [(match, path) for match, path in found if match["part"] == part]
        if not own:
            raise DatasetError(f"{folder} has no {part}-00000-of-N.parquet")
        _check_numbers(folder, part, [(match["number"], match["files"]) for match, _ in own])
        files[part] = [path for _, path in own]
    return files


def _check_numbers(folder: Path, part: str, names: Sequence[tuple[str, str]]) -> None:
    """Check the number of files by their names: ``train-00003-of-00294.parquet`` is one of 294."""
    totals = sorted({total for _, total in names})
    if len(totals) > 1:
        raise DatasetError(
            f"{folder} has {part} files of two sets, of {totals[0]} and of {totals[1]}; "
            "move one of them away"
        )
    found = {int(number) for number, _ in names}
    absent = [number for number in range(int(totals[0])) if number not in found]
    if absent:
        what = f"{folder} lacks {part}-{absent[0]:05d}-of-{totals[0]}.parquet"
        raise DatasetError(and_more(what, absent))


def _parquet_errors(path: Path) -> AbstractContextManager[None]:
    """Convert errors in a parquet file to a DatasetError."""
    from pyarrow import ArrowException

    # pyarrow reports invalid content by an OSError without an error number.
    what = f"cannot read {path}, or it is truncated"
    return restated(what, DatasetError, caught=(ArrowException, OSError))


def _open(path: Path) -> ParquetFile:
    from pyarrow.parquet import ParquetFile

    return ParquetFile(path)


def _rows(path: Path) -> Iterator[Image]:
    """Yield the images of a file's rows; names lack the class if the path has no wnid."""
    status = stat_of(path)
    with _parquet_errors(path), _open(path) as file:
        _check_columns(path, file)
        table = file.read(columns=["image.path", "label"])
        images = table.column("image").to_pylist()
        labels = table.column("label").to_pylist()
    each = status.st_size // max(1, len(labels))
    for row, (image, label) in enumerate(zip(images, labels, strict=True)):
        name = image["path"] if image else None
        if not name or label is None or label < 0:
            what = "label" if name else "path"
            raise DatasetError(f"{path}, row {row}, has no {what}")
        yield Image(label, _parsed(name), str(path), row, each, status.st_mtime_ns)


def _check_columns(path: Path, file: ParquetFile) -> None:
    from pyarrow import types

    schema = file.schema_arrow
    found = {field.name: field.type for field in schema}
    image, label = found.get("image"), found.get("label")
    fields = image.fields if image is not None and types.is_struct(image) else ()
    inner = {field.name: field.type for field in fields}
    binary, text = inner.get("bytes"), inner.get("path")
    if None in (binary, text, label) or not (
        (types.is_binary(binary) or types.is_large_binary(binary))
        and (types.is_string(text) or types.is_large_string(text))
        and types.is_integer(label)
    ):
        columns = ", ".join(f"{name}: {kind}" for name, kind in found.items())
        raise DatasetError(f"{path} has the columns {columns}; expected {_EXPECTED}")


def _parsed(path: str) -> str:
    """Return the name of an image, ``<wnid>/<file>``; the wnid is empty if the path has none."""
    folders, _, file = path.rpartition("/")
    if suffixed := _SUFFIXED.fullmatch(file):
        return f"{suffixed['wnid']}/{suffixed['file']}{suffixed['ending']}"
    wnids = (folders.rpartition("/")[2], file.partition("_")[0])
    return f"{next((text for text in wnids if re.fullmatch(_WNID, text)), '')}/{file}"


def _named_classes(path: Path) -> list[str] | None:
    """Return the names of the labels in a file's metadata, or None if there are none."""
    with _parquet_errors(path), _open(path) as file:
        metadata = (file.schema_arrow.metadata or {}).get(b"huggingface")
    try:
        names = json.loads(metadata or b"{}")["info"]["features"]["label"]["names"]
    except (ValueError, KeyError, TypeError):
        return None
    return [str(name) for name in names] if isinstance(names, list) else None


def _wnids(training: Sequence[Image], named: Sequence[str] | None) -> list[str]:
    """Return the classes after checking that the labels agree with those of other layouts."""
    for image in training:
        if not image.wnid:
            stem, ending = os.path.splitext(image.name[1:])
            example = f"{stem}_n01440764{ending or '.JPEG'}"
            raise DatasetError(f"{image.place}: its path has no wnid, as in {example}")
    wnids = sorted({image.wnid for image in training})
    labels = {wnid: label for label, wnid in enumerate(wnids)}
    folder = Path(training[0].path).parent
    if named is not None and len(named) != len(wnids):
        raise DatasetError(
            f"{folder} has training images of {len(wnids)} classes, and names of {len(named)}"
        )
    for image in training:
        if image.label != labels[image.wnid]:
            raise DatasetError(
                f"{image.place} has the label {image.label}, but {image.wnid} is number "
                f"{labels[image.wnid]} of the sorted classes"
            )
    if len(wnids) < 2:
        raise DatasetError(f"{folder} has training images of one class")
    return wnids


def _with_classes(images: Sequence[Image], wnids: Sequence[str]) -> Iterator[Image]:
    """Yield images with the class in their names. Raises DatasetError if label and class differ."""
    for image in images:
        if image.label >= len(wnids) or image.wnid not in ("", wnids[image.label]):
            raise DatasetError(
                f"{image.place} has the label {image.label} and the class "
                f"{image.wnid or 'unknown'}, which the training images do not have"
            )
        yield image._replace(name=f"{wnids[image.label]}/{image.name.partition('/')[2]}")


def _images_file(path: Path, unpacked: Path) -> Path:
    return unpacked / f"{path.stem}.images"


def _unpack(path: Path, folder: Path, stopped: threading.Event) -> list[int]:
    """Write a parquet file's images contiguously; return the end offset of each image."""
    status, target = stat_of(path), _images_file(path, folder)
    note = target.with_suffix(".json")
    done = note_of(note, _Unpacked, status)
    if done and target.exists() and target.stat().st_size == max(done.ends, default=0):
        return list(done.ends)
    note.unlink(missing_ok=True)
    sizes = []
    with target.open("wb") as file:
        for row, image in enumerate(_contents(path)):
            if stopped.is_set():
                return []  # The result is no longer needed.
            if not image:
                raise DatasetError(f"{path}, row {row}, has no bytes")
            file.write(image)
            sizes.append(len(image))
        file.flush()
        os.fsync(file.fileno())
    ends = tuple(accumulate(sizes))
    unpacked = _Unpacked(size=status.st_size, modified=status.st_mtime_ns, ends=ends)
    write_whole(note, unpacked.model_dump_json() + "\n")
    return list(ends)


def _contents(path: Path) -> Iterator[bytes | None]:
    """Yield the image files in a parquet file's rows."""
    with _parquet_errors(path), _open(path) as file:
        for batch in file.iter_batches(BATCH, columns=["image.bytes"]):
            for image in batch.column("image"):
                yield image["bytes"].as_py() if image.is_valid else None
