"""Rounds, hyperparameter optimisation, the stock and the search worker, on a scripted engine."""

from __future__ import annotations

import json
import os
import re
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path
from typing import TypeVar

import numpy as np
import optuna
import pytest
from tests.support.clock import Clock
from tests.support.damage import empty, flip, gone
from tests.support.fakes import FakeDataset, FakeEngine, Script
from tests.support.networks import noted_children, two_stems
from tests.support.waiting import until

from aiperf_hpc.clock import SYSTEM, SystemClock
from aiperf_hpc.config import RunConfig, SearchConfig, validate
from aiperf_hpc.errors import DeviceLostError, EngineError, JournalError, OutOfMemoryError
from aiperf_hpc.graph import Graph
from aiperf_hpc.morphism.lineage import Lineage
from aiperf_hpc.morphism.operators.grow import grow_with_weights, inserted_spatial_convs
from aiperf_hpc.morphism.operators.morphisms import Deeper
from aiperf_hpc.morphism.search import greedy, load_searcher
from aiperf_hpc.morphism.weights.checked_file import save_checked
from aiperf_hpc.morphism.weights.checkpoint import (
    Weights,
    initial_weights,
    load_checkpoint,
    save_checkpoint,
)
from aiperf_hpc.morphism.weights.predictions import file_digest, load_predictions
from aiperf_hpc.ops_counter.memory import MemoryLimit, training_bytes
from aiperf_hpc.replica.context import ReplicaContext
from aiperf_hpc.replica.runtime.background import Immediate, background_thread
from aiperf_hpc.replica.runtime.stopping import StopFlag
from aiperf_hpc.replica.search.run_knowledge import RunKnowledge
from aiperf_hpc.replica.search.worker import LOST_SECONDS, SearchWorker
from aiperf_hpc.replica.training.checkpoint import load_training, save_training
from aiperf_hpc.replica.training.trainer import Trainer
from aiperf_hpc.replica.training.trial import BuiltTrial, PlannedTrial, TrialResult
from aiperf_hpc.replica.trials.building import OneRankBuilder
from aiperf_hpc.replica.trials.hpo import journal_storage
from aiperf_hpc.replica.trials.loop import ReplicaFailedError, TrialLoop
from aiperf_hpc.run import records
from aiperf_hpc.run.digest import Digest, DigestWriter
from aiperf_hpc.run.graph_store import GraphStore
from aiperf_hpc.run.history import RunHistory
from aiperf_hpc.run.journal import JournalReader, JournalWriter
from aiperf_hpc.run.manifest import RunManifest
from aiperf_hpc.run.paths import FIRST, Identity, Incarnation, RunPaths, write_whole
from aiperf_hpc.trial import Machine, RoundPhase, TrialState
from aiperf_hpc.workloads.registry import initial_graph

T = TypeVar("T")

CONFIG = {
    "dataset": {"name": "synthetic"},
    "model": {"stem": "cifar", "base_width": 1},
    "training": {"precision": "fp32", "batch_size": 16, "max_epochs": 2, "checkpoint_seconds": 0},
    "rounds": {"warmup_epochs": [1, 5, 2], "predict_at_epoch": 90},
    "hpo": {
        "trials_per_round": 3,
        "startup_trials": 2,
        "space": {"batch_size": {"choices": [8, 16, 32]}},
    },
    "search": {"stock": 2, "keep_checkpoints": 3},
}


@dataclass(frozen=True, slots=True)
class BufferPool(SystemClock):
    """Who sleeps by it gives the search worker a turn."""

    worker: SearchWorker

    def sleep(self, seconds: float) -> None:
        self.worker.step()


class _InTurn(OneRankBuilder):
    """Builds a trial when it is its turn, so that nothing is built that is not trained."""

    def begin(self, trial: PlannedTrial) -> Future[BuiltTrial]:
        begun: Future[BuiltTrial] = Future()
        begun.set_result(BuiltTrial(trial, trial.hyperparameters))
        return begun

    def finish(self, begun: Future[BuiltTrial]) -> BuiltTrial:
        return super().finish(super().begin(begun.result().trial))


class Bench:
    """A replica and its search worker in one process, taking turns."""

    def __init__(
        self,
        folder: Path,
        *scripts: Script,
        life: Incarnation = FIRST,
        background: Executor | None = None,
        **changed: object,
    ) -> None:
        self.config: RunConfig = validate(CONFIG | changed, "test")
        self.paths = RunPaths(folder)
        self.engine = FakeEngine(*scripts)
        self.dataset = FakeDataset()
        self.manifest = RunManifest(
            run_id="test", nodes=1, hours=1, launcher="local", versions={}, commit=None,
            config=self.config,
        )  # fmt: skip
        self.journal = JournalWriter(self.paths.replica_journal("r0", life))
        machine = Machine(
            host="h", cpu="c", cores=(0,), memory_bytes=1, accelerators=(), versions={}
        )
        self.journal.append(
            records.ReplicaStarted(replica="r0", pid=1, engine="fake", machine=machine)
        )
        self.journal.append(records.DatasetLoaded(dataset=self.dataset.info))
        self.history = RunHistory(self.paths)
        self.stop = StopFlag(float("inf"), self.paths.stop_request)
        self.initial = initial_graph(self.config, self.dataset.info)
        searching = ReplicaContext(
            config=self.config,
            paths=self.paths,
            who=Identity("r0", life),
            journal=JournalWriter(self.paths.search_journal("r0", 0, life)),
            stop=self.stop,
        )
        own = RunKnowledge("r0", RunHistory(self.paths, replica="r0"), Digest(self.paths))
        # A replica that searches nothing starts no worker; here one works on beside it.
        search = self.config.search if self.config.search.searches else SearchConfig()
        self.worker = SearchWorker(searching, 0, load_searcher(search), own)
        training = replace(searching, journal=self.journal, clock=BufferPool(self.worker))
        memory = MemoryLimit(self.config, 2**40)
        of_trainer = replace(training, clock=SYSTEM)
        trainer = Trainer(of_trainer, self.dataset, self.engine.objective.quality, memory)
        kind = OneRankBuilder if background else _InTurn
        self.rounds = TrialLoop(
            training,
            initial=self.initial,
            trainer=trainer,
            knowledge=RunKnowledge("r0", self.history, Digest(self.paths)),
            study=journal_storage(self.paths.study("r0", life)),
            background=background or Immediate(),
            builder=kind(of_trainer, self.engine, self.dataset, trainer, background or Immediate()),
        )

    def run(self, trials: int) -> str:
        """Run until ``trials`` have ended; the search worker works whenever nothing is there."""
        train = Trainer.run
        done = 0

        def counted(
            trainer: Trainer, built: BuiltTrial, meanwhile: Callable[[], None]
        ) -> TrialResult:
            nonlocal done
            result = train(trainer, built, meanwhile)
            done += 1
            if done == trials:
                self.stop.ask("enough trials")
            self.worker.step()
            return result

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Trainer, "run", counted)
            return self.rounds.run()

    def leave_memory_for(self, batch_size: int, *, optimiser_knows: bool = True) -> None:
        """Let the initial graph fit into memory in batches of so many samples, and hardly more.

        An optimiser that does not know suggests larger ones alone.
        """
        limit = training_bytes(self.initial, batch_size, "fp32") + 4096
        self.rounds._trainer.memory = MemoryLimit(self.config, limit)
        if not optimiser_knows:
            self.rounds._planner._hpo._fits = lambda graph, size: size > batch_size

    def events(self, kind: type[T]) -> list[T]:
        def lines() -> Iterator[object]:
            for path in self.paths.journals():
                yield from (record.event for record in JournalReader(path).read())

        return [event for event in lines() if isinstance(event, kind)]


def test_warm_up_trains_each_candidate_once_and_hpo_several_times(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    assert bench.run(8) == "enough trials"
    started = bench.events(records.TrialStarted)
    assert [t.round for t in started] == [1, 2, 3, 4, 4, 4, 5, 5]
    assert [t.epoch_limit for t in started] == [1, 5, 2, 2, 2, 2, 2, 2]
    assert [t.phase is RoundPhase.HPO for t in started] == [False] * 3 + [True] * 5
    assert len({t.trial for t in started}) == 8


def test_the_first_trial_trains_the_initial_graph_and_the_others_grown_ones(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.run(8)
    first, *others = bench.events(records.TrialStarted)
    assert (first.graph, first.parent, first.morphisms) == (bench.initial.hash, None, ())
    bench.history.refresh()
    lineage = Lineage(bench.history.descent, bench.initial)
    for trial in others:
        assert trial.parent is not None
        assert trial.proposal is not None
        # Growing it again gives the graph that was trained, and that graph is stored.
        assert lineage.graph(trial.trial).hash == trial.graph
        assert GraphStore(bench.paths).load(trial.graph).hash == trial.graph
    trained = {graph.hash for graph, _ in bench.engine.built}
    assert trained == {t.graph for t in bench.events(records.TrialStarted)}


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


def test_the_kernel_size_that_hpo_chose_is_in_the_graph_that_is_trained(tmp_path: Path) -> None:
    bench = Bench(tmp_path, search={"method": "greedy", "exploration": 1.0})
    bench.run(40)
    chosen = [
        (graph, used.kernel_size)
        for graph, used in bench.engine.built
        if used.kernel_size is not None
    ]
    assert len(chosen) >= 3
    assert len({size for _, size in chosen}) >= 2
    for graph, size in chosen:
        assert set(inserted_spatial_convs(graph).values()) == {size}


def test_the_study_maximises_accuracy_and_knows_every_trial(tmp_path: Path) -> None:
    scripts = [Script(accuracies=(a,)) for a in (0.1, 0.1, 0.1, 0.25, 0.75, 0.5)]
    scripts.insert(5, Script(build_error=EngineError("cannot be built")))
    bench = Bench(tmp_path, *scripts)
    bench.run(7)
    study = optuna.load_study(study_name="r0", storage=_storage(bench.paths.study("r0")))
    assert study.direction is optuna.study.StudyDirection.MAXIMIZE
    assert study.best_value == 0.75
    *trials, unused = study.trials
    assert unused.state.name == "PRUNED"  # Planned while the last one was trained.
    assert unused.user_attrs["reason"] == "the run ended before its turn"
    states = [trial.state.name for trial in trials]
    assert states == ["COMPLETE", "COMPLETE", "FAIL", "COMPLETE"]
    started = {t.trial: t for t in bench.events(records.TrialStarted)}
    used = [started[f"r0-t{n}"].hyperparameters.batch_size for n in (4, 5, 6, 7)]
    assert [trial.params["batch_size"] for trial in trials] == used


def _storage(path: Path) -> optuna.storages.JournalStorage:
    backend = optuna.storages.journal.JournalFileBackend(str(path))
    return optuna.storages.JournalStorage(backend)


def test_only_the_best_checkpoints_are_kept_and_a_dropped_one_is_no_parent(tmp_path: Path) -> None:
    scripts = [Script(accuracies=(a,)) for a in (0.9, 0.2, 0.8, 0.1, 0.7, 0.3, 0.3)]
    bench = Bench(tmp_path, *scripts)
    bench.run(7)
    kept = {path.stem for path in (bench.paths.replica("r0") / "trained").iterdir()}
    assert kept == {"r0-t1", "r0-t3", "r0-t5"}
    dropped = [event.trial for event in bench.events(records.CheckpointDropped)]
    assert dropped == ["r0-t4", "r0-t2", "r0-t6", "r0-t7"]
    bench.history.refresh()
    assert {t.id for t in bench.history.trials.values() if t.has_checkpoint} == kept


def test_weights_that_cannot_be_stored_make_no_parent_and_the_record_says_why(
    tmp_path: Path,
) -> None:
    bench = Bench(tmp_path)
    (bench.paths.replica("r0") / "trained").write_text("a file in the folder's place")
    bench.run(2)
    for ended in bench.events(records.TrialEnded):
        assert ended.state is TrialState.COMPLETED
        assert not ended.checkpoint
        assert "its weights are not kept: cannot write" in ended.reason


def test_predictions_of_each_trial_are_kept_and_recorded(tmp_path: Path) -> None:
    bench = Bench(tmp_path, Script(predicts=True))
    bench.run(2)
    kept = bench.events(records.PredictionsKept)
    assert [(k.trial, k.epoch, k.samples) for k in kept] == [("r0-t1", 1, 20), ("r0-t2", 5, 20)]
    for each in kept:
        path = bench.paths.predictions("r0", each.trial)
        assert file_digest(path) == each.sha256
        found = load_predictions(path)
        assert (found.trial, found.epoch) == (each.trial, each.epoch)
        assert found.classes.tolist() == [each.epoch - 1] * 20
    bench.history.refresh()
    assert bench.history.trials["r0-t2"].predictions == kept[1]


def test_predictions_that_cannot_be_stored_are_said_to_be_missing(tmp_path: Path) -> None:
    bench = Bench(tmp_path, Script(predicts=True))
    (bench.paths.replica("r0") / "predictions").write_text("a file in the folder's place")
    bench.run(1)
    (ended,) = bench.events(records.TrialEnded)
    assert "its predictions are not kept: cannot write" in ended.reason
    assert ended.checkpoint
    assert not bench.events(records.PredictionsKept)


def test_the_best_epoch_of_each_trial_is_kept_and_recorded(tmp_path: Path) -> None:
    bench = Bench(tmp_path, Script(accuracies=(0.2, 0.6, 0.4, 0.6, 0.5)))
    bench.run(2)
    first, second = bench.events(records.BestEpochKept)
    assert [(kept.trial, kept.epoch) for kept in (first, second)] == [("r0-t1", 1), ("r0-t2", 2)]
    paths = bench.paths
    for place, kept in (
        (paths.epoch_began, second.began),
        (paths.epoch_evaluated, second.evaluated),
    ):
        path = place("r0", "r0-t2")
        assert (path.stat().st_size, file_digest(path)) == (kept.bytes, kept.sha256)
    began = load_training(paths.epoch_began("r0", "r0-t2"))
    evaluated = load_training(paths.epoch_evaluated("r0", "r0-t2"))
    assert (began.course.epochs, evaluated.course.epochs) == (1, 2)
    assert began.optimizer_state
    assert not evaluated.optimizer_state
    # The first epoch of a trial begins with what its network was built with.
    beginning = load_training(paths.epoch_began("r0", "r0-t1"))
    assert (beginning.course.epochs, beginning.optimizer_state) == (0, {})
    bench.history.refresh()
    assert bench.history.trials["r0-t2"].best_epoch == second
    ended = [record for record in bench.events(records.TrialEnded) if record.reason]
    assert not ended


def test_best_epochs_that_cannot_be_stored_are_said_to_be_missing(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    (bench.paths.replica("r0") / "kept").write_text("a file in the folder's place")
    bench.run(1)
    (ended,) = bench.events(records.TrialEnded)
    assert "its best epoch is not kept: cannot write" in ended.reason
    assert ended.checkpoint
    assert not bench.events(records.BestEpochKept)


@pytest.mark.parametrize(
    ("settings", "kept", "dropped"),
    [
        ({"trials": "none"}, set(), []),
        ({"trials": "best"}, {"r0-t3"}, ["r0-t1"]),
        ({"gib": 0.0}, {"r0-t3"}, ["r0-t1"]),
        ({}, {"r0-t1", "r0-t2", "r0-t3", "r0-t4"}, []),
    ],
)
def test_whose_best_epochs_are_kept_is_a_setting(
    tmp_path: Path, settings: dict[str, object], kept: set[str], dropped: list[str]
) -> None:
    scripts = [Script(accuracies=(a,)) for a in (0.5, 0.4, 0.6, 0.6)]
    bench = Bench(tmp_path, *scripts, keep=settings)
    bench.run(4)
    there = {name.rpartition("-")[0] for name in _names(bench.paths.replica("r0") / "kept")}
    assert there == kept
    assert [event.trial for event in bench.events(records.BestEpochDropped)] == dropped
    bench.history.refresh()
    assert {t.id for t in bench.history.trials.values() if t.best_epoch is not None} == kept


def test_another_life_knows_what_was_kept_before(tmp_path: Path) -> None:
    Bench(tmp_path, Script(accuracies=(0.9,)), keep={"trials": "best"}).run(1)
    bench = Bench(
        tmp_path, Script(accuracies=(0.8,)), life=Incarnation(0, 1), keep={"trials": "best"}
    )
    bench.run(1)
    assert [event.trial for event in bench.events(records.BestEpochKept)] == ["r0-t1"]
    assert _names(bench.paths.replica("r0") / "kept") == [
        "r0-t1-began.safetensors", "r0-t1-evaluated.safetensors",
    ]  # fmt: skip


def _names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir()) if folder.exists() else []


def test_warm_up_records_the_predicted_accuracy(tmp_path: Path) -> None:
    bench = Bench(tmp_path, Script(accuracies=(0.10, 0.20, 0.25, 0.30, 0.35)))
    bench.run(4)
    first, second, _, hpo = bench.events(records.TrialEnded)
    assert first.predicted_accuracy == pytest.approx(0.1)
    assert second.predicted_accuracy is not None
    assert 0.35 < second.predicted_accuracy <= 1.0
    assert hpo.predicted_accuracy is None


def test_while_nothing_can_be_grown_the_initial_graph_is_tried_again(tmp_path: Path) -> None:
    broken = Script(build_error=EngineError("out of luck"))
    bench = Bench(tmp_path, broken, broken, Script())
    bench.run(4)
    started = bench.events(records.TrialStarted)
    assert [t.graph == bench.initial.hash for t in started] == [True, True, True, False]
    ended = bench.events(records.TrialEnded)
    assert [t.state for t in ended[:3]] == [
        TrialState.FAILED,
        TrialState.FAILED,
        TrialState.COMPLETED,
    ]
    assert ended[0].reason == "out of luck"


def test_a_replica_whose_trials_all_fail_gives_up_and_says_why(tmp_path: Path) -> None:
    bench = Bench(tmp_path, Script(build_error=EngineError("no such device")))
    with pytest.raises(ReplicaFailedError, match="5 trials in a row failed.*no such device"):
        bench.run(99)


def test_a_damaged_candidate_is_rejected_and_the_next_one_taken(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.run(1)
    bench.worker.step()
    bench.worker.step()
    bench.history.refresh()
    first, second = bench.history.pending("r0")
    bench.paths.candidate(first.id).write_bytes(b"torn")
    candidate = bench.rounds._planner._stock.take()
    assert candidate is not None
    assert candidate.proposal == second.id
    (rejected,) = bench.events(records.ProposalRejected)
    assert rejected.proposal == first.id
    assert "is damaged" in rejected.reason


def test_a_candidate_that_is_not_visible_yet_is_waited_for(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.run(1)
    bench.worker.step()
    bench.worker.step()
    bench.history.refresh()
    first, second = bench.history.pending("r0")
    hidden = bench.paths.candidate(first.id).rename(tmp_path / "hidden")
    candidate = bench.rounds._planner._stock.take()
    assert candidate is not None
    assert candidate.proposal == second.id
    hidden.rename(bench.paths.candidate(first.id))
    candidate = bench.rounds._planner._stock.take()
    assert candidate is not None
    assert candidate.proposal == first.id
    assert bench.events(records.ProposalRejected) == []


def test_the_search_worker_fills_the_stock_and_no_more(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    assert bench.worker.step() > 0.0  # Nothing was trained: nothing can be grown.
    bench.run(1)
    for _ in range(5):
        bench.worker.step()
    proposed = bench.events(records.Proposed)
    assert len(proposed) == bench.config.search.stock
    assert len({p.graph for p in proposed}) == len(proposed)
    assert len({p.morphisms[0]["kind"] for p in proposed}) == len(proposed)
    for proposal in proposed:
        assert GraphStore(bench.paths).load(proposal.graph).hash == proposal.graph


@pytest.mark.parametrize(("method", "judged"), [("greedy", 1), ("guided", 8)])
def test_a_child_is_grown_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str, judged: int
) -> None:
    """Where it is judged: not again for its weights, its file, or for choices while it waits."""
    bench = Bench(tmp_path, search={"method": method, "stock": 4, "expansions": judged})
    greedy._child.cache_clear()
    made = noted_children(monkeypatch)
    bench.run(1)
    for _ in range(4):
        bench.worker.step()
    proposed = bench.events(records.Proposed)
    assert len(proposed) == 4
    assert len(made) == 4 * judged
    graphs = [load_checkpoint(bench.paths.candidate(p.proposal))[0] for p in proposed]
    assert all(graph in made for graph in graphs)


def test_noise_that_is_asked_for_is_on_the_kernels_that_grew(tmp_path: Path) -> None:
    """Two runs that differ in nothing else propose the same graphs."""

    def candidates(folder: Path, noise: float) -> list[tuple[Graph, Weights]]:
        bench = Bench(folder, search={"stock": 4, "noise": noise})
        bench.run(1)
        for _ in range(4):
            bench.worker.step()
        made = (proposal.proposal for proposal in bench.events(records.Proposed))
        return [load_checkpoint(bench.paths.candidate(name)) for name in made]

    exact, noisy = candidates(tmp_path / "exact", 0.0), candidates(tmp_path / "noisy", 0.1)
    assert [graph for graph, _ in exact] == [graph for graph, _ in noisy]
    different = {
        name
        for (_, one), (_, other) in zip(exact, noisy, strict=True)
        for name in one
        if not np.array_equal(one[name], other[name])
    }
    assert different
    assert all(name.endswith("/kernel") for name in different)


def test_parents_are_taken_from_all_replicas(tmp_path: Path) -> None:
    """A second replica has a much better trial: a greedy search grows that one."""
    bench = Bench(tmp_path, search={"method": "greedy", "stock": 2, "exploration": 0.0})
    bench.run(1)
    graph, weights = load_checkpoint(bench.paths.trained("r0", "r0-t1"))
    journal = [
        json.loads(line) for line in bench.paths.replica_journal("r0").read_text().splitlines()
    ]
    text = "\n".join(json.dumps(record) for record in journal).replace("r0", "r1")
    text = text.replace('"correct": 10', '"correct": 20').replace(
        '"predicted_accuracy": 0.5', '"predicted_accuracy": 1.0'
    )
    bench.paths.replica_journal("r1").parent.mkdir(parents=True)
    bench.paths.replica_journal("r1").write_text(text + "\n")
    save_checkpoint(bench.paths.trained("r1", "r1-t1"), graph, weights)
    bench.history.refresh()
    with JournalWriter(bench.paths.digest) as digest:
        DigestWriter(bench.history, digest).update()  # As the primary does.
    bench.worker.step()
    assert [p.parent for p in bench.events(records.Proposed)] == ["r1-t1"]


def test_a_parent_whose_weights_are_gone_is_passed_over(tmp_path: Path) -> None:
    scripts = Script(accuracies=(0.9,)), Script(accuracies=(0.3,))
    bench = Bench(tmp_path, *scripts)
    bench.run(2)
    bench.worker._config = validate(CONFIG | {"search": {"stock": 8}}, "test")
    before = len(bench.events(records.Proposed))
    bench.paths.trained("r0", "r0-t1").unlink()
    for _ in range(3):
        bench.worker.step()
    later = bench.events(records.Proposed)[before:]
    assert later
    assert {p.parent for p in later} == {"r0-t2"}
    assert bench.events(records.SearchFailed) == []


def test_a_parent_whose_weights_are_damaged_is_a_failed_search_not_a_dead_worker(
    tmp_path: Path,
) -> None:
    bench = Bench(tmp_path)
    bench.run(1)
    bench.paths.trained("r0", "r0-t1").write_bytes(b"torn")
    bench.worker.step()
    assert bench.worker.step() > 0.0  # There is no other one.
    (failed,) = bench.events(records.SearchFailed)
    assert "r0-t1.safetensors is damaged" in failed.reason


@pytest.mark.parametrize("damage", ["schema", "bytes", "other"])
def test_a_parent_of_no_use_is_named_and_others_are_grown(tmp_path: Path, damage: str) -> None:
    """The better of two: its graph has a schema unknown here, its file is cut, or another's."""
    bench = Bench(tmp_path, Script(accuracies=(0.9,)), Script(accuracies=(0.3,)))
    bench.run(2)
    bench.worker._config = validate(CONFIG | {"search": {"stock": 8}}, "test")
    before = len(bench.events(records.Proposed))
    path = bench.paths.trained("r0", "r0-t1")
    graph, weights = load_checkpoint(path)
    if damage == "schema":
        known, unknown = (f'"schema": {number}' for number in (1, 9))
        assert known in graph.to_json()
        save_checked(path, weights, {"graph": graph.to_json().replace(known, unknown)})
    elif damage == "bytes":
        path.write_bytes(path.read_bytes()[:99])
    else:
        child = Deeper("s1b1_relu", 1)
        save_checkpoint(path, *grow_with_weights(graph, weights, [child], np.random.default_rng(0)))
    for _ in range(10):
        bench.worker.step()
    later = bench.events(records.Proposed)[before:]
    assert later
    assert {p.parent for p in later} == {"r0-t2"}
    (failed,) = bench.events(records.SearchFailed)  # Named once, and not tried again.
    assert f"{path} is damaged" in failed.reason
    assert damage != "schema" or "schema 9; this version reads schema 1" in failed.reason
    assert damage != "other" or "its graph is not that of trial r0-t1" in failed.reason


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
    second.history.refresh()
    interrupted = second.history.trials["r0-t2"]
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
        "checkpoint_seconds": 0,
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
    training = {"precision": "fp32", "batch_size": 16, "checkpoint_seconds": 3600}
    first = Bench(tmp_path, Script(), _told_to_end_at_step(14), training=training)
    first.stop.install()
    assert first.run(9) == "SIGTERM"
    first.journal.append(records.ReplicaEnded(reason="SIGTERM"))
    assert [e.trial for e in first.events(records.TrialEnded)] == ["r0-t1"]
    assert [e.trial for e in first.events(records.TimeSpent)] == ["r0-t1", "r0-t2"]
    first.history.refresh()
    cut = first.history.trials["r0-t2"]
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


GREEDY = {"method": "greedy"}
"""Small steps, for a limit of memory that is tight."""


def test_no_batch_size_is_offered_that_does_not_fit(tmp_path: Path) -> None:
    bench = Bench(tmp_path, search=GREEDY)
    bench.leave_memory_for(8)
    bench.run(9)
    tuned = [t for t in bench.events(records.TrialStarted) if t.phase is RoundPhase.HPO]
    assert len(tuned) == 6
    assert {t.hyperparameters.batch_size for t in tuned} == {8}
    assert {t.notes for t in tuned} == {()}


def test_a_batch_size_that_was_halved_all_the_same_is_what_the_study_learns(tmp_path: Path) -> None:
    """What was suggested and not tried is no observation of the study."""
    bench = Bench(tmp_path, search=GREEDY)
    bench.leave_memory_for(8, optimiser_knows=False)
    bench.run(6)
    study = optuna.load_study(study_name="r0", storage=_storage(bench.paths.study("r0")))
    failed = [t for t in study.trials if t.state.name == "FAIL"]
    done = [t.params["batch_size"] for t in study.trials if t.state.name == "COMPLETE"]
    assert failed
    for trial in failed:
        wanted = trial.params["batch_size"]
        assert trial.user_attrs["reason"] == f"batch size {wanted} does not fit in memory"
    assert set(done) == {8}


def test_a_round_begins_with_the_hyperparameters_of_the_graph_it_grew_from(tmp_path: Path) -> None:
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
        # Accuracies are all the same, so the first training of the parent's graph is its best.
        begun = next(t for t in trials.values() if t.graph == parent.graph).hyperparameters
        assert first.hyperparameters.batch_size == begun.batch_size
        assert first.hyperparameters.learning_rate == begun.learning_rate
        assert second.hyperparameters.learning_rate != begun.learning_rate
    rates = {t.hyperparameters.learning_rate for t in tuned}
    assert len(rates) > 3
    assert all(0.01 <= rate <= 0.2 for rate in rates)
    assert {t.hyperparameters.momentum for t in tuned} == {0.9}


def test_a_trial_that_is_cut_tells_the_study_nothing_but_that(tmp_path: Path) -> None:
    cut = Script(on_step=lambda step: bench.stop.ask("the run's time is over"))
    bench = Bench(tmp_path, *[Script()] * 4, cut)
    bench.rounds.run()
    study = optuna.load_study(study_name="r0", storage=_storage(bench.paths.study("r0")))
    assert [t.state.name for t in study.trials] == ["COMPLETE", "PRUNED"]
    assert study.trials[1].user_attrs["reason"] == "the run's time is over"
    assert study.trials[1].value is None
    second = Bench(tmp_path, life=Incarnation(0, 1))
    second.run(1)
    later = optuna.load_study(
        study_name="r0-0.1", storage=_storage(second.paths.study("r0", Incarnation(0, 1)))
    )
    chosen_by = [t.user_attrs["chosen_by"] for t in later.trials]
    assert chosen_by == ["earlier", "parent", "tpe"]  # The last one was not tried.


def test_a_new_life_knows_what_the_earlier_one_learned(tmp_path: Path) -> None:
    accuracies = (0.3, 0.4, 0.5, 0.6, 0.7, 0.2)
    first = Bench(tmp_path, *(Script(accuracies=(a,)) for a in accuracies))
    first.run(6)
    second = Bench(tmp_path, Script(accuracies=(0.1,)), life=Incarnation(1, 0))
    second.run(1)
    study = optuna.load_study(
        study_name="r0-1.0", storage=_storage(second.paths.study("r0", Incarnation(1, 0)))
    )
    # The last one was planned and not tried.
    assert [trial.value for trial in study.trials] == [0.6, 0.7, 0.2, 0.1, None]
    # The three best are kept over both lives.
    second.history.refresh()
    kept = {t.id for t in second.history.trials.values() if t.has_checkpoint}
    assert kept == {"r0-t3", "r0-t4", "r0-t5"}


def test_the_next_trial_is_built_while_one_is_trained(tmp_path: Path) -> None:
    """The fourth and fifth are of one round: their last steps wait until the next one is built."""

    def until_built(networks: int) -> Callable[[int], None]:
        def built() -> bool:
            bench.rounds._prefetch.look()  # As after each of many steps.
            return len(bench.engine.networks) >= networks

        def wait(step: int) -> None:
            if step == 7:
                until(built, lambda: f"network {networks} was not built meanwhile")

        return wait

    waiting = [Script(on_step=until_built(number)) for number in (5, 6)]
    with background_thread() as background:
        bench = Bench(tmp_path, *[Script()] * 3, *waiting, Script(), background=background)
        bench.run(6)
    assert len(bench.events(records.TrialStarted)) == 6
    assert all(network.closed for network in bench.engine.networks)


def test_a_trial_begins_where_the_one_before_it_trained_last(tmp_path: Path) -> None:
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
    # The ninth was made ready, and left no trace but the graph that it would have trained.
    assert len(bench.engine.built) == 9
    assert bench.engine.networks[-1].steps == 0
    assert bench.engine.networks[-1].closed


def test_a_next_trial_that_cannot_be_built_fails_at_its_turn(tmp_path: Path) -> None:
    bench = Bench(
        tmp_path,
        Script(),
        Script(build_error=EngineError("node x")),
        Script(),
        background=Immediate(),
    )
    bench.run(3)
    ended = bench.events(records.TrialEnded)
    assert [(t.trial, t.state, t.reason) for t in ended] == [
        ("r0-t1", TrialState.COMPLETED, ""),
        ("r0-t2", TrialState.FAILED, "node x"),
        ("r0-t3", TrialState.COMPLETED, ""),
    ]


@pytest.mark.parametrize("background", [None, Immediate()])
def test_a_trial_that_does_not_fit_after_all_is_repeated_once_in_halved_batches(
    tmp_path: Path, background: Executor | None
) -> None:
    """The accelerator's word, after the estimate: recorded, with the learning rate as it was."""
    full = Script(step_errors={2: OutOfMemoryError("no memory left on the device")})
    bench = Bench(tmp_path, full, full, Script(), background=background)
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


def test_a_batch_that_the_estimate_halved_is_halved_again_when_it_does_not_fit(
    tmp_path: Path,
) -> None:
    full = Script(step_errors={2: OutOfMemoryError("no memory left on the device")})
    bench = Bench(tmp_path, full, Script())
    bench.leave_memory_for(8)
    bench.run(2)
    first, again = bench.events(records.TrialStarted)
    assert first.hyperparameters.batch_size == 8
    assert again.hyperparameters.batch_size == 4
    assert "in batches of 8; 4 with" in again.notes[0]


@pytest.mark.parametrize("background", [None, Immediate()])
def test_without_its_device_a_replica_trains_nothing_more(
    tmp_path: Path, background: Executor | None
) -> None:
    """Every trial would fail; the one under way has not ended, and another life resumes it."""
    lost = Script(step_errors={2: DeviceLostError("an illegal memory access")})
    bench = Bench(tmp_path, lost, Script(), background=background)
    with pytest.raises(DeviceLostError):
        bench.run(3)
    assert [t.trial for t in bench.events(records.TrialStarted)] == ["r0-t1"]
    assert bench.events(records.TrialEnded) == []


def test_a_network_that_cannot_be_built_for_want_of_a_device_ends_the_replica_too(
    tmp_path: Path,
) -> None:
    lost = Script(build_error=DeviceLostError("an illegal memory access"))
    bench = Bench(tmp_path, lost, background=Immediate())
    with pytest.raises(DeviceLostError):
        bench.run(3)
    assert bench.events(records.TrialStarted) == []


def test_where_no_batch_may_shrink_a_trial_that_does_not_fit_has_failed(tmp_path: Path) -> None:
    full = Script(step_errors={2: OutOfMemoryError("no memory left on the device")})
    bench = Bench(tmp_path, full, Script(), engine={"on_memory": "refuse"})
    bench.run(2)
    assert [t.notes for t in bench.events(records.TrialStarted)] == [(), ()]


def test_what_could_not_be_recorded_ends_the_replica(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also when it was the background thread who could not."""
    bench = Bench(tmp_path, background=Immediate())
    append = bench.journal.append

    def full(event: records.AnyEvent) -> object:
        if isinstance(event, records.TrialEnded):
            raise JournalError("cannot write the journal: no space")
        return append(event)

    monkeypatch.setattr(bench.journal, "append", full)
    with pytest.raises(JournalError, match="no space"):
        bench.run(9)
    assert len(bench.events(records.TrialStarted)) <= 2


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
        (gone, "is gone"),
        (_of_another_graph, "holds the graph"),
    ],
)
def test_a_trial_under_way_whose_checkpoint_is_lost_is_said_and_its_round_begun_anew(
    tmp_path: Path, damage: Callable[[Path], None], what: str
) -> None:
    first = cut_off(tmp_path, 14)
    first.history.refresh()
    before = first.history.trials["r0-t2"].train_samples
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
    assert problem.remedy == "round 2 is begun anew without r0-t2"
    # What was executed before stays credited, and the trial has an end.
    second.history.refresh()
    cut = second.history.trials["r0-t2"]
    assert (cut.train_samples, cut.state) == (before, TrialState.STOPPED)
    (said,) = second.history.file_problems
    assert said.startswith("r0: ")


def test_a_trial_younger_than_a_checkpoint_has_lost_none(tmp_path: Path) -> None:
    training = {"precision": "fp32", "batch_size": 16, "checkpoint_seconds": 3600}
    cut_off(tmp_path, 14, training)
    second = Bench(tmp_path, life=Incarnation(0, 1), training=training)
    second.run(1)
    assert second.events(records.FileProblem) == []


def _told(path: Path, name: str) -> set[tuple[str, float | None]]:
    """Return what a study has to say of hyperparameters: each point and its value."""
    study = optuna.load_study(study_name=name, storage=_storage(path))
    ended = [t for t in study.trials if t.state.name in ("COMPLETE", "FAIL")]
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
    assert "its weights are not kept" in unkept.reason

    # The second life goes on with the eighth trial, whose best epoch was in the first one.
    life = Incarnation(0, 1)
    second = Bench(tmp_path, Script(accuracies=(0.45,)), life=life, hpo=hpo)
    second.run(1)
    before = _told(second.paths.study("r0", life), "r0-0.1")
    assert {value for _, value in before} == {0.25, 0.75, None, 0.35, 0.95}
    assert {t for t in _told(first.paths.study("r0"), "r0") if t[1] != 0.95} < before

    damage(second.paths.study("r0", life))
    life = Incarnation(0, 2)
    third = Bench(tmp_path, life=life, hpo=hpo)
    third.stop.ask("enough")
    third.rounds._planner.next()
    assert _told(third.paths.study("r0", life), "r0-0.2") == before


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
    study = optuna.load_study(study_name="r0-0.1", storage=_storage(second.paths.study("r0", life)))
    told = [t for t in study.trials if t.user_attrs["chosen_by"] == "earlier"]
    assert [(t.params["batch_size"], t.value) for t in told] == [(8, 0.5)]


def test_what_did_not_fit_is_told_to_the_next_lifes_study_too(tmp_path: Path) -> None:
    """The estimate halved the batches of 16 that were suggested to 8."""
    bench = Bench(tmp_path, search=GREEDY)
    bench.leave_memory_for(8, optimiser_knows=False)
    bench.run(6)
    before = _told(bench.paths.study("r0"), "r0")
    assert any("16" in point and value is None for point, value in before)
    life = Incarnation(0, 1)
    later = Bench(tmp_path, search=GREEDY, life=life)
    later.rounds._planner.next()
    assert _told(later.paths.study("r0", life), "r0-0.1") == before


def test_weights_that_are_lost_are_waited_for_by_nobody(tmp_path: Path) -> None:
    """The only trained ones: without them nothing can be grown, and the initial graph is."""
    bench = Bench(tmp_path)
    bench.run(1)
    for proposal in bench.history.pending("r0"):
        bench.paths.candidate(proposal.id).write_bytes(b"torn")
    flip(bench.paths.trained("r0", "r0-t1"))
    later = Bench(tmp_path, life=Incarnation(0, 1))
    later.run(2)
    second, _ = later.events(records.TrialStarted)[1:]
    assert second.graph == later.initial.hash
    (failed,) = later.events(records.SearchFailed)
    assert failed.lost_parent == "r0-t1"
    assert "its tensor" in failed.reason


def test_weights_that_stay_away_are_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not at once: the record that they were dropped may be on its way."""
    bench = Bench(tmp_path)
    bench.run(1)
    bench.worker._config = validate(CONFIG | {"search": {"stock": 8}}, "test")
    clock = Clock()
    monkeypatch.setattr(bench.worker, "_clock", clock)
    bench.paths.trained("r0", "r0-t1").unlink()
    for _ in range(3):
        bench.worker.step()
    assert bench.events(records.SearchFailed) == []
    clock.advance(LOST_SECONDS)
    for _ in range(3):
        bench.worker.step()
    (failed,) = bench.events(records.SearchFailed)
    assert (failed.lost_parent, failed.reason) == (
        "r0-t1",
        "the weights of trial r0-t1 are not there",
    )
    bench.history.refresh()
    assert not bench.history.trials["r0-t1"].has_checkpoint
