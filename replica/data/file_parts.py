"""Reading millions of bytes from within a file."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
from numpy.typing import NDArray


def read_part(path: Path, offset: int, size: int) -> NDArray[np.uint8]:
    """Return so many bytes of a file, fewer where it ends before. Raises OSError.

    They are read into an array, not into ``bytes``: numpy asks for large pages, and to have the
    kernel clear small ones took three quarters of reading 56 MB.
    """
    content = np.empty(size, np.uint8)
    with path.open("rb", buffering=0) as file:
        return content[: os.preadv(file.fileno(), [content.data], offset)]
