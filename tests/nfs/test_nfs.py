"""The run directory's guarantees on real NFSv4.2, with a separate server and clients.

One smoke test is in the default suite; `make nfs` runs all. What is measured here is in
docs/decisions/nfs.md.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from typing import Any

import pytest

from .conftest import BOOT

Play = Callable[[str, float], dict[str, Any]]
LAG_SECONDS = 60.0
EVERY_SECOND = 1.5
"""A second between two looks, and the time that a look takes there."""


def test_a_journal_goes_on_when_its_server_was_away(play: Play) -> None:
    seen = play("smoke", 120)
    assert seen["read"]["problems"] == []
    assert seen["read"]["records"] == 101
    assert seen["written"]["slowest"] > 1.9


@pytest.mark.nfs
def test_each_writer_has_a_journal_and_readers_on_other_hosts_lose_nothing(play: Play) -> None:
    seen = play("journals", 180)
    assert seen["in_order"] == [seen["count"]] * 3
    for read in seen["read"]:
        assert read["problems"] == []
        assert read["records"] == 3 * (seen["count"] + 1)


@pytest.mark.nfs
def test_zeros_that_a_client_makes_up_are_never_taken_for_what_was_written(play: Play) -> None:
    seen = play("zeros", 180)
    for read in seen["read"]:
        assert read["problems"] == []
        assert read["records"] == seen["written"]


@pytest.mark.nfs
def test_whole_files_are_read_whole_and_a_run_has_one_maker_and_one_primary(play: Play) -> None:
    seen = play("files", 180)
    for read in seen["read"]:  # Readers themselves require that each reading is whole.
        assert read["last"] > 1
        assert read["errors"].keys() <= {"ENOENT", "ESTALE"}
    one, two = seen["claims"]
    assert [a + b for a, b in zip(one, two, strict=True)] == [1] * len(one)
    one, two = seen["races"]
    assert [a + b for a, b in zip(one, two, strict=True)] == [1] * len(one)


@pytest.mark.nfs
def test_a_disk_that_fills_is_waited_for_and_the_heartbeat_says_so(play: Play) -> None:
    seen = play("full", 180)
    assert seen["in_order"] == seen["work"]["count"]
    assert seen["waits"][0] == 0.0
    assert seen["waits"] == sorted(seen["waits"])
    assert 5.0 < seen["waits"][-1] < 20.0
    assert set(seen["files"].values()) == {1}, "torn, or a temporary file is left"


@pytest.mark.nfs
def test_what_was_first_seen_missing_is_seen_a_minute_later_at_most(play: Play) -> None:
    seen = play("lag", 240)
    for options in ("default", "60 s", "positive"):
        assert seen[options]["proposal"] == "p1"
        assert seen[options]["looks"] > 10, "the candidate was not missing at first"
        assert seen[options]["candidate_seconds"] < LAG_SECONDS + EVERY_SECOND
        assert seen[options]["stop_seconds"] < LAG_SECONDS + EVERY_SECOND
    assert seen["60 s"]["candidate_seconds"] > 30.0
    assert seen["positive"]["candidate_seconds"] < EVERY_SECOND


@pytest.mark.nfs
def test_a_run_comes_to_its_score_though_its_server_stops_and_its_disk_fills(play: Play) -> None:
    seen = play("run", 480)
    verified = seen["verify"]
    assert seen["status"] == verified["status"] == 0
    assert verified["wrong"] == []
    assert verified["ended"] == {"r0": "the run's time is over", "r1": "the run's time is over"}
    assert verified["restarts"] == {"r0": 0, "r1": 0}
    assert seen["in_order"] == [500, 500]
    for waited in (*verified["waits"].values(), *(w["waited"] for w in seen["beside"])):
        assert waited > 0.8 * seen["outage"]


@pytest.mark.nfs
def test_a_hard_mount_hangs_where_a_soft_one_fails(play: Play) -> None:
    """What docs/decisions/nfs.md says of other programs; the package bears both."""
    seen = play("outage", 300)
    assert max(seen["hard"]["longest"].values()) > 59.0
    assert {error.split()[1] for error in seen["hard"]["errors"]} == {"ESTALE"}
    assert {error.split()[1] for error in seen["soft"]["errors"]} >= {"ESTALE", "EIO"}
    assert max(seen["soft"]["longest"].values()) < 59.0


@pytest.mark.nfs
def test_a_journal_that_someone_else_touches_is_gone_on_with_or_reported(play: Play) -> None:
    seen = play("stale", 180)
    assert seen["in_order"] == int(seen["said"]["copied"]) > 100
    assert "journal.jsonl: No such file or directory" in seen["said"]["removed"]
    # Its writer need not notice; its readers do.
    assert seen["problems"] or "something else has written it" in seen["said"]["shortened"]


def test_the_guest_is_started_by_a_script_that_can_be_executed() -> None:
    assert os.access(BOOT, os.X_OK)
    assert subprocess.run(["sh", "-n", BOOT], check=False).returncode == 0
