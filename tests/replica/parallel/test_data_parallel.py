"""Ranks train like one process, and none waits for a failed one."""

from __future__ import annotations

import json
import math
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from tests.replica.parallel.team import (
    GRAPH,
    Quadratic,
    Team,
    build,
    evaluate,
    grown_state,
    initial_state,
    numbered,
    train,
)
from tests.replica.parallel.threads import Threads, run_on_ranks

from aiperf_hpc.errors import EngineError, NonFiniteLossError, OutOfMemoryError
from aiperf_hpc.objective import ACCURACY, CLASSIFICATION
from aiperf_hpc.replica.data.base import Part
from aiperf_hpc.replica.parallel import data_parallel, leader
from aiperf_hpc.replica.parallel.leader import LeadingTally
from aiperf_hpc.trial import StepPart

FULL = OutOfMemoryError("no memory left")
FULL_IN_STEP_2 = {"errors": {2: FULL}}


def error_of(rank: int) -> str:
    """Return the error on rank 0 if this one of three ranks fails."""
    return "no memory left" if rank == 0 else "1 of 3 ranks failed"


def agree_every(seconds: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leader, "AGREE_SECONDS", seconds)


@pytest.mark.parametrize("size", [3, 5])
def test_a_shard_is_weighted_by_its_number_of_samples(size: int) -> None:
    """50 samples by 8: most of five ranks have no sample of the last batch."""
    with Team(size) as team:
        network = build(team)
        alone = Quadratic(GRAPH, initial_state().weights)
        losses = []
        for batch, whole in zip(
            team.dataset.train(1, 8, 0), numbered().train(1, 8, 0), strict=True
        ):
            assert batch.whole == whole.size
            losses.append(alone.loss_of(whole))
            alone.train_step(whole, 0.1)
            network.train_step(batch, 0.1)
        assert network.drain_training() == pytest.approx(np.mean(losses), rel=1e-5)
        assert network.drain_training() == 0.0
        network.close()
    for engine in team.engines:
        np.testing.assert_allclose(engine.networks[0].w, alone.w, rtol=1e-5)
        assert engine.networks[0].closed


@pytest.mark.parametrize("size", [3, 5])
def test_ranks_calibrate_by_the_mean_of_their_shards_and_then_train_on_them(size: int) -> None:
    """The shards of the first batch of 8 have one size or two."""
    with Team(size) as team:
        network = team.engine.build(grown_state())
        first, *others = team.dataset.train(1, 8, 0)
        names = network.calibrate(first)
        assert names == ("relu_deep1_norm", "relu_deep1_relu_deep1_norm")
        for batch in (first, *others):  # The following ranks have not consumed theirs.
            network.train_step(batch, 0.1)
        network.close()
    parts = [np.arange(8)[slice(*Part(rank, size).bounds(8))] % 7 for rank in range(size)]
    sizes = [len(part) for part in parts]
    mean = np.average([part.mean() for part in parts], weights=sizes)
    variance = np.average([part.var() for part in parts], weights=sizes)
    expected = {"mean": mean, "beta": mean, "variance": variance, "gamma": variance + 1e-5}
    leader = team.engines[0].networks[0].assigned
    for engine in team.engines:
        for name, first_ones, own in zip(names, leader, engine.networks[0].assigned, strict=True):
            for key, value in expected.items():
                array = own[f"{name}/{key}"]
                np.testing.assert_array_equal(array, first_ones[f"{name}/{key}"])
                squared = np.square(array) if key == "gamma" else array
                np.testing.assert_allclose(squared, value, rtol=1e-5)


@pytest.mark.parametrize("rank", [0, 2])
def test_a_calibration_that_fails_on_one_rank_fails_on_all(rank: int) -> None:
    with Team(3, {rank: {"errors": {0: FULL}}}) as team:
        network = team.engine.build(grown_state())
        with pytest.raises(EngineError, match=error_of(rank)):
            network.calibrate(next(team.dataset.train(1, 8, 0)))
        network.close()
        train(team, build(team), 1)
    assert not any(engine.networks[0].assigned for engine in team.engines)


@pytest.mark.parametrize("size", [1, 3])
def test_a_baseline_is_measured_on_the_samples_of_all_ranks(size: int) -> None:
    with Team(size) as team:
        network = build(team)
        baseline = LeadingTally(CLASSIFICATION, team.dataset.info, team.collectives[0])
        for batch in baseline.watched(team.dataset.validation(8)):
            network.evaluate_step(batch)
        assert network.drain_evaluation().samples == 20
        # Labels 0 to 6 in turn: each of the first six occurs three times in 20 samples.
        assert baseline.measured().sums == {"correct": 3.0}


def test_an_evaluation_is_the_sum_of_all_ranks() -> None:
    with Team(3) as team:
        network = build(team)
        assert network.calibrate(next(team.dataset.train(1, 8, 0))) == ()  # Nothing is inserted.
        train(team, network)
        sums = evaluate(team, network)
        assert (sums.loss, sums.sums(ACCURACY), sums.samples) == (20.0, {"correct": 9}, 20)
        assert network.drain_evaluation().samples == 0
    # The evaluation uses the mean of the ranks' running statistics.
    steps = [engine.networks[0].steps for engine in team.engines]
    for engine in team.engines:
        np.testing.assert_allclose(engine.networks[0].set_to, np.mean(steps))


@pytest.mark.parametrize("size", [3, 5])
def test_predictions_of_all_ranks_are_in_the_order_of_the_samples(size: int) -> None:
    with Team(size) as team:
        for engine in team.engines:
            engine.objective = CLASSIFICATION.model_copy(update={"predictions": True})
        network = build(team)
        numbers = []
        # 20 samples by 8: one of five ranks has no sample of the last batch.
        for place, batch in enumerate(team.dataset.validation(8)):
            network.evaluate_step(batch)
            if place != 1:  # The second and third batch are drained together.
                found = network.drain_evaluation().predictions
                assert found is not None
                numbers += found.tolist()
        assert network.drain_evaluation().predictions is None
    assert numbers == [number % 7 for number in range(20)]


@pytest.mark.parametrize("early", [True, False])
@pytest.mark.parametrize("rank", [0, 2])
def test_a_step_with_an_agreement_that_fails_on_one_rank_updates_none(
    monkeypatch: pytest.MonkeyPatch, rank: int, early: bool
) -> None:
    """Whether it fails before its first bucket of gradients or between two of them."""
    agree_every(0.0, monkeypatch)
    with Team(3, {rank: FULL_IN_STEP_2 | {"fails_early": early}}) as team:
        network = build(team)
        batches = team.dataset.train(1, 8, 0)
        network.train_step(next(batches), 0.1)
        after_one = team.engines[0].networks[0].w.copy()
        with pytest.raises(EngineError, match=error_of(rank)):
            network.train_step(next(batches), 0.1)
        network.close()
        train(team, build(team), 1)
    for engine in team.engines:
        np.testing.assert_array_equal(engine.networks[0].w, after_one)
        assert engine.networks[1].steps == 1


@pytest.mark.parametrize("early", [True, False])
@pytest.mark.parametrize("rank", [0, 2])
def test_a_failure_between_two_agreements_is_raised_on_all_ranks_in_the_next(
    monkeypatch: pytest.MonkeyPatch, rank: int, early: bool
) -> None:
    agree_every(math.inf, monkeypatch)
    with Team(3, {rank: FULL_IN_STEP_2 | {"fails_early": early}}) as team:
        network = build(team)
        train(team, network)
        with pytest.raises(EngineError, match=error_of(rank)):
            network.drain_training()
        network.close()
        again = build(team)
        train(team, again, 1)
        assert again.drain_training() > 0.0
    for engine in team.engines:
        np.testing.assert_array_equal(engine.networks[0].w, team.engines[0].networks[0].w)
        assert engine.networks[0].steps == (2 if engine is team.engines[rank] else 7)


def test_a_failure_is_printed_when_the_network_is_closed_without_an_agreement(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    agree_every(math.inf, monkeypatch)
    with Team(2, {1: FULL_IN_STEP_2}) as team:
        network = build(team)
        train(team, network, 3)
        network.close()
    assert capsys.readouterr().err == "aiperf: rank 1: no memory left\n"


def test_a_non_finite_loss_credits_no_samples_if_another_rank_failed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Samples that lead to such a loss are credited if all ranks have executed theirs."""
    agree_every(math.inf, monkeypatch)
    with Team(2, {0: {"loss": np.nan}, 1: FULL_IN_STEP_2}) as team:
        network = build(team)
        train(team, network, 3)
        with pytest.raises(EngineError, match="2 of 2 ranks failed") as raised:
            network.drain_training()
        assert not isinstance(raised.value, NonFiniteLossError)


@pytest.mark.parametrize(("seconds", "agreements"), [(math.inf, 1), (0.0, 5)])
def test_a_step_is_a_command_its_buckets_and_if_due_an_agreement(
    monkeypatch: pytest.MonkeyPatch, seconds: float, agreements: int
) -> None:
    """The first step has an agreement, and so has a drain. Every call of Threads gathers once."""
    agree_every(seconds, monkeypatch)
    calls: Counter[str] = Counter()
    for name in ("start_allreduce_sum", "allreduce_sum", "barrier", "command", "gather"):
        monkeypatch.setattr(Threads, name, counting(calls, name))
    with Team(2) as team:
        network = build(team)
        first, *others = list(team.dataset.train(1, 8, 0))[:5]
        calls.clear()
        network.train_step(first, 0.1)
        assert calls == {"command": 1, "start_allreduce_sum": 2, "allreduce_sum": 1, "gather": 4}
        for batch in others:
            network.train_step(batch, 0.1)
        expected = {"command": 5, "start_allreduce_sum": 10, "allreduce_sum": agreements}
        assert calls == expected | {"gather": 15 + agreements}
        network.drain_training()
        assert calls["command"] == 6
        assert calls["allreduce_sum"] == agreements + 1


def counting(calls: Counter[str], name: str) -> Callable[..., Any]:
    """Return a method of the collective that counts its calls on rank 0."""
    method = getattr(Threads, name)

    def call(collective: Threads, *given: Any) -> Any:  # noqa: ANN401 -- any method's
        calls[name] += collective.rank == 0
        return method(collective, *given)

    return call


def test_ranks_whose_weights_differ_are_named() -> None:
    with Team(3, {2: {"drifts_after": 1}}) as team:
        network = build(team)
        train(team, network)
        with pytest.raises(EngineError, match="after 7 steps the weights of rank 2 are not"):
            evaluate(team, network)


def test_weights_are_also_compared_during_an_epoch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data_parallel, "CHECK_STEPS", 2)
    with Team(2, {1: {"drifts_after": 1}}) as team:
        network = build(team)
        batches = team.dataset.train(1, 8, 0)
        for _ in range(2 + data_parallel.CHECK_DELAY - 1):
            network.train_step(next(batches), 0.1)
        with pytest.raises(EngineError, match="after 2 steps the weights of rank 1"):
            network.train_step(next(batches), 0.1)


@pytest.mark.parametrize("rank", [0, 1])
def test_a_non_finite_loss_on_one_rank_is_raised_on_rank_0(rank: int) -> None:
    with Team(2, {rank: {"loss": np.nan}}) as team:
        network = build(team)
        train(team, network, 1)
        with pytest.raises(NonFiniteLossError, match="learning_rate"):
            network.drain_training()


def test_an_incomplete_evaluation_fails() -> None:
    with (
        Team(2, {1: {"idle": True}}) as team,
        pytest.raises(EngineError, match="evaluated 10 samples of batches of 20"),
    ):
        evaluate(team, build(team))


def test_step_times_are_the_mean_over_ranks() -> None:
    """One rank computes longer, and the other one waits for it."""
    with Team(2, {1: {"seconds": 0.2}}) as team:
        network = build(team)
        began = time.perf_counter()
        train(team, network, 5)
        assert network.network.step_times("t1") is None
        network.drain_training()
        elapsed = time.perf_counter() - began
        times = network.network.step_times("t1")
        assert times is not None
        assert (times.trial, times.collective, times.ranks, times.steps) == ("t1", "threads", 2, 5)
        seconds = times.seconds
        assert seconds[StepPart.COMPUTE] >= 0.5  # The mean of 1.0 and nearly nothing.
        # Threads reduce a bucket at the start of the reduction, where the other rank waits.
        assert seconds[StepPart.QUEUE] >= 0.25  # The mean of nearly 1.0 and nothing.
        assert seconds[StepPart.COMPUTE] < sum(seconds.values()) <= elapsed


OPTIMIZERS = ("lamb", "asgd")
"""Further optimizers, once per engine: an update does not depend on the collective."""


@pytest.mark.parametrize(
    ("collective", "engine", "ranks", "optimizers"),
    [
        ("mpi", "tensorflow", 2, OPTIMIZERS),
        ("mpi", "torch", 3, OPTIMIZERS),
        ("torch", "torch", 3, ()),
        ("horovod", "tensorflow", 2, ()),
    ],
)
def test_ranks_train_like_one_process(
    collective: str, engine: str, ranks: int, optimizers: tuple[str, ...]
) -> None:
    """With real engines, collectives and images, and batches that do not divide evenly."""
    last = run_on_ranks("ranks_against_one.py", ranks, collective, engine, *optimizers)
    found = json.loads(last)
    assert found["error"] < 1e-5
    # The divisor in LAMB starts near zero, where rounding errors are large.
    assert found["optimizers"].keys() == set(optimizers)
    assert all(error < 1e-3 for error in found["optimizers"].values()), found
    assert not found["compiler"], "PyTorch's compiler takes a second to import, and is not used"
    assert found["calibrated"] == ["one_relu_deep1_norm"]
    assert found["together"][2:] == found["alone"][2:]
    assert found["together"][3] == 360
    # Except for samples with two equally probable classes, up to rounding.
    assert sum(map(int.__eq__, *found["predictions"])) >= 358
    assert found["together"][:2] == pytest.approx(found["alone"][:2], rel=1e-5)
