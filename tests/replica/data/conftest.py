"""Small datasets of real photographs, and sources that look like the official ones."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.fetch_photographs import NotAvailableError, fetch
from tests.support.cache import cached, unavailable
from tests.support.imagenet_source import write_source

from aiperf_hpc.replica.data.imagenet.sources import prepare as prepare_imagenet
from aiperf_hpc.replica.data.staging import Options

LeaveFree = Callable[[int], None]


@pytest.fixture
def leave_free(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Set the free bytes of all file systems."""

    def leave(free: int) -> None:
        usage = shutil._ntuple_diskusage(10**9, 10**9 - free, free)
        monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)

    return leave


@pytest.fixture(scope="session")
def imagenet_source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A little ImageNet in the official layout. Not to be changed."""
    return write_source(tmp_path_factory.mktemp("imagenet") / "source")


@pytest.fixture(scope="session")
def imagenet_folder(imagenet_source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same, prepared in four shards. Not to be changed."""
    folder = tmp_path_factory.mktemp("imagenet") / "prepared"
    prepare_imagenet(imagenet_source, folder, Options(shards=4, cores=2))
    return folder


@pytest.fixture(scope="session")
def photographs() -> list[bytes]:
    """20 photographs of ImageNet, true JPEG files, fetched once and kept in the cache.

    Without a package index the test is skipped; where the environment variable CI is set it fails.
    """
    try:
        folder = cached("photographs", fetch)
    except NotAvailableError as error:
        unavailable(f"photographs of ImageNet are not available: {error}")
    return [path.read_bytes() for path in sorted(folder.iterdir())]
