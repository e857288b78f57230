"""Ranks train in step: as one process would, and none waits for one that failed."""

from __future__ import annotations

import json
import math
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.replica.parallel.team import (
    GRAPH,
    Numbered,
    Quadratic,
    Team,
    build,
    build_grown,
    train,
)
from tests.replica.parallel.threads import Threads
from tests.support.waiting import PATIENCE_SECONDS

from aiperf_hpc.errors import EngineError, NonFiniteLossError, OutOfMemoryError
from aiperf_hpc.morphism.weights.weight_file import initial_weights
from aiperf_hpc.objective import ACCURACY, CLASSIFICATION
from aiperf_hpc.primary.launchers.base import rank_starter
from aiperf_hpc.replica.data.base import Part
from aiperf_hpc.replica.parallel import data_parallel, leader
from aiperf_hpc.replica.parallel.leader import LeadingBaseline
from aiperf_hpc.trial import StepPart

FULL = OutOfMemoryError("no memory left")
FULL_IN_STEP_2 = {"errors": {2: FULL}}


@pytest.mark.parametrize("size", [2, 3, 5])
def test_uneven_parts_weigh_as_many_samples_as_they_have(size: int) -> None:
    """50 samples by 8, so that the last batch leaves most of five ranks without a sample."""
    with Team(size) as team:
        network = build(team)
        alone = Quadratic(GRAPH, initial_weights(GRAPH, np.random.default_rng(0)))
        losses = []
        for batch, whole in zip(
            team.dataset.train(1, 8, 0), Numbered().train(1, 8, 0), strict=True
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


@pytest.mark.parametrize("size", [2, 3, 5])
def test_ranks_calibrate_by_the_mean_of_their_parts_and_then_train_on_them(size: int) -> None:
    """The first batch of 8 has parts of one size or of two."""
    with Team(size) as team:
        network = build_grown(team)
        first, *others = team.dataset.train(1, 8, 0)
        names = network.calibrate(first)
        assert names == ("relu_deep1_norm", "relu_deep1_relu_deep1_norm")
        for batch in (first, *others):  # The ranks that follow still have theirs.
            network.train_step(batch, 0.1)
        network.close()
    parts = [np.arange(8)[slice(*Part(rank, size).bounds(8))] % 7 for rank in range(size)]
    mean = np.average([part.mean() for part in parts], weights=[len(part) for part in parts])
    variance = np.average([part.var() for part in parts], weights=[len(part) for part in parts])
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
def test_a_calibration_that_one_rank_cannot_do_fails_on_all(rank: int) -> None:
    with Team(3, {rank: {"errors": {0: FULL}}}) as team:
        network = build_grown(team)
        words = "no memory left" if rank == 0 else "1 of 3 ranks failed"
        with pytest.raises(EngineError, match=words):
            network.calibrate(next(team.dataset.train(1, 8, 0)))
        network.close()
        train(team, build(team), 1)
    assert not any(engine.networks[0].assigned for engine in team.engines)


def test_nothing_inserted_is_nothing_to_calibrate() -> None:
    with Team(2) as team:
        network = build(team)
        batch = next(team.dataset.train(1, 8, 0))
        assert network.calibrate(batch) == ()
        network.train_step(batch, 0.1)


@pytest.mark.parametrize("size", [1, 3])
def test_a_baseline_is_that_of_all_ranks_samples(size: int) -> None:
    with Team(size) as team:
        network = build(team)
        baseline = LeadingBaseline(CLASSIFICATION, team.dataset.info, team.collectives[0])
        for batch in baseline.watched(team.dataset.validation(8)):
            network.evaluate_step(batch)
        assert network.drain_evaluation().samples == 20
        # Labels 0 to 6 in turn: the first six of them come three times in 20 samples.
        assert baseline.measured().sums == {"correct": 3.0}


def test_an_evaluation_is_the_sum_of_all_ranks() -> None:
    with Team(3) as team:
        network = build(team)
        train(team, network)
        for batch in team.dataset.validation(8):
            network.evaluate_step(batch)
        sums = network.drain_evaluation()
        # 20 samples by 8 are three batches, each in three parts.
        assert (sums.loss, sums.sums(ACCURACY), sums.samples) == (20.0, {"correct": 9}, 20)
        assert network.drain_evaluation().samples == 0
    # The running statistics that were evaluated with are the mean of the ranks'.
    steps = [engine.networks[0].steps for engine in team.engines]
    for engine in team.engines:
        np.testing.assert_allclose(engine.networks[0].set_to, np.mean(steps))


@pytest.mark.parametrize("size", [2, 3, 5])
def test_predictions_of_all_ranks_are_in_the_order_of_the_samples(size: int) -> None:
    with Team(size) as team:
        for engine in team.engines:
            engine.objective = CLASSIFICATION.model_copy(update={"predictions": True})
        network = build(team)
        numbers = []
        # 20 samples by 8: the last batch has four, so that of five ranks one has none of it.
        for place, batch in enumerate(team.dataset.validation(8)):
            network.evaluate_step(batch)
            if place != 1:  # Two batches at once, and then one.
                found = network.drain_evaluation().predictions
                assert found is not None
                numbers += found.tolist()
        assert network.drain_evaluation().predictions is None
    # A sample's label is its number modulo 7, and its prediction.
    assert numbers == [number % 7 for number in range(20)]


@pytest.mark.parametrize("early", [True, False])
@pytest.mark.parametrize("rank", [0, 2])
def test_a_step_that_one_rank_cannot_do_updates_none(
    monkeypatch: pytest.MonkeyPatch, rank: int, early: bool
) -> None:
    """Before it has given a bucket of gradients, or between two of them; where ranks agree."""
    monkeypatch.setattr(leader, "AGREE_SECONDS", 0.0)
    with Team(3, {rank: FULL_IN_STEP_2 | {"fails_early": early}}) as team:
        network = build(team)
        batches = team.dataset.train(1, 8, 0)
        network.train_step(next(batches), 0.1)
        after_one = team.engines[0].networks[0].w.copy()
        words = "no memory left" if rank == 0 else "1 of 3 ranks failed"
        with pytest.raises(EngineError, match=words):
            network.train_step(next(batches), 0.1)
        network.close()
        train(team, build(team), 1)
    for engine in team.engines:
        np.testing.assert_array_equal(engine.networks[0].w, after_one)
        assert engine.networks[1].steps == 1


@pytest.mark.parametrize("early", [True, False])
@pytest.mark.parametrize("rank", [0, 2])
def test_what_fails_between_two_agreements_fails_on_all_ranks_in_the_next(
    monkeypatch: pytest.MonkeyPatch, rank: int, early: bool
) -> None:
    """Until then no rank waits for it, and the first thing heard of it is that error."""
    monkeypatch.setattr(leader, "AGREE_SECONDS", math.inf)
    with Team(3, {rank: FULL_IN_STEP_2 | {"fails_early": early}}) as team:
        network = build(team)
        train(team, network)
        words = "no memory left" if rank == 0 else "1 of 3 ranks failed"
        with pytest.raises(EngineError, match=words):
            network.drain_training()
        network.close()
        again = build(team)
        train(team, again, 1)
        assert again.drain_training() > 0.0
    # All have the same weights even so.
    for engine in team.engines:
        np.testing.assert_array_equal(engine.networks[0].w, team.engines[0].networks[0].w)
        assert engine.networks[0].steps == (2 if engine is team.engines[rank] else 7)


def test_a_failure_that_nobody_asks_for_is_said_when_the_network_is_closed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Rank 0 had one of its own, and closes without an agreement."""
    monkeypatch.setattr(leader, "AGREE_SECONDS", math.inf)
    with Team(2, {1: FULL_IN_STEP_2}) as team:
        network = build(team)
        train(team, network, 3)
        network.close()
    assert capsys.readouterr().err == "aiperf: rank 1: no memory left\n"


def test_a_loss_that_is_not_finite_credits_no_step_of_a_rank_that_failed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Samples that lead to such a loss are credited, if all ranks have executed theirs."""
    monkeypatch.setattr(leader, "AGREE_SECONDS", math.inf)
    with Team(2, {0: {"loss": np.nan}, 1: FULL_IN_STEP_2}) as team:
        network = build(team)
        train(team, network, 3)
        with pytest.raises(EngineError, match="2 of 2 ranks failed") as raised:
            network.drain_training()
        assert not isinstance(raised.value, NonFiniteLossError)


@pytest.mark.parametrize(("seconds", "agreements"), [(math.inf, 1), (0.0, 5)])
def test_a_step_is_a_command_its_buckets_and_once_in_a_while_an_agreement(
    monkeypatch: pytest.MonkeyPatch, seconds: float, agreements: int
) -> None:
    """The first step has one, in which most fail that fail at all; a drain is one by itself."""
    monkeypatch.setattr(leader, "AGREE_SECONDS", seconds)
    with Team(2) as team:
        network = build(team)
        first, *others = list(team.dataset.train(1, 8, 0))[:5]
        calls = counted(monkeypatch, team.collectives[0])
        network.train_step(first, 0.1)
        assert calls == {"command": 1, "start_allreduce_sum": 2, "allreduce_sum": 1}
        for batch in others:
            network.train_step(batch, 0.1)
        assert calls == {"command": 5, "start_allreduce_sum": 10, "allreduce_sum": agreements}
        network.drain_training()
        assert calls["command"] == 6
        assert calls["allreduce_sum"] == agreements + 1


def counted(monkeypatch: pytest.MonkeyPatch, collective: Threads) -> Counter[str]:
    """Return how often each of a collective's calls will have been made by others than itself."""
    calls, inside = Counter[str](), [False]

    def count(name: str) -> Callable[..., Any]:
        real = getattr(collective, name)

        def call(*given: Any) -> Any:  # noqa: ANN401 -- any call's
            if inside[0]:
                return real(*given)
            calls[name] += 1
            inside[0] = True
            try:
                return real(*given)
            finally:
                inside[0] = False

        return call

    for name in (
        "start_allreduce_sum", "allreduce_sum", "barrier", "broadcast", "command", "gather",
    ):  # fmt: skip
        monkeypatch.setattr(collective, name, count(name))
    return calls


def test_ranks_whose_weights_differ_are_named() -> None:
    with Team(3, {2: {"drifts_after": 1}}) as team:
        network = build(team)
        train(team, network)
        with pytest.raises(EngineError, match="after 7 steps the weights of rank 2 are not"):
            network.evaluate_step(next(team.dataset.validation(8)))


def test_weights_are_compared_within_an_epoch_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data_parallel, "CHECK_STEPS", 2)
    with Team(2, {1: {"drifts_after": 1}}) as team:
        network = build(team)
        batches = team.dataset.train(1, 8, 0)
        for _ in range(2 + data_parallel.CHECK_DELAY - 1):
            network.train_step(next(batches), 0.1)
        with pytest.raises(EngineError, match="after 2 steps the weights of rank 1"):
            network.train_step(next(batches), 0.1)


@pytest.mark.parametrize("rank", [0, 1])
def test_a_loss_that_is_not_finite_on_one_rank_is_said_by_rank_0(rank: int) -> None:
    with Team(2, {rank: {"loss": np.nan}}) as team:
        network = build(team)
        train(team, network, 1)
        with pytest.raises(NonFiniteLossError, match="learning_rate"):
            network.drain_training()


def test_an_evaluation_that_leaves_samples_out_is_no_evaluation() -> None:
    with Team(2, {1: {"idle": True}}) as team:
        network = build(team)
        for batch in team.dataset.validation(8):
            network.evaluate_step(batch)
        with pytest.raises(EngineError, match="evaluated 10 samples of batches of 20"):
            network.drain_evaluation()


def test_where_the_time_of_steps_went_is_the_mean_over_ranks() -> None:
    """One rank computes longer, and the others wait for it."""
    with Team(2, {1: {"seconds": 0.2}}) as team:
        network = build(team)
        began = time.perf_counter()
        train(team, network, 5)
        network.drain_training()
        elapsed = time.perf_counter() - began
        assert team.engine.take_step_times("t1") is None
        network.close()
        times = team.engine.take_step_times("t1")
        assert times is not None
        assert (times.trial, times.collective) == ("t1", "threads")
        assert (times.ranks, times.steps) == (2, 5)
        seconds = times.seconds
        assert seconds[StepPart.COMPUTE] >= 0.5  # The mean of 1.0 and nearly nothing.
        # Threads reduce a bucket when it is given: there the other rank waits.
        assert seconds[StepPart.QUEUE] >= 0.25  # The mean of nearly 1.0 and nothing.
        assert seconds[StepPart.COMPUTE] < sum(seconds.values()) <= elapsed
        assert team.engine.take_step_times("t2") is None


OPTIMIZERS = ("lamb", "asgd")
"""Besides SGD, by which all combinations train. What an optimizer does with gradients does not
depend on what summed them: once an engine is enough."""


@pytest.mark.parametrize(
    ("collective", "engine", "ranks", "optimizers"),
    [
        ("mpi", "tensorflow", 2, OPTIMIZERS),
        ("mpi", "torch", 3, OPTIMIZERS),
        ("torch", "torch", 3, ()),
        ("torch", "tensorflow", 2, ()),
        ("horovod", "tensorflow", 2, ()),
    ],
)
def test_ranks_train_as_one_process_does(
    collective: str, engine: str, ranks: int, optimizers: tuple[str, ...]
) -> None:
    """Real engines, real collectives, real images, batches that do not divide evenly."""
    if collective == "horovod":
        pytest.importorskip("horovod", reason="Horovod has no wheels: make horovod builds it")
    script = Path(__file__).with_name("ranks_against_one.py")
    command = [*rank_starter(ranks, collective), sys.executable, str(script)]
    command += [collective, engine, *optimizers]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, timeout=PATIENCE_SECONDS
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["error"] < 1e-5
    # What LAMB divides by begins near zero, where rounding is large.
    assert found["optimizers"].keys() == set(optimizers)
    assert all(error < 1e-3 for error in found["optimizers"].values()), found
    assert not found["compiler"], "PyTorch's takes a second to import, and compiles nothing here"
    assert found["calibrated"] == ["one_relu_deep1_norm"]
    assert found["together"][2:] == found["alone"][2:]
    assert found["together"][3] == 360
    # But for samples of which two classes are as probable, to rounding.
    assert sum(map(int.__eq__, *found["predictions"])) >= 358
    assert found["together"][:2] == pytest.approx(found["alone"][:2], rel=1e-5)
