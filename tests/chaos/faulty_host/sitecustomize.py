"""Lets a process list new journals late, as an NFS client does that caches a folder's content."""

from __future__ import annotations

import os
import time
from pathlib import Path

from aiperf_hpc.run.history.tail import Tail

LATE_SECONDS = float(os.environ.get("AIPERF_LISTED_LATE", "0"))
_unknown = Tail.unknown
_listed: dict[Path, float] = {}


def _late(self: Tail, replica: str | None = None) -> list[Path]:
    now = time.monotonic()
    visible = now + LATE_SECONDS if _listed else now  # At first nothing is cached.
    found = _unknown(self, replica)
    return [path for path in found if _listed.setdefault(path, visible) <= now]


Tail.unknown = _late  # type: ignore[method-assign]
