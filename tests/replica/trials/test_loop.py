"""Rounds, hyperparameter optimization and stored results, on a scripted engine."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor
from itertools import groupby
from pathlib import Path

import numpy as np
import optuna
import pytest
from tests.support.fakes import Script
from tests.support.immediate import Immediate
from tests.support.trial_loop import GREEDY, Bench
from tests.support.waiting import until

from aiperf_hpc.errors import DeviceLostError, EngineError, JournalError, OutOfMemoryError
from aiperf_hpc.morphism.lineage import Lineage
from aiperf_hpc.morphism.operators.morphisms import inserted_spatial_convs
from aiperf_hpc.morphism.weights.weight_file import file_digest, load_checkpoint, load_predictions
from aiperf_hpc.replica.runtime.background import background_thread
from aiperf_hpc.replica.training.checkpoint import load_training
from aiperf_hpc.replica.trials.loop import ReplicaFailedError
from aiperf_hpc.run import records
from aiperf_hpc.run.graph_store import GraphStore
from aiperf_hpc.run.journal import JournalReader
from aiperf_hpc.trial import RoundPhase, TrialState

FULL = Script(step_errors={2: OutOfMemoryError("no memory left on the device")})


def test_warm_up_trains_each_candidate_once_and_hpo_several_times(tmp_path: Path) -> None:
    """The first trial trains the initial graph, the others candidates."""
    bench = Bench(tmp_path)
    assert bench.run(8) == "enough trials"
    started = bench.events(records.TrialStarted)
    assert [t.round for t in started] == [1, 2, 3, 4, 4, 4, 5, 5]
    assert [t.epoch_limit for t in started] == [1, 5, 2, 2, 2, 2, 2, 2]
    assert [t.phase is RoundPhase.HPO for t in started] == [False] * 3 + [True] * 5
    assert len({t.trial for t in started}) == 8
    first, *others = started
    assert (first.graph, first.parent, first.morphisms) == (bench.initial.hash, None, ())
    bench.history.refresh()
    lineage = Lineage(bench.history.descent, bench.initial)
    for trial in others:
        assert trial.parent is not None
        assert trial.proposal is not None
        # The recorded morphisms give the graph that was trained, which is stored.
        assert lineage.graph(trial.trial).hash == trial.graph
        assert GraphStore(bench.paths).load(trial.graph).hash == trial.graph
    assert {graph.hash for graph, _ in bench.engine.built} == {t.graph for t in started}


def test_children_start_from_their_parents_trained_weights(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.run(2)
    bench.history.refresh()
    (proposal, *_) = bench.history.pending("r0")
    graph, weights = load_checkpoint(bench.paths.candidate(proposal.id))
    parent_graph, parent = load_checkpoint(bench.paths.trained("r0", proposal.proposed.parent))
    untouched = [n for n in parent if n in weights and parent[n].shape == weights[n].shape]
    assert len(untouched) > 0.9 * len(parent)
    assert any(np.array_equal(parent[n], weights[n]) and parent[n].std() > 0 for n in untouched)
    assert graph.hash != parent_graph.hash


def test_a_trained_graph_has_the_kernel_size_chosen_by_hpo(tmp_path: Path) -> None:
    search = {"method": "greedy", "random_parent_probability": 1.0}
    hpo = {"trials_per_round": 2, "startup_trials": 2}
    bench = Bench(tmp_path, search=search, hpo=hpo)
    bench.run(30)
    chosen = [(graph, used.kernel_size) for graph, used in bench.engine.built if used.kernel_size]
    assert len(chosen) >= 3
    assert len({size for _, size in chosen}) >= 2
    for graph, size in chosen:
        assert set(inserted_spatial_convs(graph).values()) == {size}


def test_the_study_maximizes_accuracy_and_has_every_trial(tmp_path: Path) -> None:
    scripts = [Script(accuracies=(a,)) for a in (0.1, 0.1, 0.1, 0.25, 0.75, 0.5)]
    scripts.insert(5, Script(build_error=EngineError("cannot be built")))
    bench = Bench(tmp_path, *scripts)
    bench.run(7)
    study = bench.study()
    assert study.direction is optuna.study.StudyDirection.MAXIMIZE
    assert study.best_value == 0.75
    *trials, unused = study.trials
    assert unused.state.name == "PRUNED"  # It was planned while the last one trained.
    assert unused.user_attrs["reason"] == "the run ended before its turn"
    states = [trial.state.name for trial in trials]
    assert states == ["COMPLETE", "COMPLETE", "FAIL", "COMPLETE"]
    started = {t.trial: t for t in bench.events(records.TrialStarted)}
    used = [started[f"r0-t{n}"].hyperparameters.batch_size for n in (4, 5, 6, 7)]
    assert [trial.params["batch_size"] for trial in trials] == used


def test_only_the_best_checkpoints_are_kept_as_parents(tmp_path: Path) -> None:
    scripts = [Script(accuracies=(a,)) for a in (0.9, 0.2, 0.8, 0.1, 0.7, 0.3, 0.3)]
    bench = Bench(tmp_path, *scripts)
    bench.run(7)
    kept = {path.stem for path in (bench.paths.replica("r0") / "trained").iterdir()}
    assert kept == {"r0-t1", "r0-t3", "r0-t5"}
    dropped = [event.trial for event in bench.events(records.CheckpointDeleted)]
    assert dropped == ["r0-t4", "r0-t2", "r0-t6", "r0-t7"]
    assert bench.kept_checkpoints() == kept


@pytest.mark.parametrize(
    ("folder", "missing", "record"),
    [
        ("trained", "weights are", None),
        ("predictions", "predictions are", records.PredictionsSaved),
        ("kept", "best epoch is", records.BestEpochSaved),
    ],
)
def test_the_end_of_a_trial_names_results_that_could_not_be_stored(
    tmp_path: Path, folder: str, missing: str, record: type[records.AnyEvent] | None
) -> None:
    bench = Bench(tmp_path, Script(predicts=True))
    (bench.paths.replica("r0") / folder).write_text("a file in the folder's place")
    bench.run(1)
    (ended,) = bench.events(records.TrialEnded)
    assert ended.state is TrialState.COMPLETED
    assert f"its {missing} not stored: cannot write" in ended.reason
    assert ended.checkpoint is (folder != "trained")  # Only with weights it is a parent.
    assert record is None or not bench.events(record)


def test_predictions_of_each_trial_are_stored_and_recorded(tmp_path: Path) -> None:
    bench = Bench(tmp_path, Script(predicts=True))
    bench.run(2)
    kept = bench.events(records.PredictionsSaved)
    assert [(k.trial, k.epoch, k.samples) for k in kept] == [("r0-t1", 1, 20), ("r0-t2", 5, 20)]
    for each in kept:
        path = bench.paths.predictions("r0", each.trial)
        assert file_digest(path) == each.sha256
        found = load_predictions(path)
        assert (found.trial, found.epoch) == (each.trial, each.epoch)
        assert found.classes.tolist() == [each.epoch - 1] * 20
    assert bench.trial("r0-t2").predictions == kept[1]


def test_the_best_epoch_of_each_trial_is_stored_and_recorded(tmp_path: Path) -> None:
    bench = Bench(tmp_path, Script(accuracies=(0.2, 0.6, 0.4, 0.6, 0.5)))
    bench.run(2)
    first, second = bench.events(records.BestEpochSaved)
    assert [(kept.trial, kept.epoch) for kept in (first, second)] == [("r0-t1", 1), ("r0-t2", 2)]
    paths = bench.paths
    for place, kept in (
        (paths.epoch_began, second.start_checkpoint),
        (paths.epoch_evaluated, second.end_checkpoint),
    ):
        path = place("r0", "r0-t2")
        assert (path.stat().st_size, file_digest(path)) == (kept.bytes, kept.sha256)
    began = load_training(paths.epoch_began("r0", "r0-t2"))
    evaluated = load_training(paths.epoch_evaluated("r0", "r0-t2"))
    assert (began.progress.epochs, evaluated.progress.epochs) == (1, 2)
    assert began.optimizer_state
    assert not evaluated.optimizer_state
    # The first epoch starts from the weights that the network was built with.
    beginning = load_training(paths.epoch_began("r0", "r0-t1"))
    assert (beginning.progress.epochs, beginning.optimizer_state) == (0, {})
    assert bench.trial("r0-t2").best_epoch == second
    assert not any(ended.reason for ended in bench.events(records.TrialEnded))


@pytest.mark.parametrize(
    ("settings", "kept", "dropped"),
    [
        ({"trials": "none"}, set(), []),
        ({"trials": "best"}, {"r0-t3"}, ["r0-t1"]),
        ({"max_gib": 0.0}, {"r0-t3"}, ["r0-t1"]),
        ({}, {"r0-t1", "r0-t2", "r0-t3", "r0-t4"}, []),
    ],
)
def test_the_configuration_selects_the_best_epochs_to_keep(
    tmp_path: Path, settings: dict[str, object], kept: set[str], dropped: list[str]
) -> None:
    scripts = [Script(accuracies=(a,)) for a in (0.5, 0.4, 0.6, 0.6)]
    bench = Bench(tmp_path, *scripts, retention=settings)
    bench.run(4)
    there = {name.rpartition("-")[0] for name in bench.kept()}
    assert there == kept
    assert [event.trial for event in bench.events(records.BestEpochDeleted)] == dropped
    bench.history.refresh()
    assert {t.id for t in bench.history.trials.values() if t.best_epoch is not None} == kept


def test_warm_up_records_the_predicted_accuracy(tmp_path: Path) -> None:
    bench = Bench(tmp_path, Script(accuracies=(0.10, 0.20, 0.25, 0.30, 0.35)))
    bench.run(4)
    first, second, _, hpo = bench.events(records.TrialEnded)
    assert first.predicted_accuracy == pytest.approx(0.1)
    assert second.predicted_accuracy is not None
    assert 0.35 < second.predicted_accuracy <= 1.0
    assert hpo.predicted_accuracy is None


def test_the_initial_graph_is_trained_again_while_there_are_no_parents(tmp_path: Path) -> None:
    broken = Script(build_error=EngineError("out of luck"))
    bench = Bench(tmp_path, broken, broken, Script())
    bench.run(4)
    started = bench.events(records.TrialStarted)
    assert [t.graph == bench.initial.hash for t in started] == [True, True, True, False]
    ended = bench.events(records.TrialEnded)
    assert [t.reason for t in ended[:3]] == ["out of luck", "out of luck", ""]
    failed, completed = TrialState.FAILED, TrialState.COMPLETED
    assert [t.state for t in ended[:3]] == [failed, failed, completed]


def test_a_replica_gives_up_after_five_failed_trials_in_a_row(tmp_path: Path) -> None:
    bench = Bench(tmp_path, Script(build_error=EngineError("no such device")))
    with pytest.raises(ReplicaFailedError, match="5 trials in a row failed.*no such device"):
        bench.run(99)


@pytest.mark.parametrize("damaged", [True, False])
def test_a_candidate_that_is_damaged_or_not_visible_yet_is_skipped(
    tmp_path: Path, *, damaged: bool
) -> None:
    """A damaged one is rejected; another one is used once it is visible."""
    bench = Bench(tmp_path)
    bench.run(1)
    bench.search(2)
    bench.history.refresh()
    first, second = bench.history.pending("r0")
    path, queue = bench.paths.candidate(first.id), bench.rounds._planner._queue
    hidden = path.rename(tmp_path / "hidden")
    if damaged:
        path.write_bytes(b"torn")
    candidate = queue.take()
    assert candidate is not None
    assert candidate.proposal == second.id
    rejected = bench.events(records.ProposalRejected)
    assert [r.proposal for r in rejected] == ([first.id] if damaged else [])
    assert all("is damaged" in r.reason for r in rejected)
    if not damaged:
        hidden.rename(path)
        candidate = queue.take()
        assert candidate is not None
        assert candidate.proposal == first.id


def test_the_study_suggests_batch_sizes_that_fit_in_the_trainers_memory(tmp_path: Path) -> None:
    rounds = Bench(tmp_path, search=GREEDY).rounds
    assert rounds._planner.hpo.fits == rounds.trainer.memory.fits


def test_the_study_learns_a_halved_batch_size_and_the_failure_of_the_suggested_one(
    tmp_path: Path,
) -> None:
    bench = Bench(tmp_path, search=GREEDY)
    bench.leave_memory_for(8, optimiser_knows=False)
    bench.run(6)
    study = bench.study()
    failed = [t for t in study.trials if t.state.name == "FAIL"]
    done = [t.params["batch_size"] for t in study.trials if t.state.name == "COMPLETE"]
    assert failed
    for trial in failed:
        wanted = trial.params["batch_size"]
        assert trial.user_attrs["reason"] == f"batch size {wanted} does not fit in memory"
    assert set(done) == {8}


def test_a_round_starts_with_the_hyperparameters_of_the_parent_graph(tmp_path: Path) -> None:
    space = {
        "batch_size": {"choices": [8, 16, 32]},
        "learning_rate": {"low": 0.01, "high": 0.2},
    }
    bench = Bench(tmp_path, hpo={"trials_per_round": 2, "startup_trials": 2, "space": space})
    bench.run(13)
    trials = {t.trial: t for t in bench.events(records.TrialStarted)}
    tuned = [t for t in trials.values() if t.phase is RoundPhase.HPO]
    for first, second in zip(tuned[::2], tuned[1::2], strict=True):
        assert first.round == second.round
        assert first.parent is not None
        parent = trials[first.parent]
        # All accuracies are equal, so the first trial of the parent's graph is its best.
        begun = next(t for t in trials.values() if t.graph == parent.graph).hyperparameters
        assert first.hyperparameters.batch_size == begun.batch_size
        assert first.hyperparameters.learning_rate == begun.learning_rate
        assert second.hyperparameters.learning_rate != begun.learning_rate
    rates = {t.hyperparameters.learning_rate for t in tuned}
    assert len(rates) > 3
    assert all(0.01 <= rate <= 0.2 for rate in rates)
    assert {t.hyperparameters.momentum for t in tuned} == {0.9}


def test_the_next_trial_is_built_during_training(tmp_path: Path) -> None:
    """The last steps of the fourth and fifth trial, of one round, wait for the next one's build."""

    def until_built(networks: int) -> Callable[[int], None]:
        def built() -> bool:
            bench.rounds._prefetch.look()  # As after each step.
            return len(bench.engine.networks) >= networks

        def wait(step: int) -> None:
            if step == 7:
                until(built, lambda: f"network {networks} was not built")

        return wait

    waiting = [Script(on_step=until_built(number)) for number in (5, 6)]
    with background_thread() as background:
        bench = Bench(tmp_path, *[Script()] * 3, *waiting, Script(), background=background)
        bench.run(6)
    assert len(bench.events(records.TrialStarted)) == 6
    assert all(network.closed for network in bench.engine.networks)


def test_trials_do_not_overlap_in_the_journal(tmp_path: Path) -> None:
    bench = Bench(tmp_path, background=Immediate())
    bench.run(8)
    started = bench.events(records.TrialStarted)
    assert [t.round for t in started] == [1, 2, 3, 4, 4, 4, 5, 5]
    order = [
        (record.event.trial, type(record.event).__name__)
        for record in JournalReader(bench.journal.path).read()
        if isinstance(record.event, records.TrialStarted | records.Progress)
    ]
    assert [trial for trial, _ in groupby(trial for trial, _ in order)] == [
        t.trial for t in started
    ]
    # The ninth was built and not trained.
    assert len(bench.engine.built) == 9
    assert bench.engine.networks[-1].steps == 0
    assert bench.engine.networks[-1].closed


def test_a_next_trial_that_cannot_be_built_fails_at_its_turn(tmp_path: Path) -> None:
    broken = Script(build_error=EngineError("node x"))
    bench = Bench(tmp_path, Script(), broken, Script(), background=Immediate())
    bench.run(3)
    ended = bench.events(records.TrialEnded)
    assert [(t.trial, t.state, t.reason) for t in ended] == [
        ("r0-t1", TrialState.COMPLETED, ""),
        ("r0-t2", TrialState.FAILED, "node x"),
        ("r0-t3", TrialState.COMPLETED, ""),
    ]


@pytest.mark.parametrize("background", [None, Immediate()])
def test_a_trial_that_runs_out_of_memory_is_repeated_once_with_half_the_batch_size(
    tmp_path: Path, background: Executor | None
) -> None:
    """With the same learning rate."""
    bench = Bench(tmp_path, FULL, FULL, Script(), background=background)
    bench.run(3)
    first, again, *_ = bench.events(records.TrialStarted)
    assert (first.trial, again.trial) == ("r0-t1", again.trial)
    assert again.notes == (
        "r0-t1 did not fit on the accelerator in batches of 16; 8 with the same learning rate",
    )
    assert again.graph == first.graph
    assert again.hyperparameters == first.hyperparameters.model_copy(update={"batch_size": 8})
    ended = {t.trial: t for t in bench.events(records.TrialEnded)}
    for trial in (first.trial, again.trial):
        assert ended[trial].state is TrialState.FAILED
        assert ended[trial].reason == "no memory left on the device"
    third = bench.events(records.TrialStarted)[2]
    assert third.notes == ()
    assert ended[third.trial].state is TrialState.COMPLETED


def test_a_batch_halved_by_the_estimate_is_halved_again_if_it_does_not_fit(tmp_path: Path) -> None:
    bench = Bench(tmp_path, FULL, Script())
    bench.leave_memory_for(8)
    bench.run(2)
    first, again = bench.events(records.TrialStarted)
    assert first.hyperparameters.batch_size == 8
    assert again.hyperparameters.batch_size == 4
    assert "in batches of 8; 4 with" in again.notes[0]


LOST = DeviceLostError("an illegal memory access")


@pytest.mark.parametrize(
    ("script", "background", "started"),
    [
        (Script(step_errors={2: LOST}), None, ["r0-t1"]),
        (Script(step_errors={2: LOST}), Immediate(), ["r0-t1"]),
        (Script(build_error=LOST), Immediate(), []),
    ],
)
def test_a_replica_that_lost_its_device_stops(
    tmp_path: Path, script: Script, background: Executor | None, started: list[str]
) -> None:
    """The running trial has no end, so the next attempt resumes it."""
    bench = Bench(tmp_path, script, Script(), background=background)
    with pytest.raises(DeviceLostError):
        bench.run(3)
    assert [t.trial for t in bench.events(records.TrialStarted)] == started
    assert bench.events(records.TrialEnded) == []


def test_a_trial_that_may_not_be_halved_is_not_repeated(tmp_path: Path) -> None:
    bench = Bench(tmp_path, FULL, Script(), engine={"on_out_of_memory": "fail"})
    bench.run(2)
    assert [t.notes for t in bench.events(records.TrialStarted)] == [(), ()]


@pytest.mark.parametrize(
    ("kind", "trial"),
    [
        (records.TrialEnded, 1),
        (records.PredictionsSaved, 1),
        (records.BestEpochSaved, 1),
        (records.BestEpochDeleted, 3),
    ],
)
def test_a_record_that_cannot_be_written_by_the_background_thread_ends_the_replica(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: type[records.Event], trial: int
) -> None:
    """The next trial may have started: it trains while the background thread writes."""
    scripts = [Script(accuracies=(a,), predicts=True) for a in (0.5, 0.4, 0.6)]
    bench = Bench(tmp_path, *scripts, background=Immediate(), retention={"trials": "best"})
    append = bench.journal.append

    def full(event: records.AnyEvent) -> object:
        if isinstance(event, kind):
            raise JournalError("cannot write the journal: no space")
        return append(event)

    monkeypatch.setattr(bench.journal, "append", full)
    with pytest.raises(JournalError, match="no space"):
        bench.run(9)
    assert len(bench.events(records.TrialStarted)) in (trial, trial + 1)
