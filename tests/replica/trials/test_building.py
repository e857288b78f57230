"""Building of the next trial during the running one, and the steps that wait for its end."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future
from pathlib import Path

import pytest
import torch
from tests.support.clock import Clock
from tests.support.fakes import FakeDataset, FakeEngine, FakeNetwork, Script
from tests.support.immediate import IMMEDIATE
from tests.support.trials import GRAPH, planned_trial, replica_context

from aiperf_hpc.config import validate
from aiperf_hpc.errors import OutOfMemoryError
from aiperf_hpc.objective import CLASSIFICATION
from aiperf_hpc.ops_counter.memory import MemoryLimit
from aiperf_hpc.replica.context import ReplicaContext
from aiperf_hpc.replica.engines import load_engine
from aiperf_hpc.replica.engines.base import Engine, NetworkState
from aiperf_hpc.replica.engines.torch.network import TorchNetwork
from aiperf_hpc.replica.parallel.collectives import ALONE
from aiperf_hpc.replica.parallel.leader import LeadingDataset, LeadingEngine, LeadingNetwork
from aiperf_hpc.replica.parallel.protocol import Warmup
from aiperf_hpc.replica.runtime.background import background_thread
from aiperf_hpc.replica.training.trainer import Lead, Trainer
from aiperf_hpc.replica.training.trial import BuiltTrial
from aiperf_hpc.replica.trials.building import OneRankBuilder, SeveralRanksBuilder, TrialBuilder
from aiperf_hpc.run.journal import JournalReader
from aiperf_hpc.run.records import CompilerFailed

RUNNING, NEXT = 8_000, 4_000
CONFIG = validate({"dataset": {"name": "synthetic"}, "training": {"precision": "fp32"}}, "test")


class Ahead:
    """A trial that is trained, and the next one, which begins to be built meanwhile."""

    def __init__(self, trainer: Trainer, builder: TrialBuilder) -> None:
        self._trainer = trainer
        self._builder = builder
        self.first = builder.finish(builder.begin(planned_trial(CONFIG, RUNNING, "r0-t1")))
        self.begun: list[Future[BuiltTrial]] = []

    def train(self) -> None:
        self._trainer.run(self.first, self._look)

    def _look(self) -> None:
        if not self.begun:
            self.begun.append(self._builder.begin(planned_trial(CONFIG, NEXT, "r0-t2")))

    def finish(self) -> BuiltTrial:
        (begun,) = self.begun
        return self._builder.finish(begun)


@pytest.mark.parametrize("both_fit", [True, False])
def test_the_next_network_is_warmed_during_a_trial_if_both_fit(
    tmp_path: Path, *, both_fit: bool
) -> None:
    """The running one is larger: the next one fits twice, but both may not fit together."""
    unlimited = MemoryLimit(CONFIG, 2**40)
    together = sum(unlimited.needed(GRAPH, batch) for batch in (RUNNING, NEXT))
    assert together > 2 * unlimited.needed(GRAPH, NEXT)
    engine = FakeEngine(Script())
    trainer, builder = one_rank(
        replica_context(tmp_path, CONFIG), engine, together - (not both_fit)
    )
    ahead = Ahead(trainer, builder)
    ahead.train()
    running, following = engine.networks
    assert running.warmed == [RUNNING]
    assert following.warmed == ([NEXT] if both_fit else [1])
    assert bool(following.calibrated) is both_fit  # It needs the memory of a batch, too.
    # Compilation needs none. Nothing trains while the first network is built.
    assert engine.compiled_ahead == [(GRAPH, "fp32", NEXT)]
    builder.close(ahead.first)
    assert running.closed
    ahead.finish()
    assert following.warmed == ([NEXT] if both_fit else [1, NEXT])
    assert following.calibrated


@pytest.mark.parametrize("both_fit", [True, False])
def test_ranks_warm_the_next_network_during_a_trial_if_both_fit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, both_fit: bool
) -> None:
    unlimited = MemoryLimit(CONFIG, 2**40)
    running, following = (unlimited.needed(GRAPH, batch) for batch in (RUNNING, NEXT))
    trainer, builder = builder_of(tmp_path, several=True)
    trainer.memory = MemoryLimit(CONFIG, running + following - (not both_fit))
    trainer.running_bytes = running
    requested: list[Warmup] = []
    monkeypatch.setattr(LeadingEngine, "begin", lambda *given, **_: requested.append(given[-1]))
    builder.begin(planned_trial(CONFIG, NEXT, "r0-t2"))
    assert requested == [Warmup.BUILT if both_fit else Warmup.TAKEN]


def one_rank(
    context: ReplicaContext,
    engine: Engine,
    memory_bytes: int = 2**40,
    background: Executor = IMMEDIATE,
) -> tuple[Trainer, OneRankBuilder]:
    """Return a trainer and its builder for one rank."""
    dataset, limit = FakeDataset(), MemoryLimit(CONFIG, memory_bytes)
    trainer = Trainer(context, dataset, CLASSIFICATION.quality, limit, IMMEDIATE)
    return trainer, OneRankBuilder(context, engine, dataset, trainer, background)


def builder_of(folder: Path, *, several: bool) -> tuple[Trainer, TrialBuilder]:
    """Return a trainer and its builder with PyTorch, for one rank or the first of several."""
    context, engine = replica_context(folder, CONFIG), load_engine("torch", 1)
    if not several:
        return one_rank(context, engine)
    leading, dataset = LeadingEngine(engine, ALONE), LeadingDataset(FakeDataset(), ALONE)
    memory = MemoryLimit(CONFIG, 2**40)
    trainer = Trainer(context, dataset, CLASSIFICATION.quality, memory, IMMEDIATE)
    return trainer, SeveralRanksBuilder(context, leading, dataset, trainer)


@pytest.mark.parametrize("several", [False, True])
def test_the_memory_of_a_step_that_ran_out_of_it_is_freed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, several: bool
) -> None:
    """During warm-up and training, without the garbage collector.

    The trial keeps the error, whose frames would keep the step's tensors.
    """
    trainer, builder = builder_of(tmp_path, several=several)
    computed: list[weakref.ref[object]] = []

    def full(network: TorchNetwork, inputs: Sequence[object], *, training: bool) -> None:
        output = real(network, inputs, training=training)
        computed.append(weakref.ref(output))
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB")

    ready = builder.finish(builder.begin(planned_trial(CONFIG, 8, "r0-t1")))
    real: Callable[..., object] = TorchNetwork._outputs
    monkeypatch.setattr(TorchNetwork, "_outputs", full)
    gc.collect()
    gc.disable()
    try:
        begun = builder.begin(planned_trial(CONFIG, 8, "r0-t2"))
        if isinstance(builder, SeveralRanksBuilder):
            builder.engine._builder._thread.submit(int).result()  # Wait for the build.
        assert [reference() for reference in computed] == [None]
        unfit = builder.finish(begun)
        assert isinstance(unfit.failure, OutOfMemoryError)
        assert builder.close(unfit) is None  # It has no network.
        result = trainer.run(ready)
        assert result.out_of_memory
        if isinstance(ready.network, LeadingNetwork):  # It sends zeros instead of its gradients.
            local = ready.network.network.local
            assert isinstance(local, TorchNetwork)
            computed.append(weakref.ref(local._gradients))
            del local
        builder.close(ready)
        assert [reference() for reference in computed] == [None] * len(computed)
        assert len(computed) == (3 if several else 2)
    finally:
        gc.enable()


def test_the_lead_is_estimated_from_the_time_of_building_without_waiting(tmp_path: Path) -> None:
    clock = Clock()

    class Slow(FakeEngine):
        def build(self, state: NetworkState) -> FakeNetwork:
            clock.advance(100.0)
            return super().build(state)

    context = replica_context(tmp_path, CONFIG, clock=clock)
    trainer, builder = one_rank(context, Slow(Script()))
    assert trainer.lead.seconds == 60.0
    builder.begin(planned_trial(CONFIG, NEXT, "r0-t1"))
    clock.advance(1_000.0)
    assert trainer.lead.seconds == 150.0


def test_the_lead_with_several_ranks_is_estimated_from_the_first_rank(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock()
    trainer, builder = builder_of(tmp_path, several=True)
    trainer.lead = Lead(clock)

    def begin(*_: object, built: Callable[[object], None]) -> None:
        clock.advance(100.0)
        built(None)

    monkeypatch.setattr(LeadingEngine, "begin", begin)
    builder.begin(planned_trial(CONFIG, NEXT, "r0-t2"))
    assert trainer.lead.seconds == 150.0


@pytest.mark.parametrize("problem", ["", "the compiler process was killed after 600 s"])
def test_a_network_that_is_not_compiled_ahead_is_recorded_and_built(
    tmp_path: Path, problem: str
) -> None:
    engine = FakeEngine(Script())
    engine.compiler_problem = problem
    context = replica_context(tmp_path, CONFIG)
    trainer, builder = one_rank(context, engine)
    trainer.running_bytes = 1
    assert builder.begin(planned_trial(CONFIG, NEXT, "r0-t2")).result().failure is None
    context.journal.close()
    events = [record.event for record in JournalReader(tmp_path / "journal.jsonl").read()]
    assert events == ([CompilerFailed(problem=problem)] if problem else [])


def test_training_continues_while_the_next_network_is_compiled(tmp_path: Path) -> None:
    """Compilation lasts until all steps of the running trial are done."""
    trained = threading.Event()

    class Held(FakeEngine):
        def compile_ahead(self, state: NetworkState) -> str:
            assert trained.wait(60.0)
            return super().compile_ahead(state)

    engine, context = Held(Script()), replica_context(tmp_path, CONFIG)
    with background_thread() as background:
        ahead = Ahead(*one_rank(context, engine, background=background))
        ahead.train()
        assert len(ahead.begun) == 1
        assert not engine.compiled_ahead
        trained.set()
        assert ahead.finish().failure is None
    assert engine.compiled_ahead == [(GRAPH, "fp32", NEXT)]


def test_an_engine_that_tunes_kernels_is_warmed_alone_by_the_training_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The tuning applies to its thread, and another network would distort its timings."""
    warming: list[tuple[threading.Thread, bool]] = []
    first: BuiltTrial | None = None

    def warm(network: FakeNetwork, batch_size: int) -> None:
        closed = first is None or engine.networks[0].closed
        warming.append((threading.current_thread(), closed))

    monkeypatch.setattr(FakeNetwork, "warm", warm)
    engine = FakeEngine(Script())
    engine.warms_alone = True
    context = replica_context(tmp_path, CONFIG)
    with background_thread() as background:
        trainer, builder = one_rank(context, engine, background=background)
        ahead = Ahead(trainer, builder)
        first = ahead.first
        ahead.train()
        builder.close(first)
        assert ahead.finish().failure is None
    assert warming == [(threading.main_thread(), True)] * 2
