"""What of the next trial is made ready beside the one under way, and what waits for its end."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future
from pathlib import Path

import pytest
from tests.support.clock import Clock
from tests.support.fakes import FakeDataset, FakeEngine, FakeNetwork, Script
from tests.support.trials import GRAPH, planned_trial, replica_context

from aiperf_hpc.config import validate
from aiperf_hpc.errors import OutOfMemoryError
from aiperf_hpc.objective import CLASSIFICATION
from aiperf_hpc.ops_counter.memory import MemoryLimit
from aiperf_hpc.replica.context import ReplicaContext
from aiperf_hpc.replica.engines import load_engine
from aiperf_hpc.replica.engines.base import Engine, NetworkState
from aiperf_hpc.replica.parallel.collectives.base import ALONE
from aiperf_hpc.replica.parallel.leader import LeadingDataset, LeadingEngine, LeadingNetwork
from aiperf_hpc.replica.parallel.protocol import Warmup
from aiperf_hpc.replica.runtime.background import IMMEDIATE, background_thread
from aiperf_hpc.replica.training.trainer import Lead, Trainer
from aiperf_hpc.replica.training.trial import (
    BuiltTrial,
)
from aiperf_hpc.replica.trials.building import (
    OneRankBuilder,
    SeveralRanksBuilder,
    TrialBuilder,
)
from aiperf_hpc.run.journal import JournalReader
from aiperf_hpc.run.records import CompilerFailed

RUNNING, NEXT = 8_000, 4_000
CONFIG = validate({"dataset": {"name": "synthetic"}, "training": {"precision": "fp32"}}, "test")


@pytest.mark.parametrize("both_fit", [True, False])
def test_the_next_network_is_warmed_with_what_fits_beside_the_one_that_trains(
    tmp_path: Path, *, both_fit: bool
) -> None:
    """The larger one trains: twice the next one would fit, both together may not."""
    unlimited = MemoryLimit(CONFIG, 2**40)
    together = sum(unlimited.needed(GRAPH, batch) for batch in (RUNNING, NEXT))
    assert together > 2 * unlimited.needed(GRAPH, NEXT)
    engine = FakeEngine(Script())
    trainer, builder = one_rank(
        replica_context(tmp_path, CONFIG), engine, together - (not both_fit)
    )
    taken: list[Future[BuiltTrial]] = []

    def meanwhile() -> None:
        if not taken:
            taken.append(builder.begin(planned_trial(CONFIG, NEXT, "r0-t2")))

    first = builder.finish(builder.begin(planned_trial(CONFIG, RUNNING, "r0-t1")))
    trainer.run(first, meanwhile)
    running, following = engine.networks
    assert running.warmed == [RUNNING]
    assert following.warmed == ([NEXT] if both_fit else [1])
    assert bool(following.calibrated) is both_fit  # That takes a batch's memory, too.
    # Compiling takes none. The first network has no other beside it, which it would stall.
    assert engine.compiled_ahead == [(GRAPH, "fp32", NEXT)]
    builder.close(first)
    assert running.closed
    builder.finish(taken[0])
    assert following.warmed == ([NEXT] if both_fit else [1, NEXT])
    assert following.calibrated


@pytest.mark.parametrize("both_fit", [True, False])
def test_ranks_warm_the_next_network_when_it_fits_beside_the_one_that_trains(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, both_fit: bool
) -> None:
    unlimited = MemoryLimit(CONFIG, 2**40)
    running, following = (unlimited.needed(GRAPH, batch) for batch in (RUNNING, NEXT))
    trainer, builder = builder_of(tmp_path, several=True)
    trainer.memory = MemoryLimit(CONFIG, running + following - (not both_fit))
    trainer.running_bytes = running
    asked: list[Warmup] = []
    monkeypatch.setattr(LeadingEngine, "begin", lambda *given, **_: asked.append(given[-1]))
    builder.begin(planned_trial(CONFIG, NEXT, "r0-t2"))
    assert asked == [Warmup.BUILT if both_fit else Warmup.TAKEN]


def one_rank(
    context: ReplicaContext,
    engine: Engine,
    memory_bytes: int = 2**40,
    background: Executor = IMMEDIATE,
) -> tuple[Trainer, OneRankBuilder]:
    """Return a trainer and its builder, of one rank."""
    dataset, limit = FakeDataset(), MemoryLimit(CONFIG, memory_bytes)
    trainer = Trainer(context, dataset, CLASSIFICATION.quality, limit)
    return trainer, OneRankBuilder(context, engine, dataset, trainer, background)


def builder_of(folder: Path, *, several: bool) -> tuple[Trainer, TrialBuilder]:
    """Return a trainer and its builder, by PyTorch: of one rank, or of the first of several."""
    context, engine = replica_context(folder, CONFIG), load_engine("torch", 1)
    if not several:
        return one_rank(context, engine)
    leading, dataset = LeadingEngine(engine, ALONE), LeadingDataset(FakeDataset(), ALONE)
    trainer = Trainer(context, dataset, CLASSIFICATION.quality, MemoryLimit(CONFIG, 2**40))
    return trainer, SeveralRanksBuilder(context, leading, dataset, trainer)


@pytest.mark.parametrize("several", [False, True])
def test_nothing_is_left_of_a_step_that_did_not_fit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, several: bool
) -> None:
    """Whether the network was made ready or trained: an error would keep all that was computed.

    It is kept itself, until its trial's turn; and several ranks tell each other of it, so that it
    knows a call that knows it. The garbage collector may be long in coming.
    """
    torch = pytest.importorskip("torch")
    from aiperf_hpc.replica.engines.torch.network import TorchNetwork

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
            builder.engine._builder._thread.submit(int).result()  # That one has been built.
        assert [reference() for reference in computed] == [None]
        unfit = builder.finish(begun)
        assert isinstance(unfit.failure, OutOfMemoryError)
        result = trainer.run(ready)
        assert result.out_of_memory
        if isinstance(ready.network, LeadingNetwork):  # What it gave in the stead of its gradients.
            local = ready.network.network.local
            assert isinstance(local, TorchNetwork)
            computed.append(weakref.ref(local._gradients))
            del local
        builder.close(ready)
        assert [reference() for reference in computed] == [None] * len(computed)
        assert len(computed) == (3 if several else 2)
    finally:
        gc.enable()


def test_how_long_a_preparation_took_is_learned_and_not_how_long_it_waited_to_be_taken(
    tmp_path: Path,
) -> None:
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


def test_how_long_the_first_rank_built_is_learned_of_several(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock()
    trainer, builder = builder_of(tmp_path, several=True)
    trainer.lead = Lead(clock)
    told: list[Callable[[object], None]] = []

    def begin(*_: object, built: Callable[[object], None]) -> None:
        told.append(built)

    monkeypatch.setattr(LeadingEngine, "begin", begin)
    builder.begin(planned_trial(CONFIG, NEXT, "r0-t2"))
    clock.advance(100.0)
    told[0](None)
    assert trainer.lead.seconds == 150.0


@pytest.mark.parametrize("problem", ["", "the process that compiles was ended after 600 s"])
def test_a_network_that_is_not_compiled_ahead_is_recorded_and_made_ready_all_the_same(
    tmp_path: Path, problem: str
) -> None:
    engine = FakeEngine(Script())
    engine.compiler_problem = problem
    context = replica_context(tmp_path, CONFIG)
    trainer, builder = one_rank(context, engine)
    trainer.running_bytes = 1
    assert builder.begin(planned_trial(CONFIG, NEXT, "r0-t2")).result().failure is None
    context.journal.close()
    said = [record.event for record in JournalReader(tmp_path / "journal.jsonl").read()]
    assert said == ([CompilerFailed(problem=problem)] if problem else [])


def test_a_trial_goes_on_while_the_next_network_is_compiled(tmp_path: Path) -> None:
    """Compiling is held until all steps of the trial under way are done."""
    trained = threading.Event()

    class Held(FakeEngine):
        def compile_ahead(self, state: NetworkState) -> str:
            assert trained.wait(60.0)
            return super().compile_ahead(state)

    engine = Held(Script())
    taken: list[Future[BuiltTrial]] = []

    def meanwhile() -> None:
        if not taken:
            taken.append(builder.begin(planned_trial(CONFIG, NEXT, "r0-t2")))

    with background_thread() as background:
        trainer, builder = one_rank(
            replica_context(tmp_path, CONFIG), engine, background=background
        )
        first = builder.finish(builder.begin(planned_trial(CONFIG, RUNNING, "r0-t1")))
        trainer.run(first, meanwhile)
        assert len(taken) == 1
        assert not engine.compiled_ahead
        trained.set()
        second = builder.finish(taken[0])
    assert engine.compiled_ahead == [(GRAPH, "fp32", NEXT)]
    assert second.failure is None


def test_where_steps_time_kernels_the_thread_that_trains_warms_with_nothing_beside_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is timed is known to the thread that timed it, and wrong if another network trained."""
    warming: list[tuple[threading.Thread, bool]] = []
    first: BuiltTrial | None = None

    def warm(network: FakeNetwork, batch_size: int) -> None:
        closed = first is None or engine.networks[0].closed
        warming.append((threading.current_thread(), closed))

    monkeypatch.setattr(FakeNetwork, "warm", warm)
    engine = FakeEngine(Script())
    engine.warms_alone = True
    with background_thread() as background:
        trainer, builder = one_rank(
            replica_context(tmp_path, CONFIG), engine, background=background
        )
        first = builder.finish(builder.begin(planned_trial(CONFIG, RUNNING, "r0-t1")))
        following = builder.begin(planned_trial(CONFIG, NEXT, "r0-t2"))
        trainer.run(first)
        builder.close(first)
        assert builder.finish(following).failure is None
    assert warming == [(threading.main_thread(), True)] * 2
