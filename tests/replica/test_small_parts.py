"""Stopwatch, stop flag, memory estimate, names and seeds."""

from __future__ import annotations

import os
import signal
import sys
from importlib import metadata
from pathlib import Path

import pytest
from tests.support.clock import Clock
from tests.support.networks import sequential

from aiperf_hpc import __version__
from aiperf_hpc.config import RunConfig, validate
from aiperf_hpc.graph import Conv3D, Dense, Flatten, Graph, Input, LeakyReLU, MaxPool3D, Softmax
from aiperf_hpc.host import machine
from aiperf_hpc.host.machine import available_bytes
from aiperf_hpc.morphism.resnet import resnet50
from aiperf_hpc.morphism.search.base import Bounds
from aiperf_hpc.ops_counter.memory import MemoryLimit, training_bytes
from aiperf_hpc.replica import __main__ as main
from aiperf_hpc.replica.context import Stopwatch
from aiperf_hpc.replica.node_check import package_versions
from aiperf_hpc.replica.replica import memory_limit
from aiperf_hpc.replica.runtime.stopping import StopFlag
from aiperf_hpc.run.paths import Identity, Incarnation, seed_of
from aiperf_hpc.run.records import TIME_OVER
from aiperf_hpc.trial import TimePhase


@pytest.fixture
def clock() -> Clock:
    return Clock(100.0)


def resnet(base_width: int = 4) -> Graph:
    return resnet50((32, 32, 3), 10, stem="cifar", base_width=base_width)


def config(replica: dict[str, int] | None = None, **training: object) -> RunConfig:
    """Return a configuration in fp32 with these settings of ``training`` and ``replica``."""
    settings = {"precision": "fp32", **training}
    sections = {"dataset": {"name": "digits"}, "training": settings, "replica": replica or {}}
    return validate(sections, "test")


def test_every_second_belongs_to_the_innermost_phase(clock: Clock) -> None:
    watch = Stopwatch(clock)
    clock.now += 1
    with watch.during(TimePhase.TRAIN):
        clock.now += 2
        with watch.during(TimePhase.DATA):
            assert watch.phase is TimePhase.DATA
            clock.now += 4
        clock.now += 8
    clock.now += 16
    assert watch.take() == {TimePhase.START: 17, TimePhase.TRAIN: 10, TimePhase.DATA: 4}
    assert watch.take() == {}


def test_an_error_ends_the_phase_of_its_block(clock: Clock) -> None:
    watch = Stopwatch(clock)

    def fail() -> None:
        with watch.during(TimePhase.BUILD):
            clock.now += 3
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert watch.phase is TimePhase.START
    assert watch.take() == {TimePhase.BUILD: 3}


def test_the_deadline_stops(tmp_path: Path, clock: Clock) -> None:
    flag = StopFlag(150.0, tmp_path / "stop", clock=clock)
    assert flag.reason is None
    clock.now = 150.0
    assert flag.reason == TIME_OVER


def test_a_file_whose_text_is_the_reason_stops_when_it_is_polled(
    tmp_path: Path, clock: Clock
) -> None:
    flag = StopFlag(1e9, tmp_path / "stop", look_every=1.0, clock=clock)
    assert flag.reason is None
    (tmp_path / "stop").write_text("by someone\n")
    assert flag.reason is None
    clock.now += 1.0
    assert flag.reason == "by someone"


def test_a_further_condition_stops_and_so_does_a_file_that_is_not_utf_8(tmp_path: Path) -> None:
    flag = StopFlag(1e12, tmp_path / "stop", also=lambda: "the replica has exited")
    assert flag.reason == "the replica has exited"
    (tmp_path / "stop").write_bytes(b"by \xff")
    assert StopFlag(1e12, tmp_path / "stop").reason == "by \\xff"


@pytest.mark.usefixtures("signal_handlers")
def test_a_signal_stops_and_the_first_reason_stays(tmp_path: Path) -> None:
    flag, late = (StopFlag(deadline, tmp_path / "stop") for deadline in (1e12, 0.0))
    flag.install()
    os.kill(os.getpid(), signal.SIGTERM)
    flag.ask("later")
    assert (flag.reason, flag.interrupted) == ("SIGTERM", True)  # Nothing else requests a stop.
    late.install()
    os.kill(os.getpid(), signal.SIGTERM)
    assert (late.reason, late.interrupted) == (TIME_OVER, False)


def test_the_memory_estimate_grows_with_the_batch_and_with_the_precision() -> None:
    graph = resnet(16)
    small, large = (training_bytes(graph, batch, "fp32") for batch in (128, 512))
    assert small < large
    assert training_bytes(graph, 512, "bf16") < large
    # Peaks measured with the tensorflow engine: docs/decisions/memory.md.
    assert 0.9 < large / (3958 * 2**20) < 1.2
    assert 0.9 < training_bytes(resnet50((224, 224, 3), 10), 16, "fp32") / (2510 * 2**20) < 1.2


def test_the_memory_estimate_counts_what_waits_for_the_backward_pass() -> None:
    """Outputs of all layers but a flatten, which makes no tensor; a convolution's input and output
    twice more."""
    graph = sequential(
        volume=Input((4, 4, 4, 2)),
        conv=Conv3D(3, 3),
        relu=LeakyReLU(),
        pool=MaxPool3D(2, 2),
        flat=Flatten(),
        logits=Dense(4),
        probabilities=Softmax(),
    )
    kept = 128 + 192 + 192 + 24 + 4 + 4
    for precision, size in (("fp32", 4), ("bf16", 2), ("fp16", 2)):
        none, one = (training_bytes(graph, batch, precision) for batch in (0, 1))
        assert one - none == size * (kept + 2 * (192 + 128))


@pytest.mark.parametrize(
    ("optimizer", "numbers"), [("sgd", 5), ("adam", 7), ("adamw", 7), ("lamb", 9), ("asgd", 6)]
)
def test_the_memory_estimate_has_the_numbers_of_each_parameter(
    optimizer: str, numbers: int
) -> None:
    """Weight, gradient and state; the next network's weight and state; an update's own.

    A gibibyte is the framework's. Below fp32 a copy of the weights is as small as activations.
    """
    graph = sequential(x=Input((3,)), logits=Dense(4))
    assert training_bytes(graph, 0, "fp32", optimizer) == 2**30 + 4 * numbers * 16
    assert training_bytes(graph, 0, "bf16", optimizer) == 2**30 + (4 * numbers + 2) * 16


def test_the_memory_estimate_includes_copies_of_best_epochs_where_they_are_held() -> None:
    """Seven numbers per parameter with SGD, ten with an optimizer of two moments."""
    graph = resnet(16)
    for optimizer, numbers in (("sgd", 7), ("lamb", 10)):
        used = config(optimizer=optimizer)
        alone, copies = (MemoryLimit(used, 0, held).needed(graph, 8) for held in (False, True))
        assert alone == training_bytes(graph, 8, "fp32", optimizer)
        assert copies - alone == 4 * numbers * graph.parameter_count
        limit = MemoryLimit(used, copies - 1, holds_copies=True)
        assert limit.fitting_batch(graph, 8) == 4


def test_the_requested_batch_is_halved_until_it_fits() -> None:
    graph = resnet()
    for wanted in (512, 100, 3):
        limit = training_bytes(graph, wanted, "fp32")
        assert MemoryLimit(config(), limit).fitting_batch(graph, wanted) == wanted
        assert MemoryLimit(config(), limit - 1).fitting_batch(graph, wanted) == wanted // 2
    assert MemoryLimit(config(), 0).fitting_batch(graph, 8) == 0
    sgd = training_bytes(graph, 8, "fp32", "sgd")
    assert MemoryLimit(config(optimizer="adam"), sgd).fitting_batch(graph, 8) == 4


def test_available_memory_is_shared_and_bounded_by_a_control_group(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert 0 < available_bytes(2) <= available_bytes(1)
    monkeypatch.setattr(machine, "remaining_memory", lambda: 1000)
    assert available_bytes(4) == 250


def test_seeds_differ_by_every_part_and_are_the_same_every_time() -> None:
    seeds = {seed_of(run, "r0", "trial", n) for run in range(5) for n in range(50)}
    assert len(seeds) == 250
    assert seed_of(0, "r0", "trial", 1) == 3977486788
    assert seed_of(1, "23") != seed_of(12, "3")


def test_trials_of_later_attempts_have_other_names() -> None:
    attempts = [Incarnation(), Incarnation(0, 1), Incarnation(1, 0)]
    assert [Identity("r0", each).name for each in attempts] == ["r0", "r0-0.1", "r0-1.0"]
    assert sorted(attempts) == attempts
    assert [Incarnation.parse(str(each)) for each in attempts] == attempts


@pytest.mark.parametrize(
    ("spare", "ranks", "batch_size"),
    [
        (0, 1, 64),
        (-1, 1, 32),  # The batch that fits the initial network is used for its children too.
        (2**40, 4, 16),  # A rank has its shard of the batch.
        (-(2**40), 1, None),  # Nothing fits.
    ],
)
def test_candidates_are_bounded_by_memory_at_the_initial_networks_batch_size(
    spare: int, ranks: int, batch_size: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph, used = resnet(), config({"ranks_per_node": ranks}, batch_size=64)
    limit = training_bytes(graph, 64, "fp32") + spare
    bounds = Bounds.of(used.search, graph, MemoryLimit(used, limit))
    found, needed = list[int](), MemoryLimit.needed

    def noted(memory: MemoryLimit, graph: Graph, batch: int) -> int:
        found.append(needed(memory, graph, batch))
        return found[-1]

    monkeypatch.setattr(MemoryLimit, "needed", noted)
    assert bounds.fits(graph)
    assert found == ([training_bytes(graph, batch_size, "fp32")] if batch_size else [])
    monkeypatch.setattr(MemoryLimit, "needed", lambda *_: limit + 1)
    assert bounds.fits(graph) == (batch_size is None)


def test_threads_switch_faster_than_by_default(monkeypatch: pytest.MonkeyPatch) -> None:
    """The thread that launches a step's kernels needs the interpreter lock after each of them."""
    before, found = sys.getswitchinterval(), list[float]()
    monkeypatch.setattr(main, "_run", lambda *_: found.append(sys.getswitchinterval()))
    try:
        main.main(["nowhere", "--replica", "r0"])
    finally:
        sys.setswitchinterval(before)
    assert found == [pytest.approx(50e-6)]
    assert before > found[0]


def test_a_checkout_that_is_not_installed_has_the_version_of_its_source(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    installed = metadata.version

    def version(name: str) -> str:
        if name == "aiperf-hpc":
            raise metadata.PackageNotFoundError(name)
        return installed(name)

    monkeypatch.setattr(metadata, "version", version)
    assert package_versions()["aiperf-hpc"] == __version__


@pytest.mark.parametrize(
    ("memory_limit_gib", "device", "limit"),
    [
        (None, None, 6),  # 2 of the host's 8 GiB are reserved for decoded images.
        (None, 5, 5),  # An accelerator's memory holds none.
        (3.0, None, 3),
        (3.0, 5, 3),
    ],
)
def test_only_the_hosts_memory_is_reduced_by_decoded_images(
    memory_limit_gib: float | None, device: int | None, limit: int
) -> None:
    config = RunConfig.model_validate(
        {
            "dataset": {"name": "imagenet", "path": "/d", "decoded_cache_gib": 2},
            "engine": {"name": "torch", "memory_limit_gib": memory_limit_gib},
        }
    )
    found = memory_limit(config, device and device * 2**30, lambda: 8 * 2**30)
    assert found.bytes == limit * 2**30
    assert found.holds_copies is (device is None)
