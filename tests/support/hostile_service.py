"""Untrusted runs served over HTTP in this process: all addresses, and valid answers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from httpx2 import Response
from starlette.testclient import TestClient
from tests.support.waiting import PATIENCE_SECONDS

from aiperf_hpc.service.app import create_app
from aiperf_hpc.service.runs import FolderOfRuns
from aiperf_hpc.service.served_run import Readers

API: Final = "/api/v1"
OF_ALL: Final = (f"{API}/runs", "/metrics", "/readyz")
ENDLESS: Final = "/events/stream"
FILES: Final = ("report.html", "report.json", "result.txt", "manifest.json", "run.yaml")
NAMES: Final = {"{trial}": ("r0-t1", "r0-t001"), "{replica}": ("r0",), "{file}": FILES}
PROBLEM: Final = "application/problem+json"


class Renewed:
    """The runs of a folder, of which nothing is known yet at each ``begun``."""

    only = None

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._runs = FolderOfRuns(folder)

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 -- what ``Runs`` has
        return getattr(self._runs, name)

    @contextmanager
    def begun(self) -> Iterator[None]:
        self._runs = FolderOfRuns(self._folder, Readers(PATIENCE_SECONDS, PATIENCE_SECONDS))
        with self._runs.served():
            yield


@contextmanager
def client_of(runs: Any) -> Iterator[TestClient]:  # noqa: ANN401
    """Serve runs; an error that nobody foresaw is an answer of status 500."""
    app = create_app(runs)
    address = "http://127.0.0.1"
    with TestClient(app, base_url=address, raise_server_exceptions=False) as client:
        yield client


@contextmanager
def strangers_served(folder: Path) -> Iterator[TestClient]:
    """Serve the runs of a folder while the block runs."""
    runs = Renewed(folder)
    with client_of(runs) as client, runs.begun():
        yield client


def addresses_of(client: TestClient, run: str, other: str | None = None) -> list[str]:
    """Return all addresses at which a run can be read, a comparison with another among them."""
    templates = client.get("/openapi.json").json()["paths"]
    below = [t for t in templates if t.startswith(f"{API}/runs/{{run}}/") and ENDLESS not in t]
    found = [f"{API}/compare?run={run}&run={other}"] if other else []
    for template in (each.replace("{run}", run) for each in below):
        word = next((word for word in NAMES if word in template), "")
        found += [template.replace(word, name) for name in NAMES[word]] if word else [template]
    return found


def answered(client: TestClient, address: str) -> Response:
    """Ask; return the answer, which says what is wrong where it is none.

    Raises:
        AssertionError: nobody had foreseen what is there, or it is said in no line.
    """
    answer = client.get(address)
    status = answer.status_code
    assert status in (200, 404, 503), (address, status, answer.text[:500])
    if status != 200:
        assert answer.headers["content-type"] == PROBLEM, address
        detail = answer.json()["detail"]
        assert detail, address
        assert "\n" not in detail, address
        assert len(detail) < 2_000, (address, detail)
    return answer
