from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import pytest
from pydantic import ValidationError
from tests.support.host_clocks import clocks
from tests.support.nodes import node, rank
from tests.support.run_factory import DATASET
from tests.support.run_writer import (
    DEEPER,
    evaluated,
    proposed,
    replica_started,
    run_started,
    trial_ended,
    trial_started,
)
from tests.support.telemetry import equipment, sample

from aiperf_hpc.run import records
from aiperf_hpc.run.clocks import ClockReading
from aiperf_hpc.run.journal import JournalReader, JournalWriter
from aiperf_hpc.run.journal_digest import JournalDigest, Statement
from aiperf_hpc.run.records import AnyEvent, Evaluated, Record
from aiperf_hpc.run.records.base import Event
from aiperf_hpc.trial import (
    DatasetInfo,
    DevicePeak,
    JobPhase,
    RoundPhase,
    StepPart,
    TimePhase,
    TrialState,
)

TYPES = """
baseline_measured best_epoch_deleted best_epoch_saved calibrated checkpoint_deleted clock_seen
clock_started clocks_read compiler_failed dataset_loaded digests_recorded evaluated file_problem
heartbeat job_state journal_digests modules_imported node_checked nodes_refused nodes_requested
peak_measured predictions_saved primary_digest_seen primary_failed primary_heartbeat progress
proposal_rejected proposal_summary proposed ranks_lost replica_ended replica_exited
replica_launched replica_ready replica_released replica_started run_ended run_started
scheduler_state search_ended search_failed search_started step_times stop_requested
storage_waited system_described taken_over telemetry telemetry_started time_spent time_stamped
training_started trial_ended trial_started trial_summary witness_state witnessed
"""
HEAD = JournalDigest(bytes=7, sha256="0" * 64)
PEAK = DevicePeak(
    device="cuda:0", model="a", precision="tf32", rates={"convolution": 1e14},
    absent={"matrix product": "out of memory"}, seconds=4.5,
)  # fmt: skip
STATEMENT = Statement(
    number=2,
    previous="0" * 64,
    run="r",
    owner="1" * 64,
    run_number=1,
    run_previous="0" * 64,
    head=HEAD,
    utc=1.5,
    signature="s",
)
EVENTS: tuple[AnyEvent, ...] = (
    records.FileProblem(file="a", problem="a is gone", remedy="it was made again"),
    run_started().model_copy(
        update={"clock": ClockReading(ahead_seconds=-0.5, precision_seconds=0.001)}
    ),
    clocks(1e9, 17.25),
    records.ReplicaLaunched(replica="r0", job="17_0"),
    records.NodesRequested(nodes=4, reason="--nodes 2-4"),
    records.NodesRefused(nodes=9, current_nodes=4, reason="the partition has 4"),
    records.ReplicaReleased(replica="r3"),
    records.ReplicaExited(replica="r0", status=-9),
    records.JobState(
        replica="r0",
        phase=JobPhase.RUNNING,
        node="n1",
        detail="",
        submitted_utc=1.0,
        started_utc=8.0,
    ),
    records.NodeChecked(replica="r0", host="n1", clock_ahead_seconds=-1.5, problems=("late",)),
    records.SchedulerState(reachable=False, detail="connect failure"),
    records.PrimaryHeartbeat(),
    records.DigestsRecorded(digest=HEAD),
    records.Witnessed(url="https://w", key="SHA256:a", statement=STATEMENT),
    records.TimeStamped(url="https://t", digest=HEAD, response="MAA="),
    records.WitnessState(url="https://w", reachable=False, detail="timed out"),
    records.PrimaryFailed(reason="unexpected ValueError: no"),
    records.TakenOver(command="stop", host="h", pid=1),
    records.StopRequested(reason='"quoted"\nand é'),
    records.RunEnded(reason=""),
    records.StorageWaited(started_utc=1.5, seconds=33.0, reason="No space left on device"),
    records.SystemDescribed(rank=None, description=rank("n1", node())),
    replica_started(),
    records.PeakMeasured(rank=1, peak=PEAK),
    records.DatasetLoaded(dataset=DATASET),
    trial_started(phase=RoundPhase.HPO, proposal="p1", morphisms=(DEEPER, DEEPER)),
    records.ProposalRejected(proposal="p1", reason="damaged"),
    records.TrainingStarted(trial="t1"),
    records.Calibrated(trial="t1", layers=("relu_deep1_norm",), samples=8),
    records.Progress(trial="t1", epoch=1, train_samples=2**40, validation_samples=0),
    evaluated(correct=1),
    records.BaselineMeasured(metric="accuracy", sums={"correct": 1.0}, samples=10),
    trial_ended(state=TrialState.STOPPED, predicted=0.75),
    records.PredictionsSaved(trial="t", epoch=3, samples=50_000, sha256="0" * 64),
    records.BestEpochSaved(
        trial="t1",
        epoch=3,
        start_checkpoint=records.SavedFile(bytes=2, sha256="0" * 64),
        end_checkpoint=records.SavedFile(bytes=1, sha256="f" * 64),
    ),
    records.BestEpochDeleted(trial="t1"),
    records.CheckpointDeleted(trial="t1"),
    records.TimeSpent(trial=None, seconds={TimePhase.SEARCH_WAIT: 0.5, TimePhase.TRAIN: 1.0}),
    records.StepTimes(
        trial="t1", collective="mpi", ranks=2, steps=10, seconds={StepPart.COMPUTE: 1.5}
    ),
    records.ModulesImported(
        rank=1, package_sha256="0" * 64, foreign={"/a/json.py": ""}, modified=("/b/c.py",)
    ),
    records.CompilerFailed(problem="the compiler process was killed after 600 s"),
    records.RanksLost(ranks=(1,), reason="rank 1 on n2 died or hangs"),
    records.Heartbeat(phase=TimePhase.TRAIN, cpu_percent=99.5, memory_bytes=1),
    records.TelemetryStarted(equipment=equipment()),
    records.TelemetrySampled(sample=sample()),
    records.ReplicaEnded(reason="stop"),
    records.SearchStarted(replica="r0", worker=0, pid=1, searcher="greedy"),
    proposed("p1", prediction={"mean": 0.5}),
    records.SearchFailed(reason="no"),
    records.SearchEnded(reason="stop"),
    records.PrimaryDigestSeen(digest=HEAD),
    records.JournalDigestsRecord(
        new_primary=True,
        new_journals=("a",),
        appended_bytes=(7,),
        digest_prefixes="0123",
        sha256="0" * 64,
    ),
    records.TrialSummary(
        trial="t1",
        replica="r0",
        graph="g",
        parent="t0",
        morphisms=(DEEPER,),
        ended=True,
        objective=0.5,
        checkpoint=True,
    ),
    records.ProposalSummary(
        proposal="p1", replica="r0", graph="g", parent="t1", morphisms=(DEEPER,)
    ),
    records.ClockStarted(
        start_utc=9.0, replica="r0", submitted_utc=1.0, granted_utc=8.0, problem="behind"
    ),
    records.ReplicaReady(),
    records.ClockSeen(start_utc=9.0),
)


def test_the_examples_here_are_of_every_type() -> None:
    union, _ = get_args(AnyEvent)
    assert {type(event) for event in EVENTS} == set(get_args(union))


def test_every_type_comes_back_from_a_journal_as_it_was(tmp_path: Path) -> None:
    with JournalWriter(tmp_path / "j.jsonl") as journal:
        written = [journal.append(event) for event in EVENTS]
    reader = JournalReader(tmp_path / "j.jsonl")
    read = list(reader.read())
    assert read == written
    assert [record.event for record in read] == list(EVENTS)
    assert reader.problems == []


@pytest.mark.parametrize("value", ["NaN", '"NaN"', "1e999"])
@pytest.mark.parametrize("key", ["utc", "mono"])
def test_a_time_that_is_no_number_makes_no_record(tmp_path: Path, key: str, value: str) -> None:
    path = tmp_path / "j.jsonl"
    with JournalWriter(path) as journal:
        journal.append_all(EVENTS[:2])
    first, second = path.read_text("utf-8").splitlines(keepends=True)
    second = re.sub(rf'"{key}":[^,]+', f'"{key}":{value}', second)
    path.write_text(first + second, "utf-8")
    reader = JournalReader(path)
    assert len(list(reader.read())) == 1
    (problem,) = reader.problems
    assert problem.line == 2
    assert problem.what == f"not a record: {key}: should be a finite number"


def places_of_times(
    values: dict[str, Any], inside: tuple[str, ...] = ()
) -> Iterator[tuple[str, ...]]:
    """Yield where the times of a record's event are."""
    for key, value in values.items():
        place = (*inside, key)
        if isinstance(value, dict):
            yield from places_of_times(value, place)
        elif any(re.search("(seconds|utc|hours)$", part) for part in place) and value is not None:
            yield place


TIMES = [
    (event, place) for event in EVENTS for place in places_of_times(event.model_dump(mode="json"))
]


@pytest.mark.parametrize(
    ("event", "place"), TIMES, ids=[f"{event.type}.{'.'.join(place)}" for event, place in TIMES]
)
def test_an_event_whose_time_is_not_finite_makes_no_record(
    tmp_path: Path, event: AnyEvent, place: tuple[str, ...]
) -> None:
    line = Record(seq=0, utc=1.0, mono=1.0, event=event).model_dump(mode="json")
    inner = line["event"]
    for key in place[:-1]:
        inner = inner[key]
    inner[place[-1]] = math.nan
    (tmp_path / "j.jsonl").write_text(json.dumps(line) + "\n", "utf-8")
    reader = JournalReader(tmp_path / "j.jsonl")
    assert list(reader.read()) == []
    (problem,) = reader.problems
    assert problem.line == 1
    assert problem.what.endswith(f"{place[-1]}: should be a finite number")


def test_the_times_of_all_types_are_looked_at() -> None:
    assert {event.type for event, _ in TIMES} == {
        "run_started", "clocks_read", "node_checked", "storage_waited", "dataset_loaded",
        "peak_measured", "time_spent", "step_times", "heartbeat", "telemetry_started", "telemetry",
        "proposed", "witnessed", "job_state", "replica_started", "clock_started", "clock_seen",
    }  # fmt: skip


@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan])
def test_a_number_that_is_not_finite_comes_back(tmp_path: Path, value: float) -> None:
    """The loss of a failed training, or the logarithm of a vanishing probability."""
    path = tmp_path / "j.jsonl"
    with JournalWriter(path) as journal:
        journal.append(evaluated(correct=1, train_loss=value))
        journal.append(proposed("p1", prediction={"acquisition": value}))
    first, second = JournalReader(path).read()
    assert isinstance(first.event, Evaluated)
    assert isinstance(second.event, records.Proposed)
    assert repr(first.event.train_loss) == repr(value)
    assert repr(second.event.prediction["acquisition"]) == repr(value)
    for line in path.read_bytes().splitlines():
        json.loads(line, parse_constant=pytest.fail)  # JSON knows no NaN and no Infinity.


@pytest.mark.parametrize(
    "values",
    [
        {"train_samples": -1, "validation_samples": 0},
        {"train_samples": 1, "validation_samples": 0, "bonus": 1},
    ],
)
def test_a_progress_that_cannot_be_is_refused(values: dict[str, float]) -> None:
    with pytest.raises(ValidationError):
        records.Progress.model_validate({"trial": "t", "epoch": 1, **values})


def test_an_evaluation_of_an_earlier_version_is_one_of_accuracy() -> None:
    old = (
        '{"type":"evaluated","trial":"t","epoch":2,"learning_rate":0.1,"train_loss":1.0,'
        '"validation_loss":0.5,"correct":30,"samples":40}'
    )
    read = records.Evaluated.model_validate_json(old)
    assert (read.metric, read.sums, read.samples) == ("accuracy", {"correct": 30.0}, 40)
    assert read.quality == 0.75
    assert records.Evaluated.model_validate_json(read.model_dump_json()) == read


def test_an_evaluation_by_an_unknown_measure_is_no_record() -> None:
    values = evaluated(correct=1).model_dump() | {"metric": "perplexity", "sums": {"loss": 1.0}}
    with pytest.raises(ValidationError, match="no metric 'perplexity'"):
        records.Evaluated.model_validate(values)


def test_a_dataset_of_an_earlier_version_is_one_of_labelled_images() -> None:
    now = DATASET.model_dump(mode="json")
    old = {key: now[key] for key in ("name", "sha256", "classes")} | {
        "sample_shape": [8, 8, 1], "train_samples": 1437, "validation_samples": 360
    }  # fmt: skip
    assert DatasetInfo.model_validate(old) == DATASET
    assert DATASET.input_shape("image") == (8, 8, 1)
    assert len({DATASET, DatasetInfo.model_validate(old)}) == 1


def test_types_of_records_are_those_of_version_2() -> None:
    """Journals have them, so that a class's new name must not change them."""
    assert sorted(e.model_fields["type"].default for e in Event.__subclasses__()) == TYPES.split()
