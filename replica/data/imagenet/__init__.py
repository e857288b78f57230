"""ImageNet (ILSVRC 2012, or any images in one of its layouts) as TFRecord shards."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from aiperf_hpc.replica.data.imagenet.loading import load, verify

if TYPE_CHECKING:
    from aiperf_hpc.replica.data.progress import Show
    from aiperf_hpc.replica.data.sharded.verification import Verification
    from aiperf_hpc.replica.data.staging import Options
    from aiperf_hpc.trial import DatasetInfo

__all__ = ["load", "prepare", "verify", "verify_folder"]

# A replica reads prepared folders, and does not import what makes and verifies them.


def prepare(source: Path, target: Path, options: Options | None = None) -> DatasetInfo:
    """Make a folder of shards: see ``preparation.prepare``."""
    from aiperf_hpc.replica.data.imagenet import preparation

    return preparation.prepare(source, target, options)


def verify_folder(
    folder: Path, threads: int, *, decode: bool = False, progress: Show | None = None
) -> Verification:
    """Check every file of a prepared folder: see ``verification.verify_folder``."""
    from aiperf_hpc.replica.data.imagenet import verification
    from aiperf_hpc.replica.data.progress import not_shown

    return verification.verify_folder(
        folder, threads, decode=decode, progress=progress or not_shown
    )
