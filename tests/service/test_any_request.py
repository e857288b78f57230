"""Whatever is asked, the service has an answer: requests made of its own description."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import schemathesis
from fastapi import FastAPI
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from schemathesis.specs.openapi.schemas import OpenApiSchema
from starlette.testclient import TestClient
from tests.service.conftest import SHOWN
from tests.service.fake_primaries import FakePrimaries, Played
from tests.service.serving import serving_queue
from tests.support.run_factory import Plan, write_run

from aiperf_hpc.run.paths import RunPaths
from aiperf_hpc.service.run_queue import Process

FEW, MANY = 3, 700
"""Requests of each operation."""
ENDLESS = "/events/stream"
NAMES = st.sampled_from(["over", "live", "none", "..", "r0", "r0-t001", "000001", "report.json"])
TOKENS = st.sampled_from([{}, *3 * [SHOWN], {"Authorization": "B x"}])


class Stopping(FakePrimaries):
    """Primaries that start nothing to end a run either."""

    def stop(self, paths: RunPaths) -> Process | None:
        return Played()


@pytest.fixture(scope="module")
def app(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FastAPI]:
    folder: Path = tmp_path_factory.mktemp("runs")
    write_run(folder / "live", Plan(replicas=1, trials=1, hpo_trials=0, ended=False))
    write_run(folder / "over", Plan(replicas=1, trials=2, hpo_trials=0))
    with serving_queue(folder, Stopping()) as client:
        assert isinstance(client.app, FastAPI)
        yield client.app


def _ask_everything(app: FastAPI, examples: int) -> int:
    """Ask so much of each operation; return how many requests that were."""
    schema: OpenApiSchema = schemathesis.openapi.from_dict(app.openapi())
    asked = 0
    with TestClient(app, base_url="http://127.0.0.1", raise_server_exceptions=False) as client:
        results: Iterator[Any] = iter(schema.get_all_operations())
        for result in results:
            operation = result.ok()
            if operation.path.endswith(ENDLESS):
                continue

            @settings(
                max_examples=examples,
                deadline=None,
                database=None,
                derandomize=True,
                suppress_health_check=list(HealthCheck),
            )
            @given(case=operation.as_strategy(), shown=TOKENS, name=NAMES, known=st.booleans())
            def ask(case: Any, shown: dict[str, str], name: str, known: bool) -> None:  # noqa: ANN401
                nonlocal asked
                if known:
                    case.path_parameters = dict.fromkeys(case.path_parameters or (), name)
                asked += 1
                request = case.as_transport_kwargs(base_url="http://127.0.0.1", headers=shown)
                request.pop("cookies", None)
                answer = client.request(**{k: v for k, v in request.items() if v is not None})
                assert answer.status_code < 500, (request, answer.text)
                if answer.status_code >= 400:
                    assert answer.headers["content-type"] == "application/problem+json"

            ask()
    return asked


def test_no_request_is_a_server_error(app: FastAPI) -> None:
    assert _ask_everything(app, FEW) >= 20


@pytest.mark.fuzz
def test_none_of_ten_thousand_requests_is_a_server_error(app: FastAPI) -> None:
    asked = _ask_everything(app, MANY)
    print(f"{asked} requests")  # noqa: T201 -- with -s
    assert asked >= 10_000


NUMBERS = (
    f"1{30 * '0'}", "-1", "9223372036854775807", "9223372036854775808", 5000 * "9", "1e400", "1e5",
    "0x10", "NaN", "inf", "-inf", "", "0", "0.5", "١", "²", "1_000", " 1", "[]", "\u2028", "\0",
)  # fmt: skip


def _numeric(app: FastAPI) -> Iterator[tuple[str, str]]:
    """The path and the name of each query parameter that is a number."""
    names = {"run": "over", "trial": "r0-t001", "replica": "r0", "file": "run.yaml"}
    for path, operations in app.openapi()["paths"].items():
        for parameter in operations.get("get", {}).get("parameters", ()):
            kinds = set(re.findall(r"\w+", str(parameter["schema"])))
            if parameter["in"] == "query" and kinds & {"integer", "number"}:
                yield path.format(**names), parameter["name"]


def test_any_number_is_answered_or_refused_in_one_line(app: FastAPI) -> None:
    statuses = Counter[tuple[int, bool]]()
    with TestClient(app, base_url="http://127.0.0.1", raise_server_exceptions=False) as client:
        for path, parameter in _numeric(app):
            endless = path.endswith(ENDLESS)
            numbers = NUMBERS[:1] if endless else NUMBERS
            for value in (given_ for number in numbers for given_ in (number, ["1", number])):
                answer = client.get(path, params={parameter: value})
                statuses[answer.status_code, endless] += 1
                where = (path, parameter, str(value)[:50], answer.text)
                assert answer.status_code in (200, 422), where
                if answer.status_code == 422:
                    assert len(answer.json()["detail"].splitlines()) == 1, where
    assert statuses.keys() == {(200, False), (422, False), (422, True)}
