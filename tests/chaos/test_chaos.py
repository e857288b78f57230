"""A few faults on a real cluster; `make chaos N=200` injects more, of all kinds."""

from __future__ import annotations

import tempfile
from pathlib import Path

from tests.chaos.session import Session
from tests.slurm.conftest import require_slurm

QUICK = ["search worker killed", "replica stopped, continued", "slurmd killed, its steps not"]
"""What a run gets over within seconds."""


def test_after_a_few_faults_all_adds_up() -> None:
    require_slurm()
    with tempfile.TemporaryDirectory(prefix="aiperf-chaos-") as name:
        with Session(Path(name), seed=1, hours=1.0, kinds=QUICK) as session:
            session.torment(3)
        result = session.result()
    assert session.problems == []
    assert result["faults"] == 3
    assert result["runs"] == 1
    assert result["lines"] == result["counted"] + result["fenced"] > 100
    assert result["acknowledged"] > 100
    assert result["operations"] == result["stated_operations"] > 0
