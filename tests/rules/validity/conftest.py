"""A release to judge runs by."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.support.official_run import write_release


@pytest.fixture(autouse=True)
def _released(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    folder: Path = tmp_path_factory.mktemp("releases")
    monkeypatch.setattr("aiperf_hpc.integrity.release.RELEASES", folder)
    write_release(folder)
