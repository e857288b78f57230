"""What is said of communication: of a recorded run of two ranks, and of runs of several scales."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from tests.support.run_factory import Grown, Plan, Primary, Worker, initial_graph, write_manifest
from tests.support.training_logs import entry

from aiperf_hpc.analysis.metric import NotMeasuredError
from aiperf_hpc.analysis.options import Options
from aiperf_hpc.analysis.sections.communication import (
    PARTS,
    communication,
    tables,
)
from aiperf_hpc.analysis.training_log import Entry
from aiperf_hpc.ops_counter.count import count
from aiperf_hpc.run import records
from aiperf_hpc.run.paths import RunPaths
from aiperf_hpc.trial import RoundPhase, StepPart, TimePhase, TrialState

RECORDED = Path(__file__).parents[2] / "data" / "runs" / "several-ranks.tar.gz"


def entry_of(folder: Path) -> Entry:
    return entry(folder.name, format="aiperf", benchmark="automl", path=str(folder))


def test_the_steps_of_a_recorded_run_of_two_ranks(tmp_path: Path) -> None:
    """By hand from its two ``step_times`` records, of 12 and 6 steps."""
    subprocess.run(["tar", "-xzf", RECORDED, "-C", tmp_path], check=True)
    found = communication([entry_of(tmp_path / "several-ranks")], Options())
    (each,) = found.breakdowns
    assert (each.ranks, each.collective, each.steps) == (2, "mpi", 18)
    compute = 0.07971913250003126 + 0.045305662493774435
    wait = 0.00572425950304023 + 0.008622159002698027
    queue = 0.0006124639894551365 + 0.0002857514991774224
    copy = 0.00022504300795844756 + 0.0000893320011527976
    reduce = 0.00018380799519945867 + 0.00009283700092055369
    assert each.compute == pytest.approx(compute / 18)
    assert each.communication == pytest.approx((wait + queue + copy + reduce) / 18)
    assert each.step == pytest.approx(each.compute + each.communication)
    parts = {"negotiate": wait, "queue": queue, "copy": copy, "reduce": reduce}
    recorded = {part: time / 18 for part, time in parts.items()}
    assert each.parts == pytest.approx({**recorded, "wait for data": None})
    assert each.ratio == pytest.approx(compute / (wait + queue + copy + reduce))
    assert each.fraction == pytest.approx(1 / (1 + (each.ratio or 0.0)))
    assert found.speed_ups == ()
    steps, missing = tables(found)
    (cells,) = (dict(zip(steps.columns, row, strict=True)) for row in steps.rows)
    assert (cells["run"], cells["collective"]) == ("several-ranks", "mpi")
    assert cells["step"] == f"{1e3 * each.step:.4g}"
    assert cells["wait for data"] == "–"
    assert missing.missing[0].startswith("wait for data is not recorded")


def write(root: Path, ranks: int, seconds: float, *, batch: int = 64, share: float = 0.2) -> Entry:
    """Write a run whose one trial executes 2 x 1437 samples; ``share`` of it is communication.

    A negative share leaves the step times out, as a trial does that its replica's death ended.
    """
    training = {"batch_size": batch, "precision": "fp32", "learning_rate": 0.1 * ranks}
    settings = {"replica": {"ranks_per_node": ranks}, "training": training}
    plan, paths = Plan(replicas=1, run_id=root.name, config=settings), RunPaths(root)
    config = write_manifest(paths, plan).config
    with Primary(paths, plan) as primary, Worker(paths, "r0", config) as worker:
        primary.start()
        worker.start()
        trial = worker.begin(Grown(initial_graph(config)), RoundPhase.FIXED, 1)
        for epoch in (1, 2):
            worker.train(trial, epoch, seconds / 2)
        worker.end(trial, TrialState.COMPLETED, "all epochs")
        if ranks > 1 and share >= 0.0:
            parts = {StepPart.COMPUTE: 1.0 - share, StepPart.REDUCE: share}
            times = {"trial": trial, "collective": "mpi", "ranks": ranks, "steps": 50}
            worker.write(records.StepTimes.model_validate({**times, "seconds": parts}))
        worker.spend(trial, {TimePhase.TRAIN: seconds})
        primary.end()
    return entry_of(root)


def test_speed_up_with_and_without_communication(tmp_path: Path) -> None:
    """Equal work in 80, 50 and 32 s, of which 0, 20 % and 50 % are communication.

    In all 80/50 = 1.6 and 80/32 = 2.5; of computation 80/40 = 2 and 80/16 = 5.
    """
    entries = [
        write(tmp_path / "four", 4, 32.0, share=0.5),
        write(tmp_path / "one", 1, 80.0),
        write(tmp_path / "two", 2, 50.0),
    ]
    (found,) = communication(entries, Options()).speed_ups
    assert (found.scaling, found.missing) == ("strong", "")
    assert [p.ranks for p in found.points] == [1, 2, 4]
    assert [p.speed_up for p in found.points] == pytest.approx([1.0, 1.6, 2.5])
    assert [p.compute_speed_up for p in found.points] == pytest.approx([1.0, 2.0, 5.0])
    assert [p.efficiency for p in found.points] == pytest.approx([1.0, 0.8, 0.625])
    assert [p.compute_efficiency for p in found.points] == pytest.approx([1.0, 1.0, 1.25])
    one = next(p for p in found.points if p.ranks == 1)
    graph = initial_graph(write_manifest(RunPaths(tmp_path / "again"), Plan()).config)
    assert one.rate == pytest.approx(2 * 1437 * count(graph).training / 80.0)


def test_runs_at_one_scale_are_combined(tmp_path: Path) -> None:
    """2 x the work in 70 + 90 s is the work in 80 s."""
    entries = [write(tmp_path / name, 1 + (name == "c"), t) for name, t in
               (("a", 70.0), ("b", 90.0), ("c", 50.0))]  # fmt: skip
    (found,) = communication(entries, Options()).speed_ups
    assert [p.entries for p in found.points] == [("a", "b"), ("c",)]
    assert found.points[1].speed_up == pytest.approx(1.6)


def test_a_batch_that_grows_with_the_ranks_is_weak_scaling(tmp_path: Path) -> None:
    entries = [write(tmp_path / "a", 1, 80.0), write(tmp_path / "b", 2, 50.0, batch=128)]
    (found,) = communication(entries, Options()).speed_ups
    assert found.scaling == "weak"
    assert [p.batch_size for p in found.points] == [64, 128]


def test_missing_step_times_are_reported(tmp_path: Path) -> None:
    entries = [write(tmp_path / "a", 1, 80.0), write(tmp_path / "b", 2, 50.0, share=-1.0)]
    found = communication(entries, Options())
    assert found.breakdowns == ()
    (speed_up,) = found.speed_ups
    assert speed_up.points[1].speed_up == pytest.approx(1.6)
    assert speed_up.points[1].compute_speed_up is None
    assert speed_up.missing == "not all of these runs recorded the parts of their steps"
    assert "b: no trial of its 2 ranks recorded its step times" in found.missing
    table = next(table for table in tables(found) if table.rows)
    assert table.rows[1][-2:] == ("–", "–")


def test_another_network_or_one_scale_is_no_speed_up(tmp_path: Path) -> None:
    runs = [write(tmp_path / "a", 1, 80.0), write(tmp_path / "b", 1, 50.0)]
    for several in (runs, runs[:1], []):
        with pytest.raises(NotMeasuredError, match="no two runs"):
            communication(several, Options())


def test_every_recorded_part_is_computation_or_in_one_place_of_the_table() -> None:
    placed = [StepPart.COMPUTE, *(part for parts in PARTS.values() for part in parts)]
    assert sorted(placed) == sorted(StepPart)
