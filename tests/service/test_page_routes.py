"""The live page's files, as they are served."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from fastapi.testclient import TestClient
from tests.service.serving import serving

from aiperf_hpc.service.page_routes import EXPORT, IMPORT, _assets, _script
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
    assert "assets/page.js" in linked
    (style,) = re.findall(r"<style>([^<]+)</style>", index.text)
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    assert f"style-src 'sha256-{digest}';" in policy, "no request is between the page and its paint"
    for name in linked:
        answer = client.get(f"/{name}")
        assert answer.status_code == 200
        assert answer.headers["content-security-policy"] == policy


def test_all_modules_are_one_script() -> None:
    """Each comes after those that it imports, which exist."""
    assets = _assets()
    script = _script(assets)
    order = re.findall(r'^modules\["(\w+\.js)"\] = ', script, re.MULTILINE)
    assert sorted(order) == sorted(n for n in assets if n.endswith(".js") and n != "try.js")
    assert not re.search(r"^(import|export)\b", script, re.MULTILINE)
    for name in order:
        text = assets[name].content.decode()
        for names, imported in IMPORT.findall(text):
            assert order.index(imported) < order.index(name)
            exported = EXPORT.findall(assets[imported].content.decode())
            assert set(re.findall(r"\w+", names)) <= set(exported), (name, imported)


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
