"""All ranks build the same network, or none keeps one."""

from __future__ import annotations

import threading

import pytest
from tests.replica.parallel.team import USED, Quadratic, Team, begin, build
from tests.support.waiting import PATIENCE_SECONDS, until

from aiperf_hpc.errors import EngineError, OutOfMemoryError
from aiperf_hpc.replica.parallel.collectives import Array
from aiperf_hpc.replica.parallel.leader import LeadingEngine
from aiperf_hpc.replica.parallel.protocol import Warmup


@pytest.mark.parametrize("rank", [0, 1, 2])
def test_a_network_that_one_rank_cannot_build_fails_on_all_and_the_next_is_built(rank: int) -> None:
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


def test_the_callback_runs_when_the_network_is_built_before_it_is_taken() -> None:
    built = threading.Event()
    with Team(2) as team:
        take = begin(team, Warmup.BUILT, built=lambda _: built.set())
        assert built.wait(PATIENCE_SECONDS)
        take().close()


def test_the_compiler_problem_of_rank_0_is_reported() -> None:
    reported: list[str] = []
    with Team(2) as team:
        for rank in (0, 1):
            team.engines[rank].compiler_problem = f"rank {rank}'s was ended"
        team.engine = LeadingEngine(team.engines[0], team.collectives[0], reported.append)
        for _ in range(2):  # Nothing trains during the first build.
            begin(team, Warmup.BUILT)().close()
    assert reported == ["rank 0's was ended"]


def test_a_rank_that_built_another_network_is_named() -> None:
    def prepare(network: Quadratic) -> None:
        network.w = network.w + 1.0

    with Team(3) as team:
        team.engines[1].prepare = prepare
        with pytest.raises(EngineError, match="rank 1 built another network than rank 0"):
            build(team)
    assert all(engine.networks[0].closed for engine in team.engines)


def test_a_rank_that_builds_slowly_does_not_time_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """The timeout is of each sum, and a rank that still builds takes part in all of them."""
    sums: list[Array] = []
    with Team(2) as team:
        own = team.collectives[0]
        allreduce_sum = own.allreduce_sum

        def counted(flat: Array) -> None:
            allreduce_sum(flat)
            sums.append(flat.copy())

        monkeypatch.setattr(own, "allreduce_sum", counted)
        team.engines[1].prepare = lambda _: until(lambda: len(sums) > 3)
        build(team)
    assert all(building.item() >= 1.0 for building in sums[:4])


@pytest.mark.parametrize("warmup", list(Warmup))
def test_each_rank_warms_with_its_shard_of_an_uneven_batch(warmup: Warmup) -> None:
    with Team(3) as team:
        begin(team, warmup)()
    assert USED.batch_size == 8
    wanted: dict[Warmup, list[list[int]]] = {
        Warmup.NEVER: [[], [], []],
        Warmup.BUILT: [[3], [3], [2]],
        Warmup.TAKEN: [[1, 3], [1, 3], [1, 2]],
    }
    assert [engine.networks[0].warmed for engine in team.engines] == wanted[warmup]


def test_each_rank_compiles_for_its_shard_ahead_except_for_the_first_network() -> None:
    with Team(3) as team:
        for parts in [(), (3, 3, 2)]:
            begin(team, Warmup.TAKEN)()
            ahead = [part for engine in team.engines for part in engine.compiled_ahead]
            assert ahead == list(parts)


@pytest.mark.parametrize("failing", [None, 1])
def test_an_engine_that_tunes_kernels_is_also_warmed_by_the_training_thread(
    failing: int | None,
) -> None:
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


def test_a_rank_that_tunes_kernels_slowly_does_not_time_out() -> None:
    """Its building thread answers the others meanwhile."""
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
def test_a_rank_without_memory_to_prepare_its_network_frees_it_and_is_named(lacking: str) -> None:
    """Zeros are allocated by the build, because in a step all other ranks would wait for them."""
    with (
        Team(2, {1: {lacking: OutOfMemoryError("no memory left")}}) as team,
        pytest.raises(EngineError, match="rank 1 could not build"),
    ):
        begin(team, Warmup.BUILT)()
    assert [engine.networks[0].closed for engine in team.engines] == [True, True]
