"""Ranks train in step: as one process would, and none waits for one that failed."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from tests.replica.parallel.threads import Table, Threads
from tests.support.fakes import FakeDataset
from tests.support.networks import two_stems
from tests.support.waiting import PATIENCE_SECONDS

from aiperf_hpc.errors import DatasetError, EngineError, NonFiniteLossError, OutOfMemoryError
from aiperf_hpc.graph import Graph
from aiperf_hpc.morphism.operators.deeper import Deeper
from aiperf_hpc.morphism.operators.grow import grow_with_weights
from aiperf_hpc.morphism.weights.checkpoint import Weights, initial_weights
from aiperf_hpc.objective import ACCURACY, CLASSIFICATION
from aiperf_hpc.primary.launchers.base import rank_starter
from aiperf_hpc.replica.data.base import Batch, Part, labelled_images
from aiperf_hpc.replica.engines.base import EvaluationSums, OptimizerState, evaluated
from aiperf_hpc.replica.parallel import protocol
from aiperf_hpc.replica.parallel.collectives import load_collective
from aiperf_hpc.replica.parallel.collectives.base import ALONE, Array
from aiperf_hpc.replica.parallel.collectives.watched import Watch, WatchedCollective
from aiperf_hpc.replica.parallel.protocol import LeadingDataset, LeadingEngine, follow
from aiperf_hpc.trial import Hyperparameters, StepPart

GRAPH = two_stems()
USED = Hyperparameters(batch_size=8, learning_rate=0.1, momentum=0.0)


class Quadratic:
    """A network that is one number w in every parameter; its loss is the mean of (w - x)^2 / 2
    over samples, whose x is their label."""

    def __init__(self, graph: Graph, weights: Weights) -> None:
        self.graph = graph
        self.w = np.concatenate([weights[name].ravel() for name in graph.parameters])
        self.errors: dict[int, Exception] = {}
        self.fails_early = True
        self.seconds = 0.0
        self.loss = 0.0
        self.drained = 0
        self.drifts_after = 0
        self.idle = False
        self.assigned: list[Weights] = []
        self.steps = 0
        self.closed = False
        self._sums = EvaluationSums()

    @property
    def buckets(self) -> tuple[int, ...]:
        """Two, so that a rank can fail between them."""
        return (3, self.w.size - 3)

    def gradients(self, batch: Batch, share: float, ready: Callable[[Array], None]) -> None:
        self.steps += 1
        time.sleep(self.seconds)
        if not batch.size:
            ready(self.zeros(0))
            ready(self.zeros(1))
            return
        self.loss += share * self.loss_of(batch)
        slopes = (self.w - batch.targets["label"].mean()).astype(np.float32) * np.float32(share)
        if self.steps in self.errors and self.fails_early:
            raise self.errors[self.steps]
        ready(slopes[:3])
        if self.steps in self.errors:
            raise self.errors[self.steps]
        ready(slopes[3:])

    def loss_of(self, batch: Batch) -> float:
        away = float(self.w[0]) - batch.targets["label"].astype(np.float64)
        return float(np.square(away).mean() / 2)

    def zeros(self, bucket: int) -> NDArray[np.float32]:
        return np.zeros(self.buckets[bucket], np.float32)

    def warm(self, batch_size: int, *, halves: bool = False) -> None:
        """There is nothing to warm."""

    def calibrate(self, batch: Batch) -> tuple[str, ...]:
        raise NotImplementedError

    def moments(self, batch: Batch) -> NDArray[np.float32]:
        """Of every normalisation the mean and the variance of the labels."""
        if 0 in self.errors:
            raise self.errors[0]
        of_labels = {
            "mean": batch.targets["label"].mean(),
            "variance": batch.targets["label"].var(),
        }
        rows = [
            np.full(shape, of_labels[name.split("/")[1]], np.float32)
            for name, shape in self.graph.statistics.items()
        ]
        return np.concatenate(rows)

    def assign(self, weights: Weights) -> None:
        self.assigned.append(weights)

    def apply(self, buckets: Sequence[Array], learning_rate: float) -> None:
        self.w = self.w - np.float32(learning_rate) * np.concatenate(buckets)
        if self.steps == self.drifts_after:
            self.w += np.float32(1e-3)

    def statistics(self) -> NDArray[np.float32]:
        return np.full(2, self.steps, np.float32)

    def set_statistics(self, flat: NDArray[np.float32]) -> None:
        self.set_to = flat.copy()

    def evaluate_step(self, batch: Batch) -> None:
        if self.idle:
            return
        part = evaluated(ACCURACY, batch.size, batch.size, (1,))
        self._sums = self._sums.merged(part, ACCURACY)

    def drain_evaluation(self) -> EvaluationSums:
        sums, self._sums = self._sums, EvaluationSums()
        return sums

    def train_step(self, batch: Batch, learning_rate: float) -> None:
        buckets: list[Array] = []
        self.gradients(batch, 1.0, buckets.append)
        self.apply(buckets, learning_rate)

    def drain_training(self) -> float:
        steps, self.drained = self.steps - self.drained, self.steps
        loss, self.loss = self.loss, 0.0
        if not np.isfinite(loss):
            raise NonFiniteLossError("a lower training.learning_rate may help")
        return loss / steps if steps else 0.0

    def outputs(self, inputs: Mapping[str, NDArray[Any]]) -> NDArray[np.float32]:
        return np.asarray(inputs["image"], np.float32)

    def weights(self) -> Weights:
        return {"w/kernel": self.w}

    def optimizer_state(self) -> OptimizerState:
        return {}

    def close(self) -> None:
        self.closed = True


class Engine:
    """Makes networks of one number; says what fails, by rank."""

    name = "quadratic"
    objective = CLASSIFICATION
    versions: dict[str, str] = {}
    accelerators: tuple[str, ...] = ()
    memory_bytes = None

    def __init__(self) -> None:
        self.networks: list[Quadratic] = []
        self.build_errors: list[Exception] = []
        self.prepare: Callable[[Quadratic], None] = lambda _: None

    def build(
        self,
        graph: Graph,
        weights: Weights,
        hyperparameters: Hyperparameters,
        optimizer_state: OptimizerState | None = None,
    ) -> Quadratic:
        if self.build_errors:
            raise self.build_errors.pop()
        self.networks.append(Quadratic(graph, weights))
        self.prepare(self.networks[-1])
        return self.networks[-1]


class Numbered(FakeDataset):
    """Samples whose label is their number, modulo 7."""

    def _batches(self, samples: int, batch_size: int, part: Part) -> Iterator[Batch]:
        for start in range(0, samples, batch_size):
            first, last = part.bounds(min(batch_size, samples - start))
            if first < last:
                labels = (np.arange(start + first, start + last) % 7).astype(np.int32)
                yield labelled_images(np.zeros((last - first, 6, 6, 2), np.float32), labels)


class Team:
    """Followers that are threads, and what rank 0 needs to lead them."""

    def __init__(self, size: int, dataset: Callable[[], Numbered] = Numbered) -> None:
        table = Table(size)
        self.collectives = [Threads(table, rank, size) for rank in range(size)]
        self.engines = [Engine() for _ in range(size)]
        self.threads = [
            threading.Thread(
                target=follow, args=(self.engines[rank], dataset(), self.collectives[rank])
            )
            for rank in range(1, size)
        ]
        self.engine = LeadingEngine(self.engines[0], self.collectives[0])
        self.dataset = LeadingDataset(Numbered(), self.collectives[0])

    def __enter__(self) -> Team:
        for thread in self.threads:
            thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            protocol.Announce(self.collectives[0])(protocol.Command.END)
        else:
            self.collectives[0].table.barrier.abort()
        for thread in self.threads:
            thread.join(PATIENCE_SECONDS)
            assert not thread.is_alive()


def drifting(network: Quadratic) -> None:
    network.drifts_after = 1


def build(team: Team) -> protocol.LeadingNetwork:
    return team.engine.build(GRAPH, initial_weights(GRAPH, np.random.default_rng(0)), USED)


def build_grown(team: Team) -> protocol.LeadingNetwork:
    """Two normalisations were inserted; the second one reads what the first one gives."""
    rng = np.random.default_rng(0)
    chain = [Deeper("relu", 3), Deeper("relu_deep1_relu", 1)]
    return team.engine.build(
        *grow_with_weights(GRAPH, initial_weights(GRAPH, rng), chain, rng), USED
    )


@given(samples=st.integers(0, 200), ranks=st.integers(1, 20))
def test_parts_are_disjoint_and_whole(samples: int, ranks: int) -> None:
    bounds = [Part(rank, ranks).bounds(samples) for rank in range(ranks)]
    assert [number for first, last in bounds for number in range(first, last)] == [*range(samples)]
    sizes = [last - first for first, last in bounds]
    assert max(sizes) - min(sizes) <= 1
    more = [Part(rank, ranks).bounds(samples + 1) for rank in range(ranks)]
    assert all(last - first >= size for (first, last), size in zip(more, sizes, strict=True))


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
    def prepare(network: Quadratic) -> None:
        network.errors = {0: OutOfMemoryError("no memory left")}

    with Team(3) as team:
        team.engines[rank].prepare = prepare
        network = build_grown(team)
        words = "no memory left" if rank == 0 else "1 of 3 ranks failed"
        with pytest.raises(EngineError, match=words):
            network.calibrate(next(team.dataset.train(1, 8, 0)))
        network.close()
        build(team).train_step(next(team.dataset.train(1, 8, 0)), 0.1)
    assert not any(engine.networks[0].assigned for engine in team.engines)


def test_nothing_inserted_is_nothing_to_calibrate() -> None:
    with Team(2) as team:
        network = build(team)
        batch = next(team.dataset.train(1, 8, 0))
        assert network.calibrate(batch) == ()
        network.train_step(batch, 0.1)


def test_an_evaluation_is_the_sum_of_all_ranks() -> None:
    with Team(3) as team:
        network = build(team)
        for batch in team.dataset.train(1, 8, 0):
            network.train_step(batch, 0.1)
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


@pytest.mark.parametrize("rank", [0, 1, 2])
def test_what_one_rank_cannot_build_fails_on_all_and_the_next_network_is_built(rank: int) -> None:
    with Team(3) as team:
        team.engines[rank].build_errors = [OutOfMemoryError("it does not fit")]
        words = "it does not fit" if rank == 0 else f"rank {rank} could not build"
        with pytest.raises(EngineError, match=words):
            build(team)
        build(team).train_step(next(team.dataset.train(1, 8, 0)), 0.1)
    for number, engine in enumerate(team.engines):
        *earlier, last = engine.networks
        assert [n.closed for n in earlier] == ([] if number == rank else [True])
        assert (last.closed, last.steps) == (False, 1)


@pytest.mark.parametrize("early", [True, False])
@pytest.mark.parametrize("rank", [0, 2])
def test_a_step_that_one_rank_cannot_do_updates_none(rank: int, early: bool) -> None:
    """Before it has given a bucket of gradients, or between two of them."""
    with Team(3) as team:

        def prepare(network: Quadratic) -> None:
            network.fails_early = early
            network.errors = {2: OutOfMemoryError("no memory left")}

        team.engines[rank].prepare = prepare
        network = build(team)
        batches = team.dataset.train(1, 8, 0)
        network.train_step(next(batches), 0.1)
        after_one = team.engines[0].networks[0].w.copy()
        words = "no memory left" if rank == 0 else "1 of 3 ranks failed"
        with pytest.raises(EngineError, match=words):
            network.train_step(next(batches), 0.1)
        network.close()
        build(team).train_step(next(team.dataset.train(1, 8, 0)), 0.1)
    for engine in team.engines:
        np.testing.assert_array_equal(engine.networks[0].w, after_one)
        assert engine.networks[1].steps == 1


def test_a_rank_whose_data_cannot_be_read_fails_the_step() -> None:
    class Broken(Numbered):
        def _batches(self, samples: int, batch_size: int, part: Part) -> Iterator[Batch]:
            yield from super()._batches(0, batch_size, part)
            raise DatasetError("the shard is damaged")

    with Team(2, Broken) as team, pytest.raises(EngineError, match="1 of 2 ranks failed"):
        build(team).train_step(next(team.dataset.train(1, 8, 0)), 0.1)


def test_ranks_whose_weights_differ_are_named() -> None:
    with Team(3) as team:
        team.engines[2].prepare = drifting
        network = build(team)
        for batch in team.dataset.train(1, 8, 0):
            network.train_step(batch, 0.1)
        with pytest.raises(EngineError, match="after 7 steps the weights of rank 2 are not"):
            network.evaluate_step(next(team.dataset.validation(8)))


def test_weights_are_compared_within_an_epoch_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protocol, "CHECK_STEPS", 2)
    with Team(2) as team:
        team.engines[1].prepare = drifting
        network = build(team)
        batches = team.dataset.train(1, 8, 0)
        network.train_step(next(batches), 0.1)
        with pytest.raises(EngineError, match="after 2 steps the weights of rank 1"):
            network.train_step(next(batches), 0.1)


@pytest.mark.parametrize("rank", [0, 1])
def test_a_loss_that_is_not_finite_on_one_rank_is_said_by_rank_0(rank: int) -> None:
    def prepare(network: Quadratic) -> None:
        network.loss = np.nan

    with Team(2) as team:
        team.engines[rank].prepare = prepare
        network = build(team)
        network.train_step(next(team.dataset.train(1, 8, 0)), 0.1)
        with pytest.raises(NonFiniteLossError, match="learning_rate"):
            network.drain_training()


def test_ranks_that_disagree_about_the_data_are_found() -> None:
    with Team(2, lambda: Numbered(train_samples=44)) as team:
        network = build(team)
        *most, last, _ = team.dataset.train(1, 8, 0)
        for batch in most:
            network.train_step(batch, 0.1)
        with pytest.raises(EngineError, match="the ranks trained on 6 samples of a batch of 8"):
            network.train_step(last, 0.1)


def test_an_evaluation_that_leaves_samples_out_is_no_evaluation() -> None:
    def prepare(network: Quadratic) -> None:
        network.idle = True

    with Team(2) as team:
        team.engines[1].prepare = prepare
        network = build(team)
        for batch in team.dataset.validation(8):
            network.evaluate_step(batch)
        with pytest.raises(EngineError, match="evaluated 10 samples of batches of 20"):
            network.drain_evaluation()


def test_a_rank_that_built_something_else_is_named() -> None:
    def prepare(network: Quadratic) -> None:
        network.w = network.w + 1.0

    with Team(3) as team:
        team.engines[1].prepare = prepare
        with pytest.raises(EngineError, match="rank 1 built another network than rank 0"):
            build(team)
    assert all(engine.networks[0].closed for engine in team.engines)


def test_ranks_that_build_slowly_are_not_taken_for_hung() -> None:
    """They have longer than they may take to answer, however uneven they are."""
    late: list[str] = []

    def slow(_: Quadratic) -> None:
        time.sleep(2.5)

    with Team(2) as team:
        team.engines[1].prepare = slow
        watched = WatchedCollective(team.collectives[0], Watch(1.0, late.append))
        engine = LeadingEngine(team.engines[0], watched)
        weights = initial_weights(GRAPH, np.random.default_rng(0))
        begun = time.monotonic()
        engine.build(GRAPH, weights, USED)
        assert time.monotonic() - begun > 2.0
    assert late == []


def test_where_the_time_of_steps_went_is_the_mean_over_ranks() -> None:
    """One rank computes longer, and the others wait for it."""

    def prepare(network: Quadratic) -> None:
        network.seconds = 0.2

    with Team(2) as team:
        team.engines[1].prepare = prepare
        network = build(team)
        for batch in list(team.dataset.train(1, 8, 0))[:5]:
            network.train_step(batch, 0.1)
        network.drain_training()
        assert team.engine.take_step_times("t1") is None
        network.close()
        times = team.engine.take_step_times("t1")
        assert times is not None
        assert (times.trial, times.collective) == ("t1", "threads")
        assert (times.ranks, times.steps) == (2, 5)
        seconds = times.seconds
        assert seconds[StepPart.COMPUTE] == pytest.approx(0.5, abs=0.2)
        # Threads reduce a bucket when it is given: there the other rank waits.
        assert seconds[StepPart.QUEUE] == pytest.approx(0.5, abs=0.2)
        assert sum(seconds.values()) == pytest.approx(1.0, abs=0.3)
        assert team.engine.take_step_times("t2") is None


def test_one_rank_needs_no_collective() -> None:
    assert load_collective("mpi", 1) is ALONE
    np.testing.assert_array_equal(ALONE.gather(np.arange(3)), [[0, 1, 2]])


def test_fewer_ranks_than_asked_for_are_one_line() -> None:
    """Started without mpirun or srun, MPI has one rank."""
    script = (
        "from aiperf_hpc.errors import EngineError\n"
        "from aiperf_hpc.replica.parallel.collectives import load_collective\n"
        "try: load_collective('mpi', 4)\n"
        "except EngineError as error: print(error)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert "joins 1 ranks, the configuration asks for 4" in done.stdout


@pytest.mark.parametrize(
    ("collective", "engine", "ranks"),
    [
        ("mpi", "tensorflow", 2),
        ("mpi", "torch", 3),
        ("torch", "torch", 3),
        ("torch", "tensorflow", 3),
        ("horovod", "tensorflow", 3),
    ],
)
def test_ranks_train_as_one_process_does(collective: str, engine: str, ranks: int) -> None:
    """Real engines, real collectives, real images, batches that do not divide evenly."""
    if collective == "horovod":
        pytest.importorskip("horovod", reason="Horovod has no wheels: make horovod builds it")
    script = Path(__file__).with_name("ranks_against_one.py")
    command = [*rank_starter(ranks, collective), sys.executable, str(script)]
    command += [collective, engine]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, timeout=PATIENCE_SECONDS
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["error"] < 1e-5
    # What LAMB divides by begins near zero, where rounding is large.
    assert all(found[optimizer] < 1e-3 for optimizer in ("lamb", "asgd")), found
    assert found["calibrated"] == ["one_relu_deep1_norm"]
    assert found["together"][2:] == found["alone"][2:]
    assert found["together"][3] == 360
    assert found["together"][:2] == pytest.approx(found["alone"][:2], rel=1e-5)
