"""The live page's files, as they are served."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from fastapi.testclient import TestClient
from tests.service.serving import serving

from aiperf_hpc.service.page_routes import _assets
from aiperf_hpc.service.runs import FolderOfRuns


@pytest.fixture
def client(tmp_path: Path) -> Iterator[TestClient]:
    with serving(FolderOfRuns(tmp_path)) as serving_:
        yield serving_


def test_the_page_loads_nothing_but_its_own_files(client: TestClient) -> None:
    index = client.get("/")
    assert index.headers["content-type"] == "text/html; charset=utf-8"
    policy = index.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    linked = re.findall(r'(?:href|src)="(assets/[^"]+)"', index.text)
    assert {"assets/main.js", "assets/page.css", "assets/report.css"} <= set(linked)
    for name in linked:
        answer = client.get(f"/{name}")
        assert answer.status_code == 200
        assert answer.headers["content-security-policy"] == policy


def test_modules_import_each_other_and_are_loaded_at_once() -> None:
    """Each is named in the page, so that a browser need not read one to ask for the next."""
    files = {name: asset.content.decode() for name, asset in _assets().items()}
    modules = {name for name in files if name.endswith(".js")}
    for name in modules:
        imported = re.findall(r'from "([^"]+)"', files[name])
        assert {each.removeprefix("./") for each in imported} <= modules, name
        assert f'"assets/{name}"' in files["index.html"] or name == "try.js"


def test_what_runs_say_is_never_taken_for_markup() -> None:
    for name, asset in _assets().items():
        if name.endswith(".js"):
            markup = rb"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\b|srcdoc"
            assert not re.search(markup, asset.content), name


def test_a_file_that_did_not_change_is_not_sent_again(client: TestClient) -> None:
    first = client.get("/assets/main.js")
    again = client.get("/assets/main.js", headers={"If-None-Match": first.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")


@pytest.mark.parametrize("name", ["none.js", "__init__.py", "..%2fapp.py", "%2e%2e"])
def test_nothing_else_is_served(client: TestClient, name: str) -> None:
    assert client.get(f"/assets/{name}").status_code == 404
