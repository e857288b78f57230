"""A replica's next incarnation resumes what the previous one trained, learned and kept."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tests.support.damage import empty, flip, gone
from tests.support.fakes import Script
from tests.support.networks import two_stems
from tests.support.trial_loop import CONFIG, GREEDY, Bench

from aiperf_hpc.errors import EngineError, OutOfMemoryError
from aiperf_hpc.morphism.weights.weight_file import (
    initial_weights,
)
from aiperf_hpc.replica.training.checkpoint import load_training, save_training
from aiperf_hpc.run import records
from aiperf_hpc.run.paths import Incarnation, write_whole
from aiperf_hpc.trial import TrialState


class _PowerCutError(BaseException):
    """Ends a test's replica on the spot, as kill -9 does."""


def _dies_at_step(step: int) -> Script:
    def cut(now: int) -> None:
        if now == step:
            raise _PowerCutError

    return Script(on_step=cut)


def cut_off(folder: Path, step: int, training: object = CONFIG["training"]) -> Bench:
    """Return a first life, which died at this step of its second trial."""
    bench = Bench(folder, Script(), _dies_at_step(step), training=training)
    with pytest.raises(_PowerCutError):
        bench.run(9)
    return bench


def test_a_new_life_goes_on_with_the_interrupted_trial(tmp_path: Path) -> None:
    """Trial 2 has 5 epochs of 4 steps; the replica dies in its fourth epoch."""
    cut_off(tmp_path, 14)
    second = Bench(tmp_path, life=Incarnation(0, 1))
    second.run(4)
    started = second.events(records.TrialStarted)
    assert [(t.trial, t.round, t.resumes, t.first_epoch) for t in started] == [
        ("r0-t1", 1, None, 1),
        ("r0-t2", 2, None, 1),
        ("r0-0.1-t1", 2, "r0-t2", 4),
        ("r0-0.1-t2", 3, None, 1),
        ("r0-0.1-t3", 4, None, 1),
        ("r0-0.1-t4", 4, None, 1),
    ]
    # The same graph and hyperparameters, the stored weights and optimizer state.
    assert started[2].graph == started[1].graph
    assert started[2].hyperparameters == started[1].hyperparameters
    assert started[2].seed == started[1].seed
    state = second.engine.states[0]
    assert state is not None
    assert state["momentum:left_conv/kernel"].tolist() == [12, 12, 12]
    evaluated = [e.epoch for e in second.events(records.Evaluated) if e.trial == "r0-0.1-t1"]
    assert evaluated == [4, 5]
    rates = second.engine.networks[0].rates
    assert rates[0] == pytest.approx(0.1 * (1 - 12 / 20))
    interrupted = second.trial("r0-t2")
    assert interrupted.state is TrialState.STOPPED
    assert interrupted.reason == "its replica was lost and started again"


def test_a_new_life_goes_on_with_the_learning_rate_that_its_losses_have_led_to(
    tmp_path: Path,
) -> None:
    """The loss never falls after the first epoch, and three were done before."""
    plateau = {"name": "plateau", "patience": 0, "factor": 0.5}
    training = {
        "precision": "fp32",
        "batch_size": 16,
        "checkpoint_interval_seconds": 0,
        "schedule": plateau,
    }
    cut_off(tmp_path, 14, training)
    second = Bench(tmp_path, life=Incarnation(0, 1), training=training)
    second.run(2)
    rates = second.engine.networks[0].rates
    assert rates == pytest.approx([0.1 * 0.5**2] * 4 + [0.1 * 0.5**3] * 4)


def _told_to_end_at_step(step: int) -> Script:
    def tell(now: int) -> None:
        if now == step:
            os.kill(os.getpid(), signal.SIGTERM)

    return Script(on_step=tell)


@pytest.fixture
def _signals() -> Iterator[None]:
    """Put the process's handlers back."""
    before = [(n, signal.getsignal(n)) for n in (signal.SIGTERM, signal.SIGINT)]
    yield
    for number, handler in before:
        signal.signal(number, handler)


@pytest.mark.usefixtures("_signals")
def test_a_trial_that_a_scheduler_cut_is_gone_on_with_from_its_last_epoch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Preempted in the fourth epoch of 4 steps, again in the next life's first; no file before."""
    monkeypatch.setattr("aiperf_hpc.replica.training.checkpoint.HOLD_SECONDS", 0.0)
    training = {"precision": "fp32", "batch_size": 16, "checkpoint_interval_seconds": 3600}
    first = Bench(tmp_path, Script(), _told_to_end_at_step(14), training=training)
    first.stop.install()
    assert first.run(9) == "SIGTERM"
    first.journal.append(records.ReplicaEnded(reason="SIGTERM"))
    assert [e.trial for e in first.events(records.TrialEnded)] == ["r0-t1"]
    assert [e.trial for e in first.events(records.TimeSpent)] == ["r0-t1", "r0-t2"]
    cut = first.trial("r0-t2")
    assert (cut.state, cut.reason) == (TrialState.STOPPED, "its replica ended: SIGTERM")
    assert len(cut.evaluations) == 3

    life = Incarnation(0, 1)
    second = Bench(tmp_path, _told_to_end_at_step(1), life=life, training=training)
    second.stop.install()
    assert second.run(9) == "SIGTERM"
    second.journal.append(records.ReplicaEnded(reason="SIGTERM"))

    third = Bench(tmp_path, life=Incarnation(0, 2), training=training)
    third.run(1)
    started = third.events(records.TrialStarted)
    assert [(t.trial, t.resumes, t.first_epoch) for t in started[1:4]] == [
        ("r0-t2", None, 1),
        ("r0-0.1-t1", "r0-t2", 4),
        ("r0-0.2-t1", "r0-0.1-t1", 4),
    ]
    state = third.engine.states[0]
    assert state is not None
    assert state["momentum:left_conv/kernel"].tolist() == [12, 12, 12]


@pytest.mark.usefixtures("_signals")
def test_a_trial_that_the_user_stopped_has_an_end(tmp_path: Path) -> None:
    bench = Bench(tmp_path, Script(), _told_to_end_at_step(14))
    bench.stop.install()
    write_whole(bench.paths.stop_request, "stopped by `aiperf stop`\n")
    bench.stop._looked = float("inf")  # It is seen once the signal makes it look.
    assert bench.run(9) == "stopped by `aiperf stop`"
    assert [e.trial for e in bench.events(records.TrialEnded)] == ["r0-t1", "r0-t2"]


def test_a_trial_without_a_checkpoint_is_begun_anew_in_its_round(tmp_path: Path) -> None:
    cut_off(tmp_path, 2)
    second = Bench(tmp_path, life=Incarnation(1, 0))
    second.run(1)
    last = second.events(records.TrialStarted)[-1]
    assert (last.trial, last.round, last.resumes) == ("r0-1.0-t1", 2, None)


def test_a_life_that_finds_nothing_to_grow_begins_with_the_initial_graph_again(
    tmp_path: Path,
) -> None:
    """The first life was asked to end in its first trial, which kept nothing."""
    first = Bench(tmp_path, Script(on_step=lambda step: first.stop.ask("SIGTERM")))
    first.rounds.run()
    second = Bench(tmp_path, life=Incarnation(0, 1))
    second.run(2)
    started = second.events(records.TrialStarted)
    assert [t.graph == second.initial.hash for t in started] == [True, True, False]


def test_another_life_knows_what_was_kept_before(tmp_path: Path) -> None:
    Bench(tmp_path, Script(accuracies=(0.9,)), retention={"trials": "best"}).run(1)
    bench = Bench(
        tmp_path, Script(accuracies=(0.8,)), life=Incarnation(0, 1), retention={"trials": "best"}
    )
    bench.run(1)
    assert [event.trial for event in bench.events(records.BestEpochSaved)] == ["r0-t1"]
    assert bench.kept() == [
        "r0-t1-began.safetensors", "r0-t1-evaluated.safetensors",
    ]  # fmt: skip


def test_a_trial_that_is_cut_tells_the_study_nothing_but_that(tmp_path: Path) -> None:
    cut = Script(on_step=lambda step: bench.stop.ask("the run's time is over"))
    bench = Bench(tmp_path, *[Script()] * 4, cut)
    bench.rounds.run()
    study = bench.study()
    assert [t.state.name for t in study.trials] == ["COMPLETE", "PRUNED"]
    assert study.trials[1].user_attrs["reason"] == "the run's time is over"
    assert study.trials[1].value is None
    second = Bench(tmp_path, life=Incarnation(0, 1))
    second.run(1)
    chosen_by = [t.user_attrs["chosen_by"] for t in second.study().trials]
    assert chosen_by == ["earlier", "parent", "tpe"]  # The last one was not tried.


def test_a_new_life_knows_what_the_earlier_one_learned(tmp_path: Path) -> None:
    accuracies = (0.3, 0.4, 0.5, 0.6, 0.7, 0.2)
    first = Bench(tmp_path, *(Script(accuracies=(a,)) for a in accuracies))
    first.run(6)
    second = Bench(tmp_path, Script(accuracies=(0.1,)), life=Incarnation(1, 0))
    second.run(1)
    # The last one was planned and not tried.
    assert [trial.value for trial in second.study().trials] == [0.6, 0.7, 0.2, 0.1, None]
    # The three best are kept over both lives.
    second.history.refresh()
    kept = {t.id for t in second.history.trials.values() if t.has_checkpoint}
    assert kept == {"r0-t3", "r0-t4", "r0-t5"}


def _folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def _of_another_graph(path: Path) -> None:
    graph = two_stems()
    weights = initial_weights(graph, np.random.default_rng(0))
    state = load_training(path)
    save_training(path, replace(state, graph=graph, weights=weights, optimizer_state=weights))


@pytest.mark.parametrize(
    ("damage", "what"),
    [
        (flip, r"is damaged: its tensor \S+: the checksum is"),
        (empty, "is damaged: it has 0 bytes"),
        (_folder, "Is a directory"),
        (gone, "is missing"),
        (_of_another_graph, "holds the graph"),
    ],
)
def test_a_trial_under_way_whose_checkpoint_is_lost_is_said_and_its_round_begun_anew(
    tmp_path: Path, damage: Callable[[Path], None], what: str
) -> None:
    first = cut_off(tmp_path, 14)
    before = first.trial("r0-t2").train_samples
    assert before > 0
    damage(first.paths.under_way("r0"))
    second = Bench(tmp_path, life=Incarnation(0, 1))
    second.run(2)
    started = second.events(records.TrialStarted)
    assert [(t.trial, t.round, t.resumes, t.first_epoch) for t in started[1:]] == [
        ("r0-t2", 2, None, 1),
        ("r0-0.1-t1", 2, None, 1),
        ("r0-0.1-t2", 3, None, 1),
    ]
    (problem,) = second.events(records.FileProblem)
    assert problem.file == "replicas/r0/0.0/under-way.safetensors"
    assert re.search(what, problem.problem)
    assert problem.remedy == "round 2 is started again without r0-t2"
    # What was executed before stays credited, and the trial has an end.
    cut = second.trial("r0-t2")
    assert (cut.train_samples, cut.state) == (before, TrialState.STOPPED)
    (said,) = second.history.file_problems
    assert said.startswith("r0: ")


def test_a_trial_younger_than_a_checkpoint_has_lost_none(tmp_path: Path) -> None:
    training = {"precision": "fp32", "batch_size": 16, "checkpoint_interval_seconds": 3600}
    cut_off(tmp_path, 14, training)
    second = Bench(tmp_path, life=Incarnation(0, 1), training=training)
    second.run(1)
    assert second.events(records.FileProblem) == []


def _observed(bench: Bench) -> set[tuple[str, float | None]]:
    """Return each observed point of a replica's study and its value."""
    ended = [t for t in bench.study().trials if t.state.name in ("COMPLETE", "FAIL")]
    return {(f"{t.user_attrs['round']} {sorted(t.params.items())}", t.value) for t in ended}


@pytest.mark.parametrize("damage", [gone, empty, flip])
def test_a_new_life_has_the_study_of_the_earlier_one_whatever_became_of_its_file(
    tmp_path: Path, damage: Callable[[Path], None]
) -> None:
    """Among them a failed trial, one whose weights are not kept, and one gone on with."""
    space = {"batch_size": {"choices": [16]}, "learning_rate": {"low": 0.01, "high": 0.2}}
    hpo = {"trials_per_round": 3, "startup_trials": 2, "space": space}
    scripts = [Script(accuracies=(a,)) for a in (0.1, 0.1, 0.1, 0.25, 0.75)]
    broken = Script(step_errors={1: EngineError("no more")})
    cut = Script(accuracies=(0.95, 0.05), on_step=_dies_at_step(6).on_step)
    first = Bench(tmp_path, *scripts, broken, Script(accuracies=(0.35,)), cut, hpo=hpo)
    trained = first.paths.trained("r0", "r0-t7")
    trained.mkdir(parents=True)  # So that its weights cannot be stored.
    with pytest.raises(_PowerCutError):
        first.run(9)
    (unkept,) = [e for e in first.events(records.TrialEnded) if e.trial == "r0-t7"]
    assert "its weights are not stored" in unkept.reason

    # The second life goes on with the eighth trial, whose best epoch was in the first one.
    life = Incarnation(0, 1)
    second = Bench(tmp_path, Script(accuracies=(0.45,)), life=life, hpo=hpo)
    second.run(1)
    before = _observed(second)
    assert {value for _, value in before} == {0.25, 0.75, None, 0.35, 0.95}
    assert {t for t in _observed(first) if t[1] != 0.95} < before

    damage(second.paths.study("r0", life))
    life = Incarnation(0, 2)
    third = Bench(tmp_path, life=life, hpo=hpo)
    third.stop.ask("enough")
    third.rounds._planner.next()
    assert _observed(third) == before


def test_of_a_trial_gone_on_with_in_halved_batches_the_study_learns_those(tmp_path: Path) -> None:
    """Its first life had 16; on the node of its second one they do not fit."""
    first = Bench(tmp_path, *[Script()] * 3, _dies_at_step(6))
    with pytest.raises(_PowerCutError):
        first.run(9)
    full = Script(step_errors={0: OutOfMemoryError("no memory left on the device")})
    life = Incarnation(0, 1)
    second = Bench(tmp_path, full, Script(accuracies=(0.45,)), life=life)
    second.run(2)
    resumed = [t for t in second.events(records.TrialStarted) if t.resumes == "r0-t4"]
    assert [t.hyperparameters.batch_size for t in resumed] == [16, 8]
    told = [t for t in second.study().trials if t.user_attrs["chosen_by"] == "earlier"]
    assert [(t.params["batch_size"], t.value) for t in told] == [(8, 0.5)]


def test_what_did_not_fit_is_told_to_the_next_lifes_study_too(tmp_path: Path) -> None:
    """The estimate halved the batches of 16 that were suggested to 8."""
    bench = Bench(tmp_path, search=GREEDY)
    bench.leave_memory_for(8, optimiser_knows=False)
    bench.run(6)
    before = _observed(bench)
    assert any("16" in point and value is None for point, value in before)
    life = Incarnation(0, 1)
    later = Bench(tmp_path, search=GREEDY, life=life)
    later.rounds._planner.next()
    assert _observed(later) == before
