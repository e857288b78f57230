"""Sources and prepared folders of ImageNet that a test may change."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from tests.support.imagenet_source import write_source


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A little ImageNet in the official layout."""
    return write_source(tmp_path / "source")


@pytest.fixture
def folder(imagenet_folder: Path, tmp_path: Path) -> Path:
    """The same, prepared in four shards."""
    return Path(shutil.copytree(imagenet_folder, tmp_path / "prepared"))
