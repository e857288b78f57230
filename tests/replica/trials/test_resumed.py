"""A replica's next attempt resumes the trial, the study and the checkpoints of the last one."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.support.damage import empty, flip, gone
from tests.support.fakes import Script
from tests.support.networks import two_stems
from tests.support.trial_loop import GREEDY, LATER, Bench

from aiperf_hpc.errors import EngineError, OutOfMemoryError
from aiperf_hpc.morphism.weights.weight_file import initial_weights
from aiperf_hpc.replica.training.checkpoint import load_training, save_training
from aiperf_hpc.run import records
from aiperf_hpc.run.paths import Incarnation, RunPaths, write_whole
from aiperf_hpc.trial import TrialState


class _PowerCutError(BaseException):
    """Ends a test's replica abruptly, like kill -9."""


def _dies_at_step(step: int, *accuracies: float) -> Script:
    def cut(now: int) -> None:
        if now == step:
            raise _PowerCutError

    return Script(on_step=cut, accuracies=accuracies or (0.5,))


def training(every: float = 0.0, **settings: object) -> dict[str, object]:
    """Return settings of ``training`` with this interval between checkpoints."""
    usual = {"precision": "fp32", "batch_size": 16, "max_epochs": 2}
    return {**usual, "checkpoint_interval_seconds": every, **settings}


def cut_off(folder: Path, *scripts: Script, **settings: Any) -> Bench:  # noqa: ANN401
    """Return a first attempt, which was killed."""
    bench = Bench(folder, *scripts, **settings)
    with pytest.raises(_PowerCutError):
        bench.run(9)
    return bench


SECOND_TRIAL = Script(), _dies_at_step(14)
"""Scripts of an attempt that dies in the fourth of 5 epochs of its second trial; an epoch has
4 steps."""


def test_a_new_attempt_resumes_the_interrupted_trial(tmp_path: Path) -> None:
    cut_off(tmp_path, *SECOND_TRIAL)
    second = Bench(tmp_path, attempt=LATER)
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
    assert started[2].graph == started[1].graph
    assert started[2].hyperparameters == started[1].hyperparameters
    assert started[2].seed == started[1].seed
    assert momentum(second) == [12, 12, 12]
    evaluated = [e.epoch for e in second.events(records.Evaluated) if e.trial == "r0-0.1-t1"]
    assert evaluated == [4, 5]
    assert second.engine.networks[0].rates[0] == pytest.approx(0.1 * (1 - 12 / 20))
    interrupted = second.trial("r0-t2")
    assert interrupted.state is TrialState.STOPPED
    assert interrupted.reason == "its replica was lost and restarted"


def momentum(bench: Bench) -> list[float]:
    """Return a part of the optimizer state of the first network."""
    state = bench.engine.states[0]
    assert state is not None
    return list(state["momentum:left_conv/kernel"].tolist())


def test_a_resumed_trial_has_the_learning_rate_of_its_previous_losses(tmp_path: Path) -> None:
    """The loss is not reduced after the first of three epochs."""
    plateau = training(schedule={"name": "plateau", "patience": 0, "factor": 0.5})
    cut_off(tmp_path, *SECOND_TRIAL, training=plateau)
    second = Bench(tmp_path, attempt=LATER, training=plateau)
    second.run(2)
    rates = second.engine.networks[0].rates
    assert rates == pytest.approx([0.1 * 0.5**2] * 4 + [0.1 * 0.5**3] * 4)


def terminated(folder: Path, *scripts: Script, at_step: int, **settings: Any) -> Bench:  # noqa: ANN401
    """Return an attempt that got SIGTERM at a step of its last trial."""

    def terminate(now: int) -> None:
        if now == at_step:
            os.kill(os.getpid(), signal.SIGTERM)

    bench = Bench(folder, *scripts, Script(on_step=terminate), **settings)
    bench.stop.install()
    bench.stop._looked = float("inf")  # A stop request is read once the signal is received.
    reason = bench.run(9)
    bench.journal.append(records.ReplicaEnded(reason=reason))
    return bench


@pytest.mark.usefixtures("signal_handlers")
def test_a_preempted_trial_is_resumed_from_its_last_epoch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Preempted before a checkpoint was due, and again in the first epoch of the next attempt."""
    monkeypatch.setattr("aiperf_hpc.replica.training.checkpoint.HOLD_SECONDS", 0.0)
    hourly = training(3600.0)
    first = terminated(tmp_path, Script(), at_step=14, training=hourly)
    assert [e.trial for e in first.events(records.TrialEnded)] == ["r0-t1"]
    assert [e.trial for e in first.events(records.TimeSpent)] == ["r0-t1", "r0-t2"]
    cut = first.trial("r0-t2")
    assert (cut.state, cut.reason) == (TrialState.STOPPED, "its replica ended: SIGTERM")
    assert len(cut.evaluations) == 3
    terminated(tmp_path, at_step=1, attempt=LATER, training=hourly)
    third = Bench(tmp_path, attempt=Incarnation(0, 2), training=hourly)
    third.run(1)
    started = third.events(records.TrialStarted)
    assert [(t.trial, t.resumes, t.first_epoch) for t in started[1:4]] == [
        ("r0-t2", None, 1),
        ("r0-0.1-t1", "r0-t2", 4),
        ("r0-0.2-t1", "r0-0.1-t1", 4),
    ]
    assert momentum(third) == [12, 12, 12]


@pytest.mark.usefixtures("signal_handlers")
def test_a_trial_that_the_user_stopped_has_an_end(tmp_path: Path) -> None:
    write_whole(RunPaths(tmp_path).stop_request, "stopped by `aiperf stop`\n")
    bench = terminated(tmp_path, Script(), at_step=14)
    assert bench.events(records.ReplicaEnded)[-1].reason == "stopped by `aiperf stop`"
    assert [e.trial for e in bench.events(records.TrialEnded)] == ["r0-t1", "r0-t2"]


def test_the_round_of_a_trial_without_a_checkpoint_is_started_again(tmp_path: Path) -> None:
    cut_off(tmp_path, Script(), _dies_at_step(2))
    second = Bench(tmp_path, attempt=Incarnation(1, 0))
    second.run(1)
    last = second.events(records.TrialStarted)[-1]
    assert (last.trial, last.round, last.resumes) == ("r0-1.0-t1", 2, None)


def test_a_trial_is_not_resumed_from_the_checkpoint_of_an_earlier_trial(tmp_path: Path) -> None:
    """Without a search, both trials have the same graph."""
    settings: dict[str, Any] = {"search": {"method": "fixed"}, "training": training()}
    cut_off(tmp_path, Script(), _dies_at_step(2), **settings)
    second = Bench(tmp_path, attempt=LATER, **settings)
    second.run(1)
    last = second.events(records.TrialStarted)[-1]
    assert (last.trial, last.round, last.resumes) == ("r0-0.1-t1", 2, None)


def test_a_new_attempt_knows_the_stored_best_epochs(tmp_path: Path) -> None:
    best = {"trials": "best"}
    Bench(tmp_path, Script(accuracies=(0.9,)), retention=best).run(1)
    bench = Bench(tmp_path, Script(accuracies=(0.8,)), attempt=LATER, retention=best)
    bench.run(1)
    assert [event.trial for event in bench.events(records.BestEpochSaved)] == ["r0-t1"]
    assert bench.kept() == ["r0-t1-began.safetensors", "r0-t1-evaluated.safetensors"]


def test_an_interrupted_trial_is_pruned_in_the_study(tmp_path: Path) -> None:
    cut = Script(on_step=lambda step: bench.stop.ask("the run's time is over"))
    bench = Bench(tmp_path, *[Script()] * 4, cut)
    bench.rounds.run()
    study = bench.study()
    assert [t.state.name for t in study.trials] == ["COMPLETE", "PRUNED"]
    assert study.trials[1].user_attrs["reason"] == "the run's time is over"
    assert study.trials[1].value is None
    second = Bench(tmp_path, attempt=LATER)
    second.run(1)
    chosen_by = [t.user_attrs["chosen_by"] for t in second.study().trials]
    assert chosen_by == ["earlier", "parent", "tpe"]  # The last one was not trained.


def test_a_new_attempt_knows_all_observations_and_stored_weights(tmp_path: Path) -> None:
    accuracies = (0.3, 0.4, 0.5, 0.6, 0.7, 0.2)
    first = Bench(tmp_path, *(Script(accuracies=(a,)) for a in accuracies))
    first.run(6)
    second = Bench(tmp_path, Script(accuracies=(0.1,)), attempt=Incarnation(1, 0))
    second.run(1)
    # The last one was planned and not trained.
    assert [trial.value for trial in second.study().trials] == [0.6, 0.7, 0.2, 0.1, None]
    # The three best of both attempts are kept.
    assert second.kept_checkpoints() == {"r0-t3", "r0-t4", "r0-t5"}


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
def test_a_lost_checkpoint_is_recorded_and_the_round_of_its_trial_is_started_again(
    tmp_path: Path, damage: Callable[[Path], None], what: str
) -> None:
    first = cut_off(tmp_path, *SECOND_TRIAL)
    before = first.trial("r0-t2").train_samples
    assert before > 0
    damage(first.paths.under_way("r0"))
    second = Bench(tmp_path, attempt=LATER)
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
    assert problem.remedy == "round 2 is restarted without r0-t2"
    # Samples executed before stay credited, and the trial has an end.
    cut = second.trial("r0-t2")
    assert (cut.train_samples, cut.state) == (before, TrialState.STOPPED)
    (listed,) = second.history.file_problems
    assert listed.startswith("r0: ")


def test_a_checkpoint_that_was_not_due_is_not_missing(tmp_path: Path) -> None:
    hourly = training(3600.0)
    cut_off(tmp_path, *SECOND_TRIAL, training=hourly)
    second = Bench(tmp_path, attempt=LATER, training=hourly)
    second.run(1)
    assert second.events(records.FileProblem) == []


def _observed(bench: Bench) -> set[tuple[str, float | None]]:
    """Return each observed point of a replica's study and its value."""
    ended = [t for t in bench.study().trials if t.state.name in ("COMPLETE", "FAIL")]
    return {(f"{t.user_attrs['round']} {sorted(t.params.items())}", t.value) for t in ended}


@pytest.mark.parametrize("damage", [gone, empty, flip])
def test_a_new_attempt_has_the_observations_of_the_previous_ones_without_their_studies(
    tmp_path: Path, damage: Callable[[Path], None]
) -> None:
    """Including a failed trial, one whose weights are not stored, and a resumed one."""
    space = {"batch_size": {"choices": [16]}, "learning_rate": {"low": 0.01, "high": 0.2}}
    hpo = {"trials_per_round": 3, "startup_trials": 2, "space": space}
    scripts = [Script(accuracies=(a,)) for a in (0.1, 0.1, 0.1, 0.25, 0.75)]
    broken = Script(step_errors={1: EngineError("no more")})
    scripts += [broken, Script(accuracies=(0.35,)), _dies_at_step(6, 0.95, 0.05)]
    RunPaths(tmp_path).trained("r0", "r0-t7").mkdir(parents=True)  # Its weights cannot be stored.
    first = cut_off(tmp_path, *scripts, hpo=hpo)
    (unkept,) = [e for e in first.events(records.TrialEnded) if e.trial == "r0-t7"]
    assert "its weights are not stored" in unkept.reason

    # The second attempt resumes the eighth trial, whose best epoch was in the first one.
    second = Bench(tmp_path, Script(accuracies=(0.45,)), attempt=LATER, hpo=hpo)
    second.run(1)
    before = _observed(second)
    assert {value for _, value in before} == {0.25, 0.75, None, 0.35, 0.95}
    assert {t for t in _observed(first) if t[1] != 0.95} < before

    damage(second.paths.study("r0", LATER))
    third = Bench(tmp_path, attempt=Incarnation(0, 2), hpo=hpo)
    third.stop.ask("enough")
    third.rounds._planner.next()
    assert _observed(third) == before


def test_the_study_has_the_halved_batch_size_of_a_resumed_trial(tmp_path: Path) -> None:
    """Batches of 16 do not fit on the node of the second attempt."""
    cut_off(tmp_path, *[Script()] * 3, _dies_at_step(6))
    full = Script(step_errors={0: OutOfMemoryError("no memory left on the device")})
    second = Bench(tmp_path, full, Script(accuracies=(0.45,)), attempt=LATER)
    second.run(2)
    resumed = [t for t in second.events(records.TrialStarted) if t.resumes == "r0-t4"]
    assert [t.hyperparameters.batch_size for t in resumed] == [16, 8]
    earlier = [t for t in second.study().trials if t.user_attrs["chosen_by"] == "earlier"]
    assert [(t.params["batch_size"], t.value) for t in earlier] == [(8, 0.5)]


def test_the_next_attempts_study_has_batch_sizes_that_did_not_fit(tmp_path: Path) -> None:
    """The estimate halved suggested batches of 16 to 8."""
    bench = Bench(tmp_path, search=GREEDY)
    bench.leave_memory_for(8, optimiser_knows=False)
    bench.run(6)
    before = _observed(bench)
    assert any("16" in point and value is None for point, value in before)
    later = Bench(tmp_path, search=GREEDY, attempt=LATER)
    later.rounds._planner.next()
    assert _observed(later) == before
