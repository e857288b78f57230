"""The documentation as a site, built once for all tests of it."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.support.site import build_site


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_site(tmp_path_factory.mktemp("site"))
