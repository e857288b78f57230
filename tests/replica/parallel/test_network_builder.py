"""All ranks build the same network, or none is left with one."""

from __future__ import annotations

import threading
import time

import numpy as np
import pytest
from tests.replica.parallel.team import (
    GRAPH,
    USED,
    Quadratic,
    Team,
    begin,
    build,
)
from tests.support.waiting import PATIENCE_SECONDS

from aiperf_hpc.errors import EngineError, OutOfMemoryError
from aiperf_hpc.morphism.weights.weight_file import initial_weights
from aiperf_hpc.replica.data.base import Part
from aiperf_hpc.replica.engines.base import NetworkState
from aiperf_hpc.replica.parallel.collectives.base import Array
from aiperf_hpc.replica.parallel.leader import LeadingEngine
from aiperf_hpc.replica.parallel.protocol import Warmup
from aiperf_hpc.replica.parallel.rank_failure import Watch, WatchedCollective


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


def test_whoever_leads_is_told_when_its_network_is_built_though_nobody_takes_it() -> None:
    built = threading.Event()
    with Team(2) as team:
        take = begin(team, Warmup.BUILT, built=lambda _: built.set())
        assert built.wait(PATIENCE_SECONDS)
        take().close()


def test_why_the_first_rank_did_not_compile_ahead_is_told_to_whoever_leads() -> None:
    told: list[str] = []
    with Team(2) as team:
        for rank in (0, 1):
            team.engines[rank].compiler_problem = f"rank {rank}'s was ended"
        team.engine = LeadingEngine(team.engines[0], team.collectives[0], told.append)
        for _ in range(2):  # The first network has nothing to be kept from.
            begin(team, Warmup.BUILT)().close()
    assert told == ["rank 0's was ended"]


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
        engine.build(NetworkState(GRAPH, weights, USED))
        assert time.monotonic() - begun > 2.0
    assert late == []


@pytest.mark.parametrize("warmup", list(Warmup))
def test_each_rank_warms_its_own_part_of_an_uneven_batch(warmup: Warmup) -> None:
    """At once, or when it is taken, where there is no memory for it before."""
    with Team(3) as team:
        take = begin(team, warmup)
        take()
    parts = [Part(rank, 3).bounds(USED.batch_size) for rank in range(3)]
    own = [last - first for first, last in parts]
    assert own == [3, 3, 2]
    wanted = {Warmup.NEVER: [], Warmup.BUILT: own, Warmup.TAKEN: own}[warmup]
    early = [1] if warmup is Warmup.TAKEN else []
    warmed = [engine.networks[0].warmed for engine in team.engines]
    assert warmed == [[*early, part] if wanted else [] for part in own]


def test_each_rank_has_its_own_part_compiled_ahead_but_for_the_first_network() -> None:
    """That one keeps no other from its steps."""
    with Team(3) as team:
        for parts in [(), (3, 3, 2)]:
            begin(team, Warmup.TAKEN)()
            ahead = [part for engine in team.engines for part in engine.compiled_ahead]
            assert ahead == list(parts)


@pytest.mark.parametrize("failing", [None, 1])
def test_where_steps_time_kernels_the_thread_that_trains_warms_too(failing: int | None) -> None:
    """After the thread that builds, which may take its time to compile: ranks ask each other."""

    def prepare(network: Quadratic) -> None:
        real, threads = network.warm, list[threading.Thread]()

        def warm(batch_size: int, *, halves: bool = False) -> None:
            threads.append(threading.current_thread())
            if len(threads) == 2 and network is team.engines[1].networks[0] and failing:
                raise OutOfMemoryError("no memory left")
            real(batch_size, halves=halves)
            assert len(set(threads)) == len(threads)

        network.warm = warm  # type: ignore[method-assign]

    with Team(2) as team:
        for engine in team.engines:
            engine.warms_alone = True
            engine.prepare = prepare
        take = begin(team, Warmup.TAKEN)
        if failing:
            with pytest.raises(EngineError, match="rank 1 could not build"):
                take()
        else:
            take()
    networks = [engine.networks[0] for engine in team.engines]
    assert [network.warmed for network in networks] == [[4, 4], [4] if failing else [4, 4]]
    assert [network.closed for network in networks] == [failing is not None] * 2


def test_a_rank_that_times_its_kernels_for_long_is_not_taken_for_hung() -> None:
    """The others ask it meanwhile, as they ask one that builds."""
    answered, warmed = threading.Semaphore(0), threading.Event()
    found: list[bool] = []

    def prepare(network: Quadratic) -> None:
        real = network.warm

        def warm(batch_size: int, *, halves: bool = False) -> None:
            real(batch_size, halves=halves)
            if network is team.engines[0].networks[0]:
                warmed.set()
            elif len(network.warmed) == 2:
                assert warmed.wait(PATIENCE_SECONDS)
                found.extend(answered.acquire(timeout=PATIENCE_SECONDS) for _ in range(3))

        network.warm = warm  # type: ignore[method-assign]

    with Team(2) as team:
        ask = team.collectives[0].allreduce_sum

        def asked(flat: Array) -> None:
            ask(flat)
            if warmed.is_set():
                answered.release()

        team.collectives[0].allreduce_sum = asked  # type: ignore[method-assign]
        for engine in team.engines:
            engine.warms_alone = True
            engine.prepare = prepare
        begin(team, Warmup.TAKEN)()
    assert found == [True] * 3


@pytest.mark.parametrize("lacking", ["zeros_error", "warm_error"])
def test_a_rank_without_memory_to_make_its_network_ready_frees_it_and_is_named(
    lacking: str,
) -> None:
    """Zeros are taken when it is built: in a step all other ranks would wait for them."""

    with Team(2, {1: {lacking: OutOfMemoryError("no memory left")}}) as team:
        take = begin(team, Warmup.BUILT)
        with pytest.raises(EngineError, match="rank 1 could not build"):
            take()
    assert [engine.networks[0].closed for engine in team.engines] == [True, True]
