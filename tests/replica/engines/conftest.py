"""The engines that compute."""

from __future__ import annotations

import pytest
from tests.support.engine_steps import ENGINES

from aiperf_hpc.replica.engines import load_engine
from aiperf_hpc.replica.engines.base import RankEngine


@pytest.fixture(scope="module", params=ENGINES)
def engine(request: pytest.FixtureRequest) -> RankEngine:
    return load_engine(request.param, 2)


@pytest.fixture(scope="module")
def both() -> tuple[RankEngine, RankEngine]:
    tensorflow, torch = (load_engine(name, 2) for name in ENGINES)
    return tensorflow, torch
