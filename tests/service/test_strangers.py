"""Runs of strangers, served: a clear answer from each address, in bounded time and memory."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator

import pytest
from fastapi.testclient import TestClient
from tests.support.hostile import CHANGES, finished_run
from tests.support.hostile_service import API, OF_ALL, addresses_of, answered, strangers_served

from aiperf_hpc.run.paths import RunPaths

NAMES = [*CHANGES]
MOST_SECONDS = 5.0
"""What an answer may take, of processor time."""


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    """A service of a folder in which each run was changed in another way, but for ``honest``."""
    folder = tmp_path_factory.mktemp("runs")
    honest = finished_run(folder / "honest").root
    for number, change in enumerate(CHANGES.values()):
        run = RunPaths(folder / f"run-{number}")
        shutil.copytree(honest, run.root)
        change(run)
    with strangers_served(folder) as client:
        yield client


def test_all_of_them_are_listed(client: TestClient) -> None:
    assert {answered(client, address).status_code for address in OF_ALL} == {200}
    listed = client.get(f"{API}/runs").json()
    assert "honest" in {row["name"] for row in listed["runs"]}
    assert not listed["loading"]


def test_an_honest_run_beside_them_is_served(client: TestClient) -> None:
    found = [answered(client, each) for each in addresses_of(client, "honest")]
    missed = [answer.url.path for answer in found if answer.status_code != 200]
    assert missed == [f"{API}/runs/honest/trials/r0-t001"], "of the other kind of run"


@pytest.mark.parametrize("number", range(len(NAMES)), ids=NAMES)
def test_an_address_says_in_a_line_what_is_wrong(client: TestClient, number: int) -> None:
    """Of all addresses, two in turn; `make fuzz` has all of them."""
    addresses = addresses_of(client, f"run-{number}", "honest")
    for place in (number, number + len(addresses) // 2):
        answered(client, addresses[place % len(addresses)])


def test_a_file_that_no_report_has_is_not_sent(client: TestClient) -> None:
    run = f"run-{NAMES.index('a terabyte: report/report.json')}"
    answer = answered(client, f"{API}/runs/{run}/files/report.json")
    assert answer.status_code == 404
    assert (
        "has 1,000,000,000,000 bytes; files of more than 268,435,456 are not served"
        in answer.json()["detail"]
    )


@pytest.mark.fuzz
def test_no_address_of_any_takes_long(client: TestClient) -> None:
    taken = []
    for number, name in enumerate(NAMES):
        for address in addresses_of(client, f"run-{number}", "honest"):
            began = time.process_time()
            answered(client, address)
            taken.append((time.process_time() - began, name, address))
    print(f"\n{len(taken):,} answers, the longest {max(taken)}")  # noqa: T201 -- with -s
    assert max(taken)[0] < MOST_SECONDS
