"""Reading millions of bytes from within a file."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import numpy as np
from numpy.typing import NDArray


class _Memory(threading.local):
    """What a thread reads into, as long as it lives.

    New memory the kernel has to clear, which took longer than reading 56 MB into it.
    """

    def __init__(self) -> None:
        self.bytes = np.empty(0, np.uint8)


_memory = _Memory()


def read_part(path: Path, offset: int, size: int) -> NDArray[np.uint8]:
    """Return so many bytes of a file, fewer where it ends before. Raises OSError.

    They are there until this thread reads the next ones.
    """
    if len(_memory.bytes) < size:
        _memory.bytes = np.empty(size, np.uint8)
    content = _memory.bytes[:size]
    with path.open("rb", buffering=0) as file:
        return content[: os.preadv(file.fileno(), [content.data], offset)]
