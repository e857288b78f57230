"""Decoded images in memory, for the epochs after the first one that needs them."""

from __future__ import annotations

from threading import Lock
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from PIL import Image

PIXEL_BYTES = 4
"""What Pillow holds a pixel of three colours in."""


class DecodedImage(NamedTuple):
    """A whole image, in RGB, and its class."""

    colours: Image.Image
    label: int


class DecodedImages:
    """As many of a dataset's images as fit into some memory: those that were decoded first.

    None makes room for another. Each is used once in an epoch, so that the one that was not used
    for longest is the one that is wanted next.
    """

    def __init__(self, most_bytes: int) -> None:
        self._left = most_bytes
        self._images: dict[tuple[str, int], DecodedImage] = {}
        self._lock = Lock()

    def __len__(self) -> int:
        return len(self._images)

    def get(self, shard: str, offset: int) -> DecodedImage | None:
        """Return the image of the record at this byte of a shard, if it was kept."""
        return self._images.get((shard, offset))

    def keep(self, shard: str, offset: int, image: DecodedImage) -> None:
        """Keep a copy of an image, if there is room for it. Threads may call it."""
        taken = PIXEL_BYTES * image.colours.width * image.colours.height
        with self._lock:
            if taken > self._left or (shard, offset) in self._images:
                return
            self._left -= taken
        # A copy: an image that was opened holds the file that it came from.
        self._images[shard, offset] = image._replace(colours=image.colours.copy())
