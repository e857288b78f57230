"""A source of ImageNet in any layout."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from aiperf_hpc.datasets import read_errors
from aiperf_hpc.errors import DatasetError
from aiperf_hpc.replica.data.jobs import ShowProgress


class Image(NamedTuple):
    """An image of a source. A tuple of plain values, since there are 1.3 million of them."""

    label: int
    name: str
    """``<wnid>/<file>``, in every layout."""
    path: str
    """The file that holds it."""
    row: int | None
    """Its place in that file, if it is one of many."""
    size: int
    """Its bytes, roughly if it is one of many."""
    modified: int
    """Time of the file's last change in nanoseconds since 1970."""

    @property
    def wnid(self) -> str:
        """Name of its class."""
        return self.name.partition("/")[0]

    @property
    def place(self) -> str:
        """Its place, for people."""
        return self.path if self.row is None else f"{self.path}, row {self.row}"


@dataclass(frozen=True, slots=True)
class Listing:
    """The images of a source, without their content."""

    layout: str
    """Description for people."""
    wnids: Sequence[str]
    """Names of the classes, sorted, by their labels."""
    training: list[Image]
    """Sorted by label and name."""
    validation: list[Image]
    """Sorted by label and name."""
    folders: tuple[Path, ...]
    """Folders that the images lie in."""

    @property
    def size(self) -> int:
        """Bytes of all images, roughly."""
        return sum(image.size for image in (*self.training, *self.validation))


ReadImage = Callable[[Image], bytes]
"""Returns an image's file. Raises OSError, or DatasetError if it has changed."""


@dataclass(slots=True)
class ImageSource:
    """Images in one of the layouts; here each is a file of its own."""

    listing: Listing
    archives: dict[str, str] = field(default_factory=dict)
    """MD5 of the official archives that were read, by their files."""

    @property
    def unpacked_size(self) -> int:
        """Bytes that are needed to read it in any order, besides the dataset."""
        return 0

    @contextmanager
    def opened(self, unpacked: Path, threads: int, progress: ShowProgress) -> Iterator[ReadImage]:
        """Return the function that reads its images, in any order and by many threads.

        Args:
            unpacked: a folder for what that takes; what is finished there is not made again.
            threads: number of threads that make it.
            progress: shows the progress.

        Raises:
            DatasetError: the source cannot be read, or is no longer what it was.
        """
        del unpacked, threads, progress
        yield lambda image: Path(image.path).read_bytes()


def and_more(what: str, all_of: Sequence[object]) -> str:
    """Return a problem of the first of several things, with the number of the others."""
    return what if len(all_of) == 1 else f"{what} (and {len(all_of) - 1} more)"


def entries(folder: Path) -> list[os.DirEntry[str]]:
    """List a folder by name, hidden files left out. Raises DatasetError."""
    with read_errors(folder), os.scandir(folder) as found:
        shown = [entry for entry in found if not entry.name.startswith(".")]
    return sorted(shown, key=lambda entry: entry.name)


def check_listing(listing: Listing, parts: Mapping[str, str]) -> None:
    """Check a listing of any layout.

    Args:
        parts: descriptions of the training and the validation images.

    Raises:
        DatasetError: a class has no images, or two images have one name.
    """
    for part, images in zip(parts.values(), (listing.training, listing.validation), strict=True):
        found = {image.label for image in images}
        absent = [wnid for label, wnid in enumerate(listing.wnids) if label not in found]
        if absent:
            raise DatasetError(and_more(f"{part} has no image of the class {absent[0]}", absent))
        _refuse_duplicates(images, lambda image: image.name)
    # Their numbers go through all classes: in two of them, one image has two labels.
    official = [image for image in listing.validation if "/ILSVRC2012_val_" in image.name]
    _refuse_duplicates(official, lambda image: image.name.partition("/")[2])


def _refuse_duplicates(images: Iterable[Image], name: Callable[[Image], str]) -> None:
    seen: dict[str, Image] = {}
    for image in images:
        first = seen.setdefault(name(image), image)
        if first is not image:
            raise DatasetError(
                f"{first.place} and {image.place} have one name, "
                f"{name(image)}: take one of them away"
            )
