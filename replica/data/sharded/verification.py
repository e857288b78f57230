"""Verification of a prepared folder of shards: every byte of every shard and sample."""

from __future__ import annotations

import threading
from itertools import accumulate
from pathlib import Path
from typing import NamedTuple

from aiperf_hpc.datasets import MANIFEST
from aiperf_hpc.errors import DatasetError
from aiperf_hpc.replica.data.progress import Meter, ShowProgress, in_threads, not_shown
from aiperf_hpc.replica.data.sharded.dataset import Codec, SampleFiles
from aiperf_hpc.replica.data.sharded.index import load_sizes, open_index, verify_shards
from aiperf_hpc.replica.data.sharded.preparation import PARTS, sha256_of


class Verification(NamedTuple):
    """The result of verifying a prepared folder."""

    files: int
    """Number of files that were read."""
    samples: int
    """Number of intact samples among those read."""
    broken: tuple[str, ...]
    """One line for each broken file."""


def verify(
    codec: Codec, folder: Path, threads: int, progress: ShowProgress = not_shown
) -> Verification:
    """Check every file of a prepared folder and, if none is broken, the dataset's SHA-256.

    Args:
        codec: format of the samples.
        folder: folder created by ``aiperf data prepare``.
        threads: number of shards read concurrently.
        progress: shows the progress.

    Raises:
        DatasetError: the folder's descriptions cannot be read or are from different preparations.
    """
    name = codec.name
    info, index = open_index(folder, name)
    meter = Meter(progress, "verifying", len(index.shards), "shards")
    lines, broken = list[tuple[str, str]](), list[str]()
    by_part = zip(
        PARTS, (index.train, index.validation), load_sizes(folder, index, name), strict=True
    )
    for part, shards, sizes in by_part:
        files = SampleFiles(name, folder, shards, sizes)
        starts = accumulate((shard.samples for shard in shards), initial=0)

        def check(
            job: tuple[int, int], stopped: threading.Event, files: SampleFiles = files
        ) -> tuple[list[str], str | None]:
            return _check_shard(codec, files, *job, stopped)

        jobs = list(zip(range(len(shards)), starts, strict=False))
        for digests, problem in in_threads(check, jobs, threads, meter):
            lines += [(part, digest) for digest in digests]
            broken += [problem] if problem else []
    if not broken and sha256_of(lines) != info.sha256:
        broken.append(
            f"{folder / MANIFEST} states the SHA-256 {info.sha256[:12]}, that of the samples is "
            f"{sha256_of(lines)[:12]}; prepare the dataset again"
        )
    return Verification(len(index.shards) + 3, len(lines), tuple(broken))


def _check_shard(
    codec: Codec, files: SampleFiles, number: int, start: int, stopped: threading.Event
) -> tuple[list[str], str | None]:
    """Return the digests of a shard's samples, and the first problem or None."""
    shard, digests = files.shards[number], list[str]()
    try:
        verify_shards(files.folder, [shard], 1, codec.name, whole=True)
        for place in range(start, start + shard.samples):
            if stopped.is_set():
                break
            digests.append(files.read(place, codec.sha256))
    except DatasetError as error:
        return digests, str(error)
    return digests, None
