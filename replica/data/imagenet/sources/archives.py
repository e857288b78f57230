"""The official archives of ILSVRC 2012, read without extraction.

``ILSVRC2012_img_train.tar`` has a tar file for each class, ``ILSVRC2012_img_val.tar`` the
validation images, ``ILSVRC2012_devkit_t12.tar.gz`` their labels. A member of a tar file is
contiguous, so that images can be read in any order. Before that, each archive is read once from
beginning to end: its MD5 must be the published one, and the SHA-256 of each image is recorded and
checked again when the image is read for a shard.
"""

from __future__ import annotations

import hashlib
import os
import tarfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, NamedTuple

from aiperf_hpc.datasets import ARCHIVES, DEVKIT, TRAINING, VALIDATION, read_errors
from aiperf_hpc.errors import DatasetError, restated
from aiperf_hpc.replica.data.imagenet.sources.base import Image, ImageSource
from aiperf_hpc.replica.data.imagenet.sources.folders import LabelFile, labels_of, read_devkit
from aiperf_hpc.replica.data.progress import Meter, in_threads
from aiperf_hpc.replica.data.staging import FileNote, Options, note_of
from aiperf_hpc.run.paths import write_whole

PIECE = 1 << 20
"""Number of bytes per read between images."""
DIGEST = hashlib.sha256().digest_size


class Member(NamedTuple):
    """A file in an archive: its name, offset and size in bytes."""

    name: str
    start: int
    size: int


class Checked(FileNote):
    """The note of a completely read archive."""

    md5: str
    images: int


def has_archives(source: Path) -> bool:
    """Return whether a folder has the archives of both parts."""
    return (source / TRAINING).is_file() and (source / VALIDATION).is_file()


def open_archives(source: Path, options: Options) -> ArchiveSource:
    """List the images in a folder's archives.

    Args:
        source: path of the folder with the three archives.
        options: number of classes listed concurrently, and progress display.

    Raises:
        DatasetError: an archive is missing or damaged, or the development kit is not the official
            one.
    """
    devkit = source / DEVKIT
    if not devkit.is_file():
        raise DatasetError(f"{source} has no {DEVKIT}, which has the labels of {VALIDATION}")
    checked = _require_official(devkit, _md5(devkit))
    training, validation = source / TRAINING, source / VALIDATION
    classes = _members(training)
    wnids = sorted(member.name.removesuffix(".tar") for member in classes)
    labels = {wnid: label for label, wnid in enumerate(wnids)}
    if len(wnids) < 2:
        raise DatasetError(f"{training} has {len(wnids)} classes; at least two are required")
    meter = Meter(options.progress, f"listing {TRAINING}", len(wnids), "classes")

    def images(member: Member, _: object) -> list[Member]:
        wnid = member.name.removesuffix(".tar")
        return [e._replace(name=f"{wnid}/{e.name}") for e in _members(training, member)]

    in_classes = in_threads(images, classes, options.cores, meter)
    trained = sorted((each for some in in_classes for each in some), key=lambda m: m.start)
    held_out = _labelled(validation, devkit, labels, options.cores)
    members = {str(training): trained, str(validation): held_out}
    in_train, in_val = (sorted(_images(Path(path), each, labels)) for path, each in members.items())
    found = ArchiveSource(
        layout="the official archives",
        wnids=wnids,
        training=in_train,
        validation=in_val,
        archives={DEVKIT: checked},
        members=members,
    )
    found.check(training, validation)
    return found


@dataclass(kw_only=True, eq=False)
class ArchiveSource(ImageSource):
    """A source whose images are members of archives; opening it checks all archives."""

    members: Mapping[str, Sequence[Member]]
    """Images of each archive by its path, in the order of their offsets."""
    digests: dict[str, Digests] = field(default_factory=dict)
    files: dict[str, int] = field(default_factory=dict)
    """File descriptors of the open archives."""

    @property
    def unpacked_size(self) -> int:
        """Number of bytes of the images' digests."""
        return DIGEST * sum(len(members) for members in self.members.values())

    @contextmanager
    def opened(self, unpacked: Path, options: Options) -> Iterator[None]:
        """Read the archives completely, unless an earlier preparation did.

        Raises:
            DatasetError: an archive is not the official one, or cannot be read.
        """
        size = sum(Path(path).stat().st_size for path in self.members)
        meter = Meter(options.progress, "checking the archives", size // PIECE, "MiB")

        def read_through(path: str, stopped: threading.Event) -> Digests | None:
            return _read_through(Path(path), self.members[path], unpacked, meter, stopped)

        found = in_threads(read_through, self.members, options.cores)
        for path, digests in zip(self.members, found, strict=True):
            if digests is not None:
                self.digests[path], self.archives[Path(path).name] = digests, digests.md5
        with ExitStack() as stack:
            for path in self.members:
                self.files[path] = stack.enter_context(Path(path).open("rb")).fileno()
            yield

    def read(self, image: Image) -> bytes:
        member = self.members[image.path][image.row]
        content = os.pread(self.files[image.path], member.size, member.start)
        if hashlib.sha256(content).digest() != self.digests[image.path].of(image.row):
            raise DatasetError(
                f"{image.name} in {image.path} has changed since the archive was checked; run "
                "the same command again"
            )
        return content


class Digests(NamedTuple):
    """MD5 of an archive, and the concatenated SHA-256 of its images."""

    md5: str
    sha256: bytes

    def of(self, row: int) -> bytes:
        """Return the SHA-256 of an image."""
        return self.sha256[DIGEST * row : DIGEST * (row + 1)]


def _require_official(path: Path, md5: str) -> str:
    """Return an archive's MD5. Raises DatasetError unless it is the published one."""
    published = ARCHIVES["imagenet"][path.name]
    if md5 != published:
        raise DatasetError(
            f"{path} is not the official archive: its MD5 is {md5}, published is {published}; "
            "download it again, or unpack it and name the folder with train/ and val/"
        )
    return md5


def _md5(path: Path) -> str:
    with read_errors(path), path.open("rb") as file:
        return hashlib.file_digest(file, _new_md5).hexdigest()


def _new_md5() -> hashlib._Hash:
    """Return an MD5 object; no other checksum is published."""
    return hashlib.md5(usedforsecurity=False)


def _members(path: Path, inside: Member | None = None) -> list[Member]:
    """Return the files in an archive, or in a tar file that is a member of it.

    Raises:
        DatasetError: the archive is damaged or cannot be read.
    """
    where = f"{path}" if inside is None else f"{inside.name} in {path}"
    damaged = restated(
        f"{where} is damaged", DatasetError, caught=(tarfile.TarError, EOFError, ValueError)
    )
    with damaged, read_errors(path), path.open("rb") as file:
        part = inside or Member("", 0, os.fstat(file.fileno()).st_size)
        file.seek(part.start)
        with tarfile.open(fileobj=file, mode="r:") as archive:
            found = [
                Member(each.name.rpartition("/")[2], each.offset_data, each.size)
                for each in archive
                if each.isfile()
            ]
    if not found:
        raise DatasetError(f"{where} has no files")
    beyond = [each for each in found if each.start + each.size > part.start + part.size]
    if beyond:
        raise DatasetError(f"{where} is truncated: it ends within {beyond[0].name}")
    return found


def _labelled(
    validation: Path, devkit: Path, labels: Mapping[str, int], threads: int
) -> list[Member]:
    """Return the validation images, named by their classes, in the order of their offsets."""
    found = sorted(_members(validation), key=lambda member: member.start)
    wnids = labels_of(
        validation,
        [member.name for member in found],
        [LabelFile(devkit, read_devkit)],
        labels,
        threads,
    )
    return [each._replace(name=f"{wnids[each.name]}/{each.name}") for each in found]


def _images(path: Path, members: Sequence[Member], labels: Mapping[str, int]) -> Iterator[Image]:
    modified = path.stat().st_mtime_ns
    for row, member in enumerate(members):
        label = labels[member.name.partition("/")[0]]
        yield Image(label, member.name, str(path), row, member.size, modified)


def _read_through(
    path: Path, members: Sequence[Member], folder: Path, meter: Meter, stopped: threading.Event
) -> Digests | None:
    """Read an archive completely. Returns None if the result is no longer needed."""
    note, digests = folder / f"{path.name}.json", folder / f"{path.name}.sha256"
    status = path.stat()
    known = _known(note, digests, status, len(members))
    if known is not None:
        _require_official(path, known.md5)
        return known
    found = _hashed(path, members, meter.add, stopped)
    if found is None:
        return None
    _require_official(path, found.md5)
    write_whole(digests, found.sha256)
    checked = Checked(
        size=status.st_size,
        modified=status.st_mtime_ns,
        md5=found.md5,
        images=len(members),
    )
    write_whole(note, checked.model_dump_json() + "\n")
    return found


def _known(note: Path, digests: Path, status: os.stat_result, images: int) -> Digests | None:
    """Return the digests of the same file recorded by an earlier preparation, or None."""
    checked = note_of(note, Checked, status)
    sha256 = digests.read_bytes() if digests.exists() else b""
    if checked is None or checked.images != images or len(sha256) != DIGEST * images:
        note.unlink(missing_ok=True)
        return None
    return Digests(checked.md5, sha256)


def _hashed(
    path: Path, members: Sequence[Member], add: Callable[[int], None], stopped: threading.Event
) -> Digests | None:
    md5, sha256 = _new_md5(), bytearray()
    done = 0
    with path.open("rb", buffering=PIECE) as file:
        for content, is_image in _pieces(file, members):
            if stopped.is_set():
                return None
            md5.update(content)
            if is_image:
                sha256 += hashlib.sha256(content).digest()
            before, done = done, done + len(content)
            add(done // PIECE - before // PIECE)
    return Digests(md5.hexdigest(), bytes(sha256))


def _pieces(file: IO[bytes], members: Sequence[Member]) -> Iterator[tuple[bytes, bool]]:
    """Yield all bytes of an archive in order, with a flag for whole images."""
    at = 0
    for member in members:
        while at < member.start:
            between = file.read(min(PIECE, member.start - at))
            if not between:
                break  # The file was truncated meanwhile: its MD5 will differ.
            at += len(between)
            yield between, False
        yield file.read(member.size), True
        at += member.size
    while rest := file.read(PIECE):
        yield rest, False
