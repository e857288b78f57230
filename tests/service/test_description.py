"""The interface describes itself: OpenAPI, an interactive page, metrics and their dashboard."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from importlib import resources
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient
from prometheus_client.parser import text_string_to_metric_families
from tests.service.serving import serving_queue
from tests.support.pages import Page
from tests.support.run_factory import Plan, write_run

from aiperf_hpc.service.app import create_app
from aiperf_hpc.service.runs import OneRun, runs_in


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    folder = tmp_path_factory.mktemp("runs")
    write_run(folder / "live", Plan(replicas=2, trials=2, hpo_trials=0, ended=False))
    write_run(folder / "over", Plan(replicas=1, trials=1, hpo_trials=0))
    with serving_queue(folder) as client:
        yield client


@pytest.fixture(scope="module")
def described(client: TestClient) -> dict[str, Any]:
    found: dict[str, Any] = client.get("/openapi.json").json()
    return found


def _operations(described: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    for path, methods in described["paths"].items():
        for method, operation in methods.items():
            yield f"{method.upper()} {path}", operation


def test_every_operation_and_parameter_is_described(described: dict[str, Any]) -> None:
    tags = {tag["name"] for tag in described["tags"]}
    for name, operation in _operations(described):
        assert operation["description"], name
        assert set(operation["tags"]) <= tags, name
        for parameter in operation.get("parameters", ()):
            assert parameter["description"], (name, parameter["name"])


def test_every_field_is_described(described: dict[str, Any]) -> None:
    silent = {
        f"{name}.{field}"
        for name, schema in described["components"]["schemas"].items()
        for field, value in schema.get("properties", {}).items()
        if not value.get("description") and name not in ("ValidationError", "HTTPValidationError")
    }
    assert not silent


def test_every_refusal_is_a_problem(described: dict[str, Any]) -> None:
    for name, operation in _operations(described):
        for status, answer in operation["responses"].items():
            if int(status) >= 400:
                assert list(answer["content"]) == ["application/problem+json"], (name, status)


def test_one_run_alone_is_described_too(tmp_path: Path) -> None:
    runs = runs_in(write_run(tmp_path / "a", Plan(trials=0, hpo_trials=0)).root)
    assert isinstance(runs, OneRun)
    described = create_app(runs).openapi()
    assert {"/api/v1/status", "/api/v1/score", "/api/v1/trials"} <= described["paths"].keys()
    names = [operation["operationId"] for _, operation in _operations(described)]
    assert len(names) == len(set(names))


def test_the_documentation_page(client: TestClient, described: dict[str, Any]) -> None:
    answer = client.get("/docs")
    policy = answer.headers["content-security-policy"]
    assert policy.startswith("default-src 'none'")
    assert "script-src 'self';" in policy
    elements = Page(answer.text).elements
    assert not {each.tag for each in elements} & {"img", "link", "iframe"}
    (script,) = (each.attributes for each in elements if each.tag == "script")
    assert script == {"type": "module", "src": "assets/try.js"}
    forms = {(a["data-method"], a["data-path"]) for tag, a, _ in elements if tag == "form"}
    streams = {name for name, _ in _operations(described) if name.endswith("/stream")}
    assert {" ".join(form) for form in forms} | streams == {n for n, _ in _operations(described)}
    places = [a["id"] for _, a, _ in elements if "id" in a]
    assert len(places) == len(set(places))
    links = {a[name] for _, a, _ in elements for name in ("href", "src") if name in a}
    assert {link for link in links if not link.startswith("#")} == {
        "openapi.json", ".", "assets/try.js",
    }  # fmt: skip
    assert {link[1:] for link in links if link.startswith("#")} <= set(places)
    for name, _ in _operations(described):
        assert f"<h3>{name}</h3>" in answer.text, name
    for schema in described["components"]["schemas"]:
        assert f"type-{schema}" in places


def _metrics(client: TestClient) -> dict[str, dict[tuple[tuple[str, str], ...], float]]:
    answer = client.get("/metrics")
    assert answer.status_code == 200
    return {
        sample.name: {
            tuple(sorted(other.labels.items())): other.value
            for other in family.samples
            if other.name == sample.name
        }
        for family in text_string_to_metric_families(answer.text)
        for sample in family.samples
    }


def test_metrics_are_those_of_the_status(client: TestClient) -> None:
    client.get("/api/v1/runs")
    found = _metrics(client)
    status = client.get("/api/v1/runs/over/status").json()
    assert found["aiperf_run_ops"][(("run", "over"),)] == status["score"]["ops"]
    operations = found["aiperf_run_operations_total"][(("run", "over"),)]
    assert operations == status["score"]["operations"]
    assert sum(found["aiperf_runs"].values()) == 2
    assert found["aiperf_http_requests_total"][(("method", "GET"), ("status", "200"))] >= 1


def test_the_dashboard_shows_metrics_that_there_are(client: TestClient) -> None:
    text = (resources.files("aiperf_hpc.deploy") / "grafana-dashboard.json").read_text("utf-8")
    dashboard = json.loads(text)
    shown = {t["expr"] for panel in dashboard["panels"] for t in panel["targets"]}
    used = {name for expr in shown for name in re.findall(r"aiperf_\w+", expr)}
    told = {
        line.split()[2] for line in client.get("/metrics").text.splitlines() if line[:6] == "# TYPE"
    }
    base = {re.sub(r"_bucket$", "", name) for name in used}
    assert base <= told
    boxes = [panel["gridPos"] for panel in dashboard["panels"]]
    assert all(box["x"] + box["w"] <= 24 for box in boxes)
