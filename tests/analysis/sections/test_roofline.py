"""Rooflines of runs: one worked out by hand, and runs that were really made."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from tests.support import run_writer
from tests.support.nodes import rank
from tests.support.present import present
from tests.support.run_factory import Plan, write_manifest
from tests.support.training_logs import entry as make_entry

from aiperf_hpc.analysis.metric import NotMeasuredError
from aiperf_hpc.analysis.options import Options
from aiperf_hpc.analysis.page.plots import rooflines as draw_rooflines
from aiperf_hpc.analysis.readers.run_records import _uses_tf32
from aiperf_hpc.analysis.sections.roofline import (
    Architecture,
    RunRoofline,
    attainable,
    rooflines,
    steps_of,
    tables,
)
from aiperf_hpc.analysis.training_log import Entry
from aiperf_hpc.errors import UsageError
from aiperf_hpc.graph import Conv2D, Graph, Input, Node
from aiperf_hpc.run.graph_store import GraphStore
from aiperf_hpc.run.history import ReplicaHistory
from aiperf_hpc.run.paths import RunPaths
from aiperf_hpc.run.peaks import AllReduce, Device, MeasuredRate, Peaks, Storage, Sweep
from aiperf_hpc.run.records import DatasetLoaded, ReplicaStarted, TimeSpent
from aiperf_hpc.system.description import RankDescription
from aiperf_hpc.trial import DatasetInfo, Machine, TimePhase

ARCHIVES = Path(__file__).parents[2] / "data" / "runs"
GRAPH = Graph((Node("image", Input((4, 4, 3))), Node("conv", Conv2D(2, 7), ("image",))))
"""Of 294 parameters; it moves 640 bytes a sample and 8,232 bytes a step (test_traffic.py)."""
DATASET = DatasetInfo.of_labelled_images(
    name="small", sha256="0" * 64, shape=(4, 4, 3), classes=2, train_samples=10,
    validation_samples=4,
)  # fmt: skip


def machine(*, cores: int = 1, accelerators: tuple[str, ...] = ()) -> Machine:
    return Machine(
        host="node", cpu="Example CPU", cores=tuple(range(cores)), memory_bytes=2**30,
        accelerators=accelerators, versions={},
    )  # fmt: skip


def reading(rate: float) -> MeasuredRate:
    rates = {"median": 0.9 * rate, "best": rate, "worst": 0.5 * rate}
    return MeasuredRate(size="s", amount=1, repetitions=3, **rates)


def sweep(kernel: str, precision: str, rate: float, device: str = "cpu") -> Sweep:
    rates = (reading(0.1 * rate), reading(rate))
    return Sweep(engine="torch", device=device, kernel=kernel, precision=precision, readings=rates)


def peaks(*, cores: int = 1, memory: float = 20_000.0, storage: float | None = None) -> Peaks:
    """A machine of 10,000 operations a second in products and 9,000 in convolutions."""
    read = None
    if storage is not None:
        read = Storage(
            folder="/data", file_system="ext4", files="its own", cache="bypassed",
            readings=(reading(storage),),
        )  # fmt: skip
    return Peaks(
        utc=0.0, seconds=1.0, quick=False, host="node", cpu="Example CPU", cores=cores,
        memory_bytes=2**30, versions={}, storage=read,
        devices=(
            Device(engine="torch", name="cpu", model="Example CPU", threads=cores),
            Device(engine="torch", name="cuda:0", model="Example GPU", threads=None),
        ),
        sweeps=(
            sweep("matrix product", "fp32", 10_000.0), sweep("convolution", "fp32", 9_000.0),
            sweep("triad", "fp32", memory), sweep("copy", "fp32", 0.5 * memory),
            sweep("matrix product", "bf16", 40_000.0),
            sweep("matrix product", "fp32", 1e6, "cuda:0"), sweep("triad", "fp32", 1e6, "cuda:0"),
        ),
        allreduce=(
            AllReduce(
                collective="mpi", ranks=2, memory="cpu", dtype="float32", reading=reading(1000.0)
            ),
        ),
    )  # fmt: skip


def write_run(
    root: Path,
    *,
    beside: Peaks | None = None,
    hosts: tuple[str, ...] = (),
    where: Machine | None = None,
    dataset: str = "imagenet",
    cache: str = "none",
    staged: int = 0,
    timed: bool = True,
    name: str = "torch",
) -> Entry:
    """Write a run of one trial: 10 samples in two steps, of 1,000 operations each, in 2 s."""
    run, paths = run_writer.RunWriter(root), RunPaths(root)
    data = {"name": dataset, "path": "/data", "cache": cache}
    write_manifest(paths, Plan(config={"dataset": data, "engine": {"name": name}}))
    graph = GraphStore(paths).save(GRAPH)
    started = run_writer.trial_started("t1", graph, precision="fp32")
    used = started.hyperparameters.model_copy(update={"batch_size": 5})
    started = started.model_copy(update={"hyperparameters": used, "train_operations": 1000})
    run.primary(0.0, run_writer.run_started())
    where = where or machine()
    run.replica(
        1.0, ReplicaStarted(replica="r0", pid=1, engine="torch", machine=where, hosts=hosts),
        DatasetLoaded(dataset=DATASET, staged_bytes=staged), started,
        run_writer.progress("t1", train=10, validation=4), run_writer.trial_ended("t1"),
    )  # fmt: skip
    if timed:
        phases = {TimePhase.TRAIN: 2.0, TimePhase.EVALUATE: 0.5, TimePhase.DATA: 1.5}
        run.replica(9.0, TimeSpent(trial="t1", seconds={**phases, TimePhase.BUILD: 7.0}))
    if beside is not None:
        paths.peaks.write_text(beside.model_dump_json(), "utf-8")
    return entry(root)


def entry(root: Path, kind: str = "aiperf") -> Entry:
    return make_entry(root.name, format=kind, benchmark="automl", path=str(root))


def only(entry: Entry, options: Options | None = None) -> tuple[RunRoofline, Architecture]:
    """Return the roofline of a run of one architecture."""
    (run,) = rooflines([entry], options or Options()).runs
    (architecture,) = run.architectures
    return run, architecture


def test_one_worker_by_hand(tmp_path: Path) -> None:
    """10 samples of 640 bytes and 2 steps of 8,232: 22,864 bytes for 10,000 operations in 2 s.

    Memory allows 10,000 / 22,864 x 20,000 = 8,747 operations a second, less than the 10,000 of a
    product; 5,000 were achieved. A convolution alone can be fused with nothing.
    """
    run, one = only(write_run(tmp_path / "run", beside=peaks()))
    assert present(run.ceilings).compute == {"fp32": 10_000.0, "bf16": 40_000.0}
    assert (one.achieved, one.peak_fraction) == (5000.0, 0.5)
    assert one.separate.intensity == pytest.approx(10_000 / 22_864)
    assert one.separate.attainable == pytest.approx(8747.4, abs=0.1)
    assert one.separate.bound == "memory"
    assert one.separate.efficiency == pytest.approx(5000 / 8747.4, rel=1e-4)
    assert one.fused == one.separate
    assert (one.parameters, one.samples, one.trials) == (294, 10, 1)
    assert one.network_intensity is None
    # 22,864 bytes in 2 s. 14 samples of 48 pixels and a label in 4 s: 14 x 196 / 4.
    assert run.worker.memory == pytest.approx(11_432)
    assert (run.worker.network, run.worker.io, run.worker.io_source) == (None, 686.0, "tensors")


def test_two_ranks_by_hand(tmp_path: Path) -> None:
    """Each has 5 samples and both steps: 5 x 640 + 2 x 8,232 = 19,664 bytes, 5,000 operations.

    It reduces 2 x 4 x 294 = 2,352 bytes: 5,000 / 2,352 x 1,000 B/s = 2,126 operations a second.
    """
    run, one = only(write_run(tmp_path / "r", beside=peaks(), hosts=("node", "node")))
    assert run.workers == 2
    assert one.achieved == 2500.0
    assert one.separate.intensity == pytest.approx(5000 / 19_664)
    assert one.network_intensity == pytest.approx(5000 / 2352)
    assert one.separate.attainable == pytest.approx(2125.85, abs=0.01)
    assert one.separate.bound == "network"
    assert run.worker.network == pytest.approx(1176.0)


def test_storage_by_hand(tmp_path: Path) -> None:
    """Two ranks of a host share 40 B/s: 20 each. 2,800 bytes of files over 14 samples are 200 a
    sample, of 1,000 operations: 5 x 20 = 100 operations a second."""
    beside = peaks(storage=40.0)
    run, one = only(write_run(tmp_path / "r", beside=beside, hosts=("node", "node"), staged=2800))
    assert one.io_intensity == 5.0
    assert (one.separate.attainable, one.separate.bound) == (100.0, "storage")
    # 14 samples of 200 bytes by two workers in 4 s.
    assert (run.worker.io, run.worker.io_source) == (350.0, "files")


@pytest.mark.parametrize(
    ("dataset", "cache", "words"),
    [("cifar10", "none", "is in memory"), ("imagenet", "memory", "was loaded into memory first")],
)
def test_a_dataset_in_memory_is_not_bound_by_storage(
    dataset: str, cache: str, words: str, tmp_path: Path
) -> None:
    slow = peaks(storage=0.001)
    run, one = only(write_run(tmp_path / "r", beside=slow, dataset=dataset, cache=cache))
    assert one.separate.bound == "memory"
    assert any(words in note for note in run.notes)


@pytest.mark.parametrize(
    ("cores", "where", "ceilings", "peak_fraction"),
    [
        # 2 of the 4 cores that were measured have half of the rates.
        (4, machine(cores=2), (0.5, {"fp32": 5000.0, "bf16": 20_000.0}, 10_000.0), 1.0),
        # An accelerator is a worker's own.
        (64, machine(accelerators=("Example GPU",)), (1.0, {"fp32": 1e6}, 1e6), 0.005),
    ],
)
def test_a_worker_has_its_share_of_the_machine(
    cores: int, where: Machine, ceilings: tuple[object, ...], peak_fraction: float, tmp_path: Path
) -> None:
    run, one = only(write_run(tmp_path / "r", beside=peaks(cores=cores), where=where))
    own = present(run.ceilings)
    assert (own.fraction, own.compute, own.memory) == ceilings
    assert run.accelerator == next(iter(where.accelerators), None)
    assert one.peak_fraction == peak_fraction


def test_without_peaks_there_is_no_roof_and_a_note_names_the_command(tmp_path: Path) -> None:
    run, one = only(write_run(tmp_path / "r"))
    assert (run.peaks, run.ceilings, one.separate.attainable) == (None, None, None)
    assert one.achieved == 5000.0
    assert one.separate.intensity == pytest.approx(10_000 / 22_864)
    assert any(note.startswith("no peaks were measured: `aiperf peaks") for note in run.notes)
    table = next(iter(tables(rooflines([entry(tmp_path / "r")], Options()))))
    (cells,) = (dict(zip(table.columns, row, strict=True)) for row in table.rows)
    assert (cells["achieved"], cells["attainable"], cells["% of peak"]) == ("5.00 kOPS", "–", "–")


def test_damaged_peaks_beside_a_run_are_a_note_and_named_ones_an_error(tmp_path: Path) -> None:
    made = write_run(tmp_path / "r")
    path = RunPaths(tmp_path / "r").peaks
    path.write_text("{", "utf-8")
    run, _ = only(made)
    assert any("is not a file of `aiperf peaks`" in note for note in run.notes)
    with pytest.raises(UsageError, match="is not a file of `aiperf peaks`"):
        rooflines([made], Options(peaks=path))


def test_peaks_of_another_machine_are_a_note(tmp_path: Path) -> None:
    other = peaks().model_copy(update={"host": "elsewhere", "load": 5.0})
    (tmp_path / "other.json").write_text(other.model_dump_json(), "utf-8")
    made = write_run(tmp_path / "r", beside=peaks())
    run, _ = only(made, Options(peaks=tmp_path / "other.json"))
    assert run.peaks == str(tmp_path / "other.json")
    elsewhere = "the peaks are of elsewhere (Example CPU), the run was on node (Example CPU)"
    assert elsewhere in run.notes
    assert any("the load was 5.0 on 1 cores before" in note for note in run.notes)


def test_entries_without_a_roofline_have_a_reason(tmp_path: Path) -> None:
    entries = [
        entry(tmp_path / "log", "mllog"),
        write_run(tmp_path / "cut", timed=False),
        write_run(tmp_path / "simulated", name="simulated"),
        write_run(tmp_path / "good"),
    ]
    found = rooflines(entries, Options())
    assert [run.entry for run in found.runs] == ["good"]
    assert found.missing == {
        "log": "its logs have no graphs and no operations: only AIPerf-HPC's own runs have them",
        "cut": "no trial's record states how long it trained",
        "simulated": "its time is simulated",
    }
    with pytest.raises(NotMeasuredError, match="its logs have no graphs"):
        rooflines(entries[:1], Options())
    with pytest.raises(NotMeasuredError, match="there is no entry"):
        rooflines([], Options())


def test_a_lost_graph_is_named(tmp_path: Path) -> None:
    made = write_run(tmp_path / "r")
    RunPaths(tmp_path / "r").graph(GRAPH.hash).write_text("{}", "utf-8")
    with pytest.raises(NotMeasuredError, match="cannot be grown again"):
        rooflines([made], Options())


@pytest.mark.parametrize("name", ["two-nodes", "several-ranks", "resumed"])
def test_real_runs_have_rooflines(name: str, tmp_path: Path) -> None:
    subprocess.run(["tar", "-xzf", ARCHIVES / f"{name}.tar.gz", "-C", tmp_path], check=True)
    (run,) = rooflines([entry(tmp_path / name)], Options()).runs
    assert run.architectures
    for one in run.architectures:
        assert 0 < one.separate.intensity < one.fused.intensity
        assert one.achieved > 0
        assert one.network_intensity is None or one.network_intensity > one.separate.intensity
    assert run.worker.memory > run.worker.memory_fused > 0
    assert (run.worker.network is not None) == (name == "several-ranks")
    if name == "resumed":
        assert run.notes[0] == "2 trials were cut off, and no record states how long they trained"


def test_runs_with_peaks_have_a_plot(tmp_path: Path) -> None:
    """Two ranks that read from storage have all three panels; without peaks there is no drawing."""
    full, two = peaks(storage=40.0), ("node", "node")
    runs = [
        write_run(tmp_path / "a", beside=full, hosts=two, staged=2800),
        write_run(tmp_path / "b", beside=peaks()), write_run(tmp_path / "c"),
    ]  # fmt: skip
    three, one = draw_rooflines(rooflines(runs, Options()))
    assert (three.title, one.title) == ("Roofline of a", "Roofline of b")
    for words in ("memory 20.0 kB/s", "network 1.00 kB/s", "storage 20.0 B/s"):
        assert words in three.svg
    assert "network 1.00 kB/s" not in one.svg


THREE = {"memory": 20 * 5.0, "network": 1000 * 0.05, "storage": 4 * 30.0}
"""Of 100, 50 and 120 operations a second."""


@pytest.mark.parametrize(
    ("peak", "bounds", "expected"),
    [
        # Williams et al. 2009: the Opteron X2's 17.6 Gflop/s and 15 GB/s meet at 1.17 flops a byte.
        (17.6e9, {"memory": 1.17 * 15e9}, (1.17 * 15e9, "memory")),
        (17.6e9, {"memory": 1.18 * 15e9}, (17.6e9, "compute")),
        (17.6e9, {"memory": 0.5 * 15e9}, (7.5e9, "memory")),
        (17.6e9, {"memory": 4.0 * 15e9}, (17.6e9, "compute")),
        (80.0, THREE, (50.0, "network")),
        (80.0, {"memory": 100.0, "storage": 120.0}, (80.0, "compute")),
        (80.0, {}, (80.0, "compute")),
    ],
)
def test_the_least_of_all_bounds_counts(
    peak: float, bounds: dict[str, float], expected: tuple[float, str]
) -> None:
    assert attainable(peak, bounds) == expected


@pytest.mark.parametrize(
    ("samples", "batch", "epoch", "steps"),
    [
        (10, 5, 10, 2),
        (10, 4, 10, 3),  # 4, 4, 2
        (20, 4, 10, 6),  # twice that
        (25, 4, 10, 8),  # and 4, 1
        (3, 64, 10, 1),
        (0, 64, 10, 0),
    ],
)
def test_the_last_batch_of_an_epoch_may_be_smaller(
    samples: int, batch: int, epoch: int, steps: int
) -> None:
    assert steps_of(samples, batch, epoch) == steps


def reporting(numbers: str) -> RankDescription:
    described = rank("n1", None)
    process = described.process.model_copy(update={"arithmetic": {"a library": numbers}})
    return described.model_copy(update={"process": process})


@pytest.mark.parametrize(
    ("numbers", "tensorflow", "torch"),
    [
        (["fp32"], False, False), (["tf32"], True, True), (["fp32", "tf32"], True, True),
        ([], True, False),  # Not reported: the framework's default.
    ],
)  # fmt: skip
def test_ranks_report_whether_fp32_was_tf32(
    numbers: list[str], tensorflow: bool, torch: bool
) -> None:
    replica = ReplicaHistory("r0", described=dict(enumerate(map(reporting, numbers))))
    assert _uses_tf32(replica, "tensorflow") is tensorflow
    assert _uses_tf32(replica, "torch") is torch
