"""What the records of a run say of its work."""

from __future__ import annotations

import pytest
from tests.support.nodes import rank

from aiperf_hpc.analysis.readers.run_work import _uses_tf32
from aiperf_hpc.run.history import ReplicaHistory
from aiperf_hpc.system.description import RankDescription


def reporting(numbers: str) -> RankDescription:
    described = rank("n1", None)
    process = described.process.model_copy(update={"arithmetic": {"a library": numbers}})
    return described.model_copy(update={"process": process})


@pytest.mark.parametrize("engine", ["tensorflow", "torch"])
@pytest.mark.parametrize(
    ("numbers", "wanted"), [(["fp32"], False), (["tf32"], True), (["fp32", "tf32"], True)]
)
def test_whether_fp32_was_tf32_is_what_the_ranks_reported(
    engine: str, numbers: list[str], *, wanted: bool
) -> None:
    described = {number: reporting(each) for number, each in enumerate(numbers)}
    assert _uses_tf32(ReplicaHistory("r0", described=described), engine) is wanted


def test_runs_that_did_not_report_it_had_their_frameworks_default() -> None:
    silent = ReplicaHistory("r0")
    assert _uses_tf32(silent, "tensorflow")
    assert not _uses_tf32(silent, "torch")
