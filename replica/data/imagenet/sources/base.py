"""What a source of ImageNet is, in whichever layout it lies."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Protocol

from aiperf_hpc.errors import DatasetError, reason_of
from aiperf_hpc.replica.data.progress import Show


class Image(NamedTuple):
    """An image of a source. A tuple of plain values, since there are 1.3 million of them."""

    label: int
    name: str
    """``<wnid>/<file>``, in every layout."""
    path: str
    """The file that holds it."""
    row: int | None
    """Its place in that file, where it is one of many."""
    size: int
    """Bytes that it takes, roughly where it is one of many."""
    modified: int
    """When the file was changed, in nanoseconds since 1970."""

    @property
    def place(self) -> str:
        """Where it is, for people."""
        return self.path if self.row is None else f"{self.path}, row {self.row},"


@dataclass(frozen=True, slots=True)
class Listing:
    """The images of a source, without their content."""

    layout: str
    """In words."""
    wnids: Sequence[str]
    """The names of the classes, by their labels: sorted."""
    training: list[Image]
    """Sorted by label and name."""
    validation: list[Image]
    """Likewise."""
    folders: tuple[Path, ...]
    """Those that the images lie in."""

    @property
    def size(self) -> int:
        """Bytes of all images, roughly."""
        return sum(image.size for image in (*self.training, *self.validation))


ReadImage = Callable[[Image], bytes]
"""Returns an image's file. Raises OSError, or DatasetError where it is no longer what it was."""


class Source(Protocol):
    """A source that was found in one of the layouts."""

    @property
    def listing(self) -> Listing: ...

    @property
    def archives(self) -> Mapping[str, str]:
        """The MD5 of the official archives that it is, by their files; empty where it is not."""
        ...

    @property
    def unpacked_size(self) -> int:
        """Bytes that it needs to be read in any order, besides the dataset."""
        ...

    def opened(
        self, unpacked: Path, threads: int, progress: Show
    ) -> AbstractContextManager[ReadImage]:
        """Return what reads its images, in any order and by many threads.

        Args:
            unpacked: a folder for what that takes; what is finished there is not made again.
            threads: how many make it.
            progress: is told how far that is.
        """
        ...


def and_more(what: str, all_of: Sequence[object]) -> str:
    """Return a problem of the first of several things, with the number of the others."""
    return what if len(all_of) == 1 else f"{what} (and {len(all_of) - 1} more)"


def entries(folder: Path) -> list[os.DirEntry[str]]:
    """List a folder by name, hidden files left out. Raises DatasetError."""
    try:
        with os.scandir(folder) as found:
            shown = [entry for entry in found if not entry.name.startswith(".")]
    except OSError as error:
        raise DatasetError(f"cannot read {folder}: {reason_of(error)}") from None
    return sorted(shown, key=lambda entry: entry.name)


def check(listing: Listing, parts: Mapping[str, str]) -> None:
    """Check what must hold in every layout.

    Args:
        parts: what the training and the validation images are called in the layout.

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
                f"{first.place.rstrip(',')} and {image.place.rstrip(',')} have one name, "
                f"{name(image)}: take one of them away"
            )
