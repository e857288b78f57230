"""Run directories for tests, written by the same writers as real ones and at once.

``write_run`` plays a whole run by a plan: an initial graph, candidates grown from it by real
morphisms, trials with their samples and evaluations, time accounts, failures. Every clock is
simulated, so that a run of hours takes a moment and is the same every time. ``Primary`` and
``Worker`` are there for tests that need one record at a time.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np
from benchmarks.synthetic_run import draw
from tests.support.clock import START, Clock
from tests.support.run_manifest import run_manifest
from tests.support.run_writer import (
    evaluated,
    progress,
    proposed,
    run_started,
    trial_ended,
    trial_started,
)

from aiperf_hpc.config import RunConfig, validate
from aiperf_hpc.datasets import PINNED
from aiperf_hpc.errors import MorphismError
from aiperf_hpc.graph import Graph
from aiperf_hpc.morphism.operators.morphisms import Morphism, grow, resize_inserted
from aiperf_hpc.morphism.resnet import resnet50
from aiperf_hpc.ops_counter.count import count
from aiperf_hpc.run import records
from aiperf_hpc.run.graph_store import GraphStore
from aiperf_hpc.run.journal import JournalWriter
from aiperf_hpc.run.manifest import RunManifest
from aiperf_hpc.run.paths import RunPaths
from aiperf_hpc.run.records import TIME_OVER
from aiperf_hpc.trial import (
    DatasetInfo,
    Hyperparameters,
    Machine,
    RoundPhase,
    TimePhase,
    TrialState,
)

SEARCH_WAIT, BUILD, STORE = 0.5, 2.5, 0.4
"""Seconds of each trial before, at the beginning of and after its training."""

DATASET = PINNED["digits"]


@dataclass(frozen=True)
class Plan:
    """What ``write_run`` writes."""

    replicas: int = 2
    trials: int = 7
    """Trials of each replica."""
    hpo_trials: int = 4
    """How many of each replica's trials, the last ones, are HPO's, three a round."""
    failed: int = 1
    """How many of each replica's trials, the last ones, fail."""
    epochs: int = 4
    """Epochs of each trial."""
    evaluated: bool = True
    """Whether any evaluation is completed."""
    end_reason: str = TIME_OVER
    """Why the run ended."""
    ended: bool = True
    """Whether the run has ended; otherwise each last trial is still training."""
    epoch_seconds: float = 30.0
    """Seconds of an epoch, about: they vary from trial to trial."""
    ceiling: float = 0.97
    """The accuracy that a trial would reach in endless training; above 1, it gets all right."""
    failure: str = "EngineError: the graph does not fit in 2 GiB"
    run_id: str = "digits-2n-20250615T150640"
    hours: float = 0.25
    seed: int = 0
    config: Mapping[str, Any] = field(default_factory=dict)
    """Settings over the factory's own: digits, and a ResNet-50 of width 4."""


def configuration(changes: Mapping[str, Any] | None = None) -> RunConfig:
    """Return the configuration of a small run, with ``changes`` of whole sections."""
    values: dict[str, Any] = {
        "preset": "digits",
        "dataset": {"name": "digits"},
        "model": {"stem": "cifar", "base_width": 4},
        "training": {"batch_size": 64, "precision": "fp32"},
        "hpo": {"space": {"batch_size": {"choices": [32, 64, 128]}}},
        "score": {"interval_hours": 0.02},
        **(changes or {}),
    }
    return validate(values, "run_factory")


def initial_graph(config: RunConfig, dataset: DatasetInfo = DATASET) -> Graph:
    """Return the network that a run by ``config`` starts from."""
    model = config.model
    return resnet50(
        dataset.input_shape("image"),
        dataset.classes or 0,
        stem=model.stem,
        base_width=model.base_width,
    )


def write_manifest(paths: RunPaths, plan: Plan) -> RunManifest:
    """Write ``run.yaml`` alone: a run that has not started."""
    manifest = run_manifest(
        configuration(plan.config),
        run_id=plan.run_id,
        nodes=plan.replicas,
        hours=plan.hours,
        cores=tuple((2 * n, 2 * n + 1) for n in range(plan.replicas)),
        versions={"aiperf-hpc": "0.1.0", "python": "3.11.7", "tensorflow": "2.18.1"},
        commit="0123456789abcdef0123456789abcdef01234567",
    )
    manifest.save(paths)
    return manifest


class _Writer:
    """A journal on a simulated clock."""

    def __init__(self, path: Path, clock: Clock) -> None:
        self.clock = clock
        self.journal = JournalWriter(path, clock=clock)

    def write(self, event: records.AnyEvent, *, after: float = 0.0) -> None:
        """Record ``event``, ``after`` seconds from now."""
        self.clock.advance(after)
        self.journal.append(event)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.journal.close()


class Primary(_Writer):
    """The primary's journal."""

    def __init__(self, paths: RunPaths, plan: Plan, clock: Clock | None = None) -> None:
        super().__init__(paths.primary_journal, clock or Clock())
        self.plan = plan

    def start(self) -> None:
        plan = self.plan
        own = {"run_id": plan.run_id, "nodes": plan.replicas, "host": "head", "pid": 100}
        self.write(run_started(plan.hours).model_copy(update=own))
        for number in range(plan.replicas):
            self.write(records.ReplicaLaunched(replica=f"r{number}", job=f"{200 + number}"))

    def end(self, reason: str = TIME_OVER) -> None:
        self.write(records.StopRequested(reason=reason))
        for number in range(self.plan.replicas):
            self.write(records.ReplicaExited(replica=f"r{number}", status=0))
        self.write(records.RunEnded(reason=reason))


@dataclass
class Grown:
    """A graph and where it came from."""

    graph: Graph
    parent: str | None = None
    proposal: str | None = None
    morphisms: tuple[Morphism, ...] = ()


class Worker(_Writer):
    """A replica's journal, and the journal of its one search worker."""

    def __init__(
        self, paths: RunPaths, name: str, config: RunConfig, clock: Clock | None = None
    ) -> None:
        super().__init__(paths.replica_journal(name), clock or Clock())
        self.name, self.config = name, config
        self.graphs = GraphStore(paths)
        self.search = JournalWriter(paths.search_journal(name, 0), clock=self.clock)
        self.trials = 0

    def __exit__(self, *exception: object) -> None:
        super().__exit__(*exception)
        self.search.close()

    def start(self, dataset: DatasetInfo = DATASET) -> None:
        """Come up and load the dataset, 4 seconds in all."""
        number = int(self.name.removeprefix("r"))
        machine = Machine(
            host=f"node{number:03d}",
            cpu="Example CPU 9000",
            cores=(2 * number, 2 * number + 1),
            memory_bytes=8 * 2**30,
            accelerators=(),
            versions={"tensorflow": "2.18.1", "numpy": "2.0.2"},
        )
        self.write(
            records.ReplicaStarted(
                replica=self.name, pid=300 + number, engine="tensorflow", machine=machine
            ),
            after=3.0,
        )
        self.search.append(
            records.SearchStarted(
                replica=self.name, worker=0, pid=400 + number, searcher="bayesian"
            )
        )
        self.write(records.DatasetLoaded(dataset=dataset), after=1.0)
        self.spend(None, {TimePhase.START: 3.0, TimePhase.DATA: 1.0})

    def propose(self, parent: Graph, trial: str, rng: np.random.Generator) -> Grown:
        """Grow ``parent``, which ``trial`` trained, and record the candidate."""
        morphism, child = draw(parent, rng)
        proposal = f"{self.name}-p{self.trials:03d}"
        self.search.append(
            proposed(
                proposal,
                self.graphs.save(child),
                parent=trial,
                morphisms=(morphism.to_data(),),
                seed=int(rng.integers(2**31)),
                seconds=1.5,
                prediction={"mean": 0.8, "deviation": 0.1},
            )
        )
        return Grown(child, trial, proposal, (morphism,))

    def begin(
        self, grown: Grown, phase: RoundPhase, round_: int, *, kernel: int | None = None
    ) -> str:
        """Start a trial; its graph is being built. Returns the trial's name."""
        counted = count(grown.graph)
        trial = f"{self.name}-t{self.trials:03d}"
        training = self.config.training
        sizes = self.config.hpo.space.batch_size.values
        batch = sizes[self.trials % len(sizes)] if phase is RoundPhase.HPO else training.batch_size
        self.trials += 1
        used = Hyperparameters.model_validate(training, from_attributes=True)
        self.write(
            trial_started(
                trial,
                self.graphs.save(grown.graph),
                round=round_,
                phase=phase,
                parent=grown.parent,
                proposal=grown.proposal,
                morphisms=tuple(m.to_data() for m in grown.morphisms),
                hyperparameters=used.model_copy(
                    update={"batch_size": batch, "kernel_size": kernel}
                ),
                seed=7,
                epoch_limit=training.max_epochs,
                parameters=grown.graph.parameter_count,
                depth=grown.graph.depth,
                train_operations=counted.training,
                validation_operations=counted.forward,
                memory_estimate_bytes=10**8,
            )
        )
        return trial

    def train(self, trial: str, epoch: int, seconds: float, *, halves: int = 2) -> None:
        """Execute the training samples of an epoch, or only its first half."""
        whole = DATASET.train_samples
        parts = (whole // 2, whole - whole // 2)[:halves]
        for part in parts:
            self.write(progress(trial, epoch=epoch, train=part), after=seconds / 2)

    def evaluate(self, trial: str, epoch: int, correct: int, seconds: float) -> None:
        """Execute the validation samples and record the complete evaluation."""
        samples = DATASET.validation_samples
        self.write(progress(trial, epoch=epoch, validation=samples), after=seconds)
        self.write(
            evaluated(
                trial,
                correct=correct,
                epoch=epoch,
                train_loss=2.3 / epoch,
                validation_loss=2.4 / epoch,
                samples=samples,
            )
        )

    def end(
        self, trial: str, state: TrialState, reason: str, predicted: float | None = None
    ) -> None:
        there = state is not TrialState.FAILED
        self.write(trial_ended(trial, state, reason=reason, predicted=predicted, checkpoint=there))

    def spend(self, trial: str | None, seconds: Mapping[TimePhase, float]) -> None:
        self.write(records.TimeSpent(trial=trial, seconds=dict(seconds)))
        self.write(
            records.Heartbeat(phase=TimePhase.TRAIN, cpu_percent=187.5, memory_bytes=3 * 2**30)
        )


class StartedRun(NamedTuple):
    """A run of one replica whose processes have started; they share a clock."""

    paths: RunPaths
    primary: Primary
    worker: Worker

    @property
    def now(self) -> float:
        return self.worker.clock.now


@contextmanager
def started_run(root: Path) -> Iterator[StartedRun]:
    """Begin a run of one replica, whose records follow one by one."""
    paths, plan, clock = RunPaths(root), Plan(replicas=1), Clock()
    config = write_manifest(paths, plan).config
    with Primary(paths, plan, clock) as primary, Worker(paths, "r0", config, clock) as worker:
        primary.start()
        worker.start()
        yield StartedRun(paths, primary, worker)


def write_run(root: Path, plan: Plan | None = None) -> RunPaths:
    """Write the run that ``plan`` describes and return where it is."""
    plan = plan or Plan()
    paths = RunPaths(root)
    manifest = write_manifest(paths, plan)
    with Primary(paths, plan) as primary:
        primary.start()
        until = START
        for number in range(plan.replicas):
            with Worker(paths, f"r{number}", manifest.config) as worker:
                _play(worker, plan, np.random.default_rng((plan.seed, number)))
                until = max(until, worker.clock.now)
        primary.clock.now = until + 2.0
        if plan.ended:
            primary.end(plan.end_reason)
        else:
            primary.write(records.PrimaryHeartbeat())
    return paths


@dataclass(frozen=True)
class _Trained:
    trial: str
    graph: Graph
    accuracy: float


def _play(worker: Worker, plan: Plan, rng: np.random.Generator) -> None:
    worker.start()
    initial = Grown(initial_graph(worker.config))
    trained: list[_Trained] = []
    grown, round_ = initial, 0
    for number in range(plan.trials):
        hpo = number - (plan.trials - plan.hpo_trials)
        new_round = hpo < 0 or hpo % 3 == 0
        round_ += new_round
        if new_round and trained:
            parent = _parent(trained, rng)
            grown = worker.propose(parent.graph, parent.trial, rng)
        phase = RoundPhase.HPO if hpo >= 0 else RoundPhase.WARMUP
        kernel = (3, 5, 7)[hpo % 3] if hpo >= 0 else None
        this = _resized(grown, kernel)
        worker.clock.advance(SEARCH_WAIT)
        trial = worker.begin(this, phase, round_, kernel=kernel)
        last = number == plan.trials - 1
        reached = _trial(worker, trial, plan, number, rng, open_end=last and not plan.ended)
        if reached is not None:
            trained.append(_Trained(trial, this.graph, reached))
        elif not trained:
            trained.append(_Trained(trial, this.graph, 0.0))
    if plan.ended:
        worker.write(records.ReplicaEnded(reason="asked to stop"))


def _trial(
    worker: Worker,
    trial: str,
    plan: Plan,
    number: int,
    rng: np.random.Generator,
    *,
    open_end: bool,
) -> float | None:
    """Play one trial; return the accuracy that it reached, if any."""
    worker.clock.advance(BUILD)
    spent = {TimePhase.SEARCH_WAIT: SEARCH_WAIT, TimePhase.BUILD: BUILD}
    if number >= plan.trials - plan.failed and not open_end:
        worker.end(trial, TrialState.FAILED, plan.failure)
        worker.spend(trial, spent)
        return None
    worker.write(records.TrainingStarted(trial=trial))
    epoch_seconds = plan.epoch_seconds * float(rng.uniform(0.6, 1.4))
    train, evaluate = 0.85 * epoch_seconds, 0.15 * epoch_seconds
    level = plan.ceiling * float(rng.uniform(0.85, 1.0)) + 0.004 * number
    reached: float | None = None
    for epoch in range(1, plan.epochs + 1):
        if open_end and epoch == plan.epochs:
            worker.train(trial, epoch, train, halves=1)
            return None
        worker.train(trial, epoch, train)
        if plan.evaluated:
            accuracy = level * (1.0 - math.exp(-epoch / 1.5))
            correct = min(360, round(accuracy * 360))
            worker.evaluate(trial, epoch, correct, evaluate)
            reached = max(reached or 0.0, correct / 360)
    worker.clock.advance(STORE)
    ran = plan.epochs
    spent |= {
        TimePhase.TRAIN: ran * train,
        TimePhase.EVALUATE: ran * evaluate if plan.evaluated else 0.0,
        TimePhase.STORE: STORE,
    }
    early = number % 5 == 4
    state = TrialState.STOPPED if early else TrialState.COMPLETED
    reason = "no lower validation loss in 3 epochs" if early else "the epoch limit"
    predicted = None
    if reached is not None and number < plan.trials - plan.hpo_trials:
        predicted = min(1.0, reached * 1.05)
    worker.end(trial, state, reason, predicted)
    worker.spend(trial, spent)
    return reached


def _parent(trained: list[_Trained], rng: np.random.Generator) -> _Trained:
    """Return the best, or now and then any: as a search that also explores would."""
    if rng.random() < 0.35:
        return trained[int(rng.integers(len(trained)))]
    return max(trained, key=lambda t: t.accuracy)


def _resized(grown: Grown, kernel: int | None) -> Grown:
    """Return the candidate with the inserted kernels that HPO chose, where they can grow."""
    if kernel is None:
        return grown
    try:
        steps = resize_inserted(grown.graph, kernel)
    except MorphismError:
        return grown
    graph = grow(grown.graph, steps)
    return replace(grown, graph=graph, morphisms=(*grown.morphisms, *steps))
