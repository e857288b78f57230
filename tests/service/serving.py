"""The service in process, for tests."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from fastapi.testclient import TestClient

from aiperf_hpc.service.app import create_app
from aiperf_hpc.service.runs import Runs


@contextmanager
def serving(runs: Runs) -> Iterator[TestClient]:
    """Serve runs in this process while the block runs."""
    with runs.served(), TestClient(create_app(runs), base_url="http://127.0.0.1") as client:
        yield client
