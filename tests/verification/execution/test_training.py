"""A repeated epoch finds what an engine left out, and nothing in honest training."""

from __future__ import annotations

import os
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from tests.support.networks import sequential
from tests.support.recorded_epoch import GRAPH, Recorded

from aiperf_hpc.graph import Dense, Graph, Input
from aiperf_hpc.morphism.resnet import resnet50
from aiperf_hpc.replica.data import Batch
from aiperf_hpc.replica.engines.base import Network
from aiperf_hpc.replica.reexecution import execute
from aiperf_hpc.run.replica_requests import CheckpointValues, EpochAgain, Movement, TrainingAgain
from aiperf_hpc.verification.execution.checks import (
    EARLIER,
    EXACT,
    MISSING,
    ROUNDED,
    Check,
    Tolerance,
    Verdict,
    evaluation_losses,
    interval_losses,
    training_checks,
)


def part(batch: Batch, samples: slice) -> Batch:
    inputs, targets = (
        {name: array[samples] for name, array in arrays.items()}
        for arrays in (batch.inputs, batch.targets)
    )
    return Batch(inputs, targets)


class LeavesOutSteps(Recorded):
    """Leaves out each tenth step."""

    def train_step(self, network: Network, batch: Batch, rate: float, step: int) -> None:
        if step % 10 != 9:
            network.train_step(batch, rate)


class ResNet(Recorded):
    """A network with enough kernels for a median."""

    graph = resnet50((8, 8, 1), 10, stem="cifar", base_width=8, blocks=(1, 1, 1, 1))


class LeavesOutStepsOfAResNet(LeavesOutSteps, ResNet):
    """Its median distance does not depend on the number of steps that a checkpoint states."""


class LeavesOutLastSteps(Recorded):
    """Leaves out the last tenth of the steps."""

    def train_step(self, network: Network, batch: Batch, rate: float, step: int) -> None:
        if step < 14:
            network.train_step(batch, rate)


class TrainsOnHalves(Recorded):
    """Trains on half of each batch."""

    def train_step(self, network: Network, batch: Batch, rate: float, step: int) -> None:
        network.train_step(part(batch, slice(batch.size // 2)), rate)


class FreezesALayer(Recorded):
    """Never trains the convolution."""

    def train_step(self, network: Network, batch: Batch, rate: float, step: int) -> None:
        before = network.weights()["conv/kernel"]
        network.train_step(batch, rate)
        network.assign({"conv/kernel": before})  # type: ignore[attr-defined]


class HalvesTheRate(Recorded):
    """Trains at half of the learning rate."""

    def train_step(self, network: Network, batch: Batch, rate: float, step: int) -> None:
        network.train_step(batch, rate / 2.0)


class EvaluatesHalves(Recorded):
    """Evaluates half of each batch twice."""

    def evaluate_step(self, network: Network, batch: Batch) -> None:
        for _ in range(2):
            network.evaluate_step(part(batch, slice(batch.size // 2)))


MOVED = {
    name: Movement(recorded=1.0, again=1.0, between=0.0)
    for name in (*GRAPH.parameters, *GRAPH.statistics)
}
FORGERIES = {
    LeavesOutSteps: "steps of the optimizer",
    LeavesOutStepsOfAResNet: "median distance of kernels",
    LeavesOutLastSteps: "steps of the optimizer",
    TrainsOnHalves: "again: loss of batch",
    FreezesALayer: "arrays that moved",
    HalvesTheRate: "distance that weights moved",
    EvaluatesHalves: "epoch 2: validation loss",
}
"""Failed check of each forgery on all devices."""


@pytest.fixture(autouse=True)
def _cores(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same in all tests, because TensorFlow's threads are set once per process."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _process: {0, 1})


def repeated(recorded: Recorded, engine: str) -> EpochAgain:
    request = recorded.request()
    other = request.config.engine.model_copy(update={"name": engine})
    config = request.config.model_copy(update={"engine": other})
    (again,) = execute(request.model_copy(update={"config": config})).epochs
    assert again.failure == ""
    return again


def failed(again: EpochAgain, tolerance: Tolerance, graph: Graph = GRAPH) -> list[str]:
    assert again.recorded is not None
    assert again.evaluated is not None
    checks = list(training_checks("trained again", graph, again, tolerance, earlier=False))
    evaluated = again.recorded, again.evaluated
    checks.append(evaluation_losses("epoch 2", *evaluated, tolerance, earlier=False))
    return [check.name for check in checks if check.verdict is Verdict.FAILED]


@pytest.mark.parametrize(
    ("kind", "precision", "optimizer"),
    [(ResNet, "fp32", "sgd"), *product([Recorded], ["fp32", "bf16"], ["sgd", "adam"])],
)
def test_honest_training_is_equal_by_the_same_engine_and_similar_by_another(
    tmp_path: Path, kind: type[Recorded], precision: str, optimizer: str
) -> None:
    rate = 0.05 if optimizer == "sgd" else 0.002
    training = {"precision": precision, "optimizer": optimizer, "learning_rate": rate}
    recorded = kind(tmp_path, "torch", **training)
    for engine, tolerance in (("torch", EXACT), ("tensorflow", ROUNDED[precision])):
        assert failed(repeated(recorded, engine), tolerance, recorded.graph) == []


@pytest.mark.parametrize("forged", FORGERIES)
def test_what_an_engine_left_out_is_found_by_the_same_and_by_another(
    tmp_path: Path, forged: type[Recorded]
) -> None:
    recorded = forged(tmp_path, "torch")
    for engine, tolerance in (("torch", EXACT), ("tensorflow", ROUNDED["fp32"])):
        names = failed(repeated(recorded, engine), tolerance, recorded.graph)
        assert any(FORGERIES[forged] in name for name in names), engine


def test_rounding_grows_fastest_in_a_first_epoch() -> None:
    later, first = ROUNDED["fp32"], ROUNDED["fp32"].first
    assert first.train_losses[:2] == later.train_losses[:2]
    assert first.train_losses[2] > later.train_losses[2]
    assert first.movement > later.dropping.movement > later.movement
    assert first.kernels is not None
    assert later.kernels is not None
    assert first.kernels > later.kernels
    assert ROUNDED["fp16"].first.kernels is None
    assert EXACT.dropping.train_losses == ()
    assert EXACT.dropping.apart is None


@pytest.mark.parametrize(
    ("precision", "difference", "passed"),
    [("fp16", 16, True), ("fp16", 17, False), ("fp16", -2, True), ("fp16", -3, False),
     ("bf16", 1, False), ("bf16", -1, False)],
)  # fmt: skip
def test_only_fp16_may_leave_out_steps_and_a_record_few_of_them(
    precision: str, difference: int, *, passed: bool
) -> None:
    values = CheckpointValues(train_losses=(), validation_losses=(), steps=16 + difference)
    training = TrainingAgain(losses=(), steps=16, movements=MOVED)
    again = EpochAgain(trial="r0-t1", recorded=values, training=training)
    steps = next(training_checks("again", GRAPH, again, ROUNDED[precision], earlier=False))
    assert (steps.name, steps.verdict is Verdict.PASSED) == (
        "again: steps of the optimizer",
        passed,
    )


@pytest.mark.parametrize("lacking", ["recorded", "training"])
def test_a_training_without_a_result_fails_unless_the_run_is_earlier(lacking: str) -> None:
    values = CheckpointValues(train_losses=(), validation_losses=(), steps=16)
    training = TrainingAgain(losses=(), steps=16, movements=MOVED)
    again = EpochAgain(trial="r0-t1", recorded=values, training=training)
    again = again.model_copy(update={lacking: None})
    for earlier, verdict in ((True, Verdict.NOT_COMPARED), (False, Verdict.FAILED)):
        checks = training_checks("again", GRAPH, again, EXACT, earlier=earlier)
        assert [each.verdict for each in checks] == [verdict]


@pytest.mark.parametrize(
    ("kernels", "distance", "verdict"),
    [(4, 0.5, None), (5, 0.5, Verdict.FAILED), (5, 0.989, Verdict.FAILED),
     (5, 0.991, Verdict.PASSED)],
)  # fmt: skip
def test_the_median_distance_of_enough_kernels_differs_by_one_percent_at_most(
    kernels: int, distance: float, verdict: Verdict | None
) -> None:
    layers = {f"dense{number}": Dense(4) for number in range(kernels)}
    graph = sequential(features=Input((4,)), **layers)
    moved = dict.fromkeys(graph.parameters, Movement(recorded=distance, again=1.0, between=0.0))
    values = CheckpointValues(train_losses=(), validation_losses=(), steps=16)
    training = TrainingAgain(losses=(), steps=16, movements=moved)
    again = EpochAgain(trial="r0-t1", recorded=values, training=training)
    checks = training_checks("again", graph, again, EXACT, earlier=False)
    found = {each.name: each.verdict for each in checks}
    assert found.get("again: median distance of kernels, relative") is verdict


def check(recorded: tuple[float, ...], again: tuple[float, ...]) -> Check:
    return interval_losses("loss", recorded, again, (1e-3, 1e-2), earlier=False)


def test_the_most_different_interval_is_stated() -> None:
    found = check((1.0, 2.0, 3.0), (1.0005, 2.1, 9.0))
    assert (found.name, found.verdict) == ("loss of batch 2", Verdict.FAILED)
    assert (found.recorded, found.reexecuted) == (2.0, 2.1)
    assert check((1.0, 2.0, 3.0), (1.0005, 2.01, 9.0)).verdict is Verdict.PASSED
    assert check((np.nan,), (1.0,)).verdict is Verdict.FAILED
    assert check((1.0,), (1.0, 2.0)).verdict is Verdict.FAILED


def test_what_was_not_recorded_is_not_compared() -> None:
    found = interval_losses("loss", (), (1.0, 2.0), (1e-3, 1e-2), earlier=True)
    assert (found.verdict, found.tolerance) == (Verdict.NOT_COMPARED, EARLIER)
    found = check((), (1.0, 2.0))
    assert (found.verdict, found.tolerance) == (Verdict.FAILED, MISSING)


def test_with_dropout_only_the_number_of_intervals_is_compared() -> None:
    found = interval_losses("loss", (1.0, 2.0), (3.0, 4.0), (), earlier=False)
    assert found.verdict is Verdict.NOT_COMPARED
    found = interval_losses("loss", (1.0, 2.0), (), (), earlier=False)
    assert found.verdict is Verdict.FAILED
