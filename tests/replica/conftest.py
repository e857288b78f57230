"""What the replica's tests share."""

from __future__ import annotations

import pytest

from aiperf_hpc.replica.engines import load_engine


@pytest.fixture(scope="session", autouse=True)
def _engine_first() -> None:
    """As in a replica: the engine sets its threads before anything else uses the framework."""
    load_engine("tensorflow", 2)
