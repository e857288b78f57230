"""Verifying a prepared folder of shards: every shard and every sample of it, to the last byte."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from aiperf_hpc.datasets.manifest import MANIFEST
from aiperf_hpc.errors import DatasetError
from aiperf_hpc.replica.data.jobs import in_threads
from aiperf_hpc.replica.data.progress import Meter, Show, not_shown
from aiperf_hpc.replica.data.sharded.dataset import Codec, Files
from aiperf_hpc.replica.data.sharded.writing import PARTS, sha256_of
from aiperf_hpc.replica.data.shards import Shard, load_sizes, open_index, verify_shards


class Verification(NamedTuple):
    """What a look at a prepared folder found."""

    files: int
    """Files that were looked at."""
    samples: int
    """Samples in them that are as they should be, as far as was looked."""
    broken: tuple[str, ...]
    """What is wrong, a line for each broken file."""


class _Found(NamedTuple):
    digests: list[str]
    problem: str | None


def verify(codec: Codec, folder: Path, threads: int, progress: Show = not_shown) -> Verification:
    """Check every file of a prepared folder, and where none is broken the dataset's SHA-256.

    Args:
        codec: what is stored of its samples.
        folder: of ``aiperf data prepare``.
        threads: how many shards are looked at at once.
        progress: is told how far it is.

    Raises:
        DatasetError: what describes the folder cannot be read, or is of two preparations.
    """
    name = codec.name
    info, index = open_index(folder, name)
    meter = Meter(progress, "verifying", len(index.train) + len(index.validation), "shards")
    lines, broken = list[tuple[str, str]](), list[str]()
    by_part = zip(PARTS, (index.train, index.validation), load_sizes(folder, index, name),
                  strict=True)  # fmt: skip
    for part, shards, sizes in by_part:
        files = Files(name, folder, shards, sizes)

        def checked(
            at: tuple[int, Shard], stopped: threading.Event, files: Files = files
        ) -> _Found:
            found = _shard(codec, files, *at, stopped)
            meter.add()
            return found

        for found in in_threads(checked, list(_places(shards)), threads):
            lines += [(part, digest) for digest in found.digests]
            broken += [found.problem] if found.problem else []
    if not broken and sha256_of(lines) != info.sha256:
        broken.append(
            f"{folder / MANIFEST} states the SHA-256 {info.sha256[:12]}, that of the samples is "
            f"{sha256_of(lines)[:12]}; prepare the dataset again"
        )
    return Verification(len(index.train) + len(index.validation) + 3, len(lines), tuple(broken))


def _places(shards: tuple[Shard, ...]) -> Iterator[tuple[int, Shard]]:
    """Yield each shard with the place of its first sample."""
    start = 0
    for shard in shards:
        yield start, shard
        start += shard.samples


def _shard(
    codec: Codec, files: Files, start: int, shard: Shard, stopped: threading.Event
) -> _Found:
    digests = list[str]()
    try:
        verify_shards(files.folder, [shard], 1, codec.name, whole=True)
        for place in range(start, start + shard.samples):
            if stopped.is_set():
                break
            digests.append(files.read(place, codec.sha256))
    except DatasetError as error:
        return _Found(digests, str(error))
    return _Found(digests, None)
