"""Verifying a prepared folder of maps: every shard to its last byte, and the dataset's SHA-256."""

from __future__ import annotations

from pathlib import Path

from aiperf_hpc.dataset_manifest import MANIFEST
from aiperf_hpc.errors import DatasetError
from aiperf_hpc.replica.data.extremeweather.dataset import Records, open_index
from aiperf_hpc.replica.data.extremeweather.preparation import PARTS, sha256_of
from aiperf_hpc.replica.data.extremeweather.samples import NAME
from aiperf_hpc.replica.data.progress import Meter, Show, not_shown
from aiperf_hpc.replica.data.sharded.verification import Verification
from aiperf_hpc.replica.data.shards import verify_shards


def verify(folder: Path, threads: int, progress: Show = not_shown) -> Verification:
    """Check every shard of a prepared folder, and where none is broken the dataset's SHA-256.

    Args:
        folder: of ``aiperf data prepare``.
        threads: how many shards are looked at at once.
        progress: is told how far it is.

    Raises:
        DatasetError: what describes the folder cannot be read, or is of two preparations.
    """
    info, index = open_index(folder)
    parts = index.train, index.validation
    meter = Meter(progress, "verifying", len(index.train) + len(index.validation), "shards")
    lines, broken = list[tuple[str, str]](), list[str]()
    for part, shards in zip(PARTS, parts, strict=True):
        for shard in shards:
            try:
                verify_shards(folder, [shard], threads, NAME, whole=True)
            except DatasetError as error:
                broken.append(str(error))
                continue
            finally:
                meter.add()
            records = Records(folder, [shard], info.input_shape("image"))
            lines += [(part, records.read(place).sha256) for place in range(shard.samples)]
    if not broken and sha256_of(lines) != info.sha256:
        broken.append(
            f"{folder / MANIFEST} states the SHA-256 {info.sha256[:12]}, that of the maps is "
            f"{sha256_of(lines)[:12]}; prepare the dataset again"
        )
    return Verification(sum(map(len, parts)) + 2, len(lines), tuple(broken))
