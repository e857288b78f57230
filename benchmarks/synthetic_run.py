"""A finished run of any size for the other benchmarks, written in seconds.

A few replicas are played record by record, with real graphs and morphisms; all others are
copies of them under other names and at other times. ``aiperf verify`` passes on the result: its
format is version 1, of which neither clocks nor studies nor digests of journals are required.

python benchmarks/synthetic_run.py FOLDER --replicas 4096        # about 1,000,000 records
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from aiperf_hpc.config import validate
from aiperf_hpc.datasets import PINNED
from aiperf_hpc.errors import MorphismError
from aiperf_hpc.graph import Graph
from aiperf_hpc.morphism.operators.morphisms import MORPHISMS, Morphism
from aiperf_hpc.morphism.resnet import resnet50
from aiperf_hpc.ops_counter.count import count
from aiperf_hpc.run import records
from aiperf_hpc.run.graph_store import GraphStore
from aiperf_hpc.run.manifest import RunManifest
from aiperf_hpc.run.paths import RunPaths, seed_of
from aiperf_hpc.trial import (
    Hyperparameters,
    JobPhase,
    Machine,
    RoundPhase,
    TimePhase,
    TrialState,
)

START = 1_750_000_000.0
UPTIME = 4321.0
"""Seconds that each host has been up for when the run starts."""
NAME = "@"
"""The stand-in for the replica's name until a copy is written."""

DATASET = PINNED["digits"]
EPOCHS = (6, 6, 7, 8, 8, 8)
"""The epochs of each replica's trials: three rounds of warm-up, then one of HPO."""
WARMUP = 3
BATCH = 64
EPOCH_SECONDS, BETWEEN_SECONDS = 30.0, 3.0
CLOSING = 4
"""The last records of a replica: the end of its last trial, its time, the rest, its own end."""
SECONDS = 10.0 + sum(EPOCHS) * EPOCH_SECONDS + len(EPOCHS) * BETWEEN_SECONDS


CONFIG = validate(
    {
        "preset": "synthetic run",
        "dataset": {"name": "digits"},
        "model": {"stem": "cifar", "base_width": 4},
        "training": {"batch_size": BATCH, "precision": "fp32", "max_epochs": EPOCHS[-1]},
        "rounds": {"warmup_epochs": list(EPOCHS[:WARMUP])},
        "hpo": {"space": {"batch_size": {"choices": [32, 64, 128]}}},
        "journal": {"heartbeat_interval_seconds": EPOCH_SECONDS},
        "score": {"interval_hours": 0.05},
    },
    "synthetic_run",
)


def proposal_name(number: int) -> str:
    """Return the name of the candidate that trial ``number``, from 0 on, trains."""
    return f"{NAME}-w0-{number}"


@dataclass(frozen=True, slots=True)
class Moment:
    """An event of a replica, in seconds after its start."""

    seconds: float
    event: str
    """The event as JSON."""


class Player:
    """Records what one replica's trainer and search worker do, with the times."""

    def __init__(self, graphs: GraphStore, number: int) -> None:
        self.graphs = graphs
        self.trainer: list[Moment] = []
        self.searcher: list[Moment] = []
        self.now = 0.0
        self.graph = resnet50(DATASET.input_shape("image"), 10, stem="cifar", base_width=4)
        self.parent: str | None = None
        self.steps: tuple[Morphism, ...] = ()
        self._rng = np.random.default_rng(number)
        self._times = np.random.default_rng(0)

    def play(self, digest: str) -> None:
        """Play all rounds, and store their graphs; ``digest``: the SHA-256 of ``run.yaml``."""
        self.say(replica_started(digest), 3.0)
        self.search(records.SearchStarted(replica=NAME, worker=0, pid=400, searcher="bayesian"))
        self.say(records.DatasetLoaded(dataset=DATASET), 1.0)
        for number, limit in enumerate(EPOCHS):
            if self.parent is not None and number <= WARMUP:
                self.propose(self.parent, number)
            self.trial(number, limit)
        spent = {TimePhase.START: 3.0, TimePhase.DATA: 1.0, TimePhase.OTHER: 1.0}
        self.say(records.TimeSpent(trial=None, seconds=spent), 1.0)
        self.say(records.ReplicaEnded(reason="asked to stop"))

    def say(self, event: records.AnyEvent, after: float = 0.0) -> None:
        self.now += after * float(self._times.uniform(0.999, 1.001))  # No machine is even.
        self.trainer.append(Moment(self.now, event.model_dump_json()))

    def search(self, event: records.AnyEvent) -> None:
        self.searcher.append(Moment(self.now, event.model_dump_json()))

    def propose(self, parent: str, number: int) -> None:
        """Grow the next graph."""
        step, self.graph = draw(self.graph, self._rng)
        self.steps = (step,)
        self.search(
            records.Proposed(
                proposal=proposal_name(number),
                graph=self.graphs.save(self.graph),
                parent=parent,
                morphisms=(step.to_data(),),
                seed=seed_of(CONFIG.seed, NAME, "search", 0, number),
                seconds=1.5,
                prediction={"mean": 0.8, "deviation": 0.1},
            )
        )

    def trial(self, number: int, limit: int) -> None:
        """Record one trial from its start to its end."""
        name = f"{NAME}-t{number + 1}"
        self.say(self._started(name, number, limit), 1.0)
        self.say(records.TrainingStarted(trial=name), 1.0)
        level = float(self._rng.uniform(0.7, 0.95))
        for epoch in range(1, limit + 1):
            correct = round(DATASET.validation_samples * level * (1.0 - 2.0**-epoch))
            for event in epoch_events(name, epoch, correct):
                self.say(event, EPOCH_SECONDS / 4)
            self.say(heartbeat())
        self.say(
            records.TrialEnded(
                trial=name,
                state=TrialState.COMPLETED,
                reason="",
                predicted_accuracy=level if number < WARMUP else None,
                checkpoint=True,
            ),
            1.0,
        )
        spent = {TimePhase.BUILD: 2.0, TimePhase.TRAIN: limit * EPOCH_SECONDS, TimePhase.STORE: 1.0}
        self.say(records.TimeSpent(trial=name, seconds=spent))
        if number < WARMUP:
            self.parent = name

    def _started(self, name: str, number: int, limit: int) -> records.TrialStarted:
        graph, counted = self.graph, count(self.graph)
        return records.TrialStarted(
            trial=name,
            round=min(number, WARMUP) + 1,
            phase=RoundPhase.WARMUP if number < WARMUP else RoundPhase.HPO,
            graph=self.graphs.save(graph),
            parent=self.parent,
            proposal=None if self.parent is None else proposal_name(min(number, WARMUP)),
            morphisms=tuple(step.to_data() for step in self.steps),
            hyperparameters=Hyperparameters.model_validate(CONFIG.training, from_attributes=True),
            seed=seed_of(CONFIG.seed, NAME, "trial", number + 1),
            epoch_limit=limit,
            parameters=graph.parameter_count,
            depth=graph.depth,
            train_operations=counted.training,
            validation_operations=counted.forward,
            memory_estimate_bytes=10**8,
        )


def replica_started(digest: str) -> records.ReplicaStarted:
    """Return a replica's first record."""
    machine = Machine(
        host=f"node-{NAME}",
        cpu="Example CPU 9000",
        cores=tuple(range(8)),
        memory_bytes=2**36,
        accelerators=("Example A",) * 8,
        versions={"tensorflow": "2.18.1", "numpy": "2.0.2"},
    )
    return records.ReplicaStarted(
        replica=NAME, pid=300, engine="tensorflow", machine=machine, manifest_sha256=digest
    )


def epoch_events(trial: str, epoch: int, correct: int) -> Iterator[records.AnyEvent]:
    """Yield the records of one epoch: its samples, and their evaluation."""
    whole, tested = DATASET.train_samples, DATASET.validation_samples
    half = whole // 2 // BATCH * BATCH
    for train, validation in ((half, 0), (whole - half, 0), (0, tested)):
        yield records.Progress(
            trial=trial, epoch=epoch, train_samples=train, validation_samples=validation
        )
    yield records.Evaluated(
        trial=trial,
        epoch=epoch,
        learning_rate=0.1 / epoch,
        train_loss=2.3456789 / epoch,
        validation_loss=2.4567891 / epoch,
        sums={"correct": correct},
        samples=tested,
    )


def heartbeat() -> records.Heartbeat:
    """Return a replica's heartbeat."""
    return records.Heartbeat(
        phase=TimePhase.TRAIN, cpu_percent=187.5, memory_bytes=3 * 2**30, storage_wait_seconds=0.0
    )


def draw(graph: Graph, rng: np.random.Generator) -> tuple[Morphism, Graph]:
    """Return a morphism of any kind that keeps the graph small, and the child."""
    for kind in rng.permutation(sorted(MORPHISMS)):
        try:
            morphism = MORPHISMS[str(kind)].sample(graph, rng)
        except MorphismError:
            continue
        child = morphism.child(graph)
        if child.parameter_count < 8_000_000:
            return morphism, child
    raise AssertionError("no morphism applies")


def lines_of(moments: Sequence[Moment], replica: str, start: float, seq: int = 0) -> str:
    """Return the journal's lines of ``moments``, under a replica's name."""
    lines = [
        f'{{"v":1,"seq":{number},"utc":{start + moment.seconds!r},'
        f'"mono":{UPTIME + moment.seconds!r},"event":{moment.event}}}\n'
        for number, moment in enumerate(moments, seq)
    ]
    text = "".join(lines)
    for kind, number in ((("trial",), len(EPOCHS)), (("search", 0), WARMUP)):
        for each in range(1, number + 1):
            made = seed_of(CONFIG.seed, NAME, *kind, each)
            own = seed_of(CONFIG.seed, replica, *kind, each)
            text = text.replace(f'"seed":{made},', f'"seed":{own},')
    return text.replace(NAME, replica)


def write_copy(path: Path, moments: Sequence[Moment], replica: str, start: float) -> int:
    """Write a journal of ``moments`` under a replica's name; return how many records."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(lines_of(moments, replica, start), "utf-8")
    return len(moments)


def primary_moments(digest: str, replicas: int, hours: float, ended: bool) -> Iterator[Moment]:
    """Yield the primary's events; without heartbeats and an end unless the run has ended."""
    names = [f"r{number}" for number in range(replicas)]
    started = records.RunStarted(
        run_id=f"synthetic-{replicas}n",
        nodes=replicas,
        hours=hours,
        launcher="local",
        host="head",
        pid=2**22,
        manifest_sha256=digest,
    )
    launched = (records.ReplicaLaunched(replica=name, job=name) for name in names)
    running = (records.JobState(replica=n, phase=JobPhase.RUNNING, node=n) for n in names)
    for event in (started, *launched, *running):
        yield Moment(0.0, event.model_dump_json())
    if ended:
        end, beat = hours * 3600.0, records.PrimaryHeartbeat().model_dump_json()
        for number in range(1, math.ceil(end / EPOCH_SECONDS)):
            yield Moment(number * EPOCH_SECONDS, beat)
        done = (records.JobState(replica=n, phase=JobPhase.DONE, node=n) for n in names)
        for event in (*done, records.RunEnded(reason="the run's time is over")):
            yield Moment(end, event.model_dump_json())


@dataclass(frozen=True, slots=True)
class Written:
    """A run that was written."""

    paths: RunPaths
    records: int
    lines: dict[str, int]
    """How many lines each replica's trainer has written."""


def write_run(
    root: Path,
    replicas: int,
    *,
    distinct: int = 8,
    start: float = START,
    ended: bool = True,
    hours: float = (SECONDS + 60.0) / 3600.0,
) -> Written:
    """Write a run.

    Args:
        root: an empty folder.
        replicas: how many.
        distinct: how many of them are played; the others are copies.
        start: UTC seconds.
        ended: whether the run is finished; otherwise each replica is in its last trial.
        hours: how long the run is.
    """
    paths = RunPaths(root)
    chosen = RunManifest(
        schema_version=1,
        run_id=f"synthetic-{replicas}n",
        nodes=replicas,
        hours=hours,
        launcher="local",
        versions={"aiperf-hpc": "0.1.0"},
        commit=None,
        config=CONFIG,
    )
    chosen.save(paths)
    digest, graphs = paths.manifest_digest(), GraphStore(paths)
    primary = list(primary_moments(digest, replicas, hours, ended))
    written = write_copy(paths.primary_journal, primary, "primary", start)
    players = [Player(graphs, number) for number in range(min(distinct, replicas))]
    for player in players:
        player.play(digest)
    lines = {}
    for number in range(replicas):
        name, player = f"r{number}", players[number % len(players)]
        late = start + 50.0 * number / replicas
        moments = player.trainer if ended else player.trainer[:-CLOSING]
        lines[name] = write_copy(paths.replica_journal(name), moments, name, late)
        written += lines[name]
        written += write_copy(paths.search_journal(name, 0), player.searcher, name, late)
    return Written(paths, written, lines)


def main() -> None:
    """Write a run."""
    parser = argparse.ArgumentParser(description="Write a synthetic run.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--replicas", type=int, default=4096)
    parser.add_argument("--distinct", type=int, default=8, help="replicas that are no copies")
    options = parser.parse_args()
    written = write_run(options.folder, options.replicas, distinct=options.distinct)
    print(f"{written.records} records in {written.paths.root}")


if __name__ == "__main__":
    main()
