"""A run that is official in the closed division, but for what a test rewrites of its records."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.support.clock import Clock
from tests.support.host_clocks import clocks
from tests.support.run_writer import (
    DEEPER,
    HYPERPARAMETERS,
    MACHINE,
    START,
    evaluated,
    progress,
    proposed,
    replica_started,
    trial_ended,
    trial_started,
)

from aiperf_hpc.config import DatasetConfig, RunConfig
from aiperf_hpc.datasets import ARCHIVES
from aiperf_hpc.integrity.release import FILES
from aiperf_hpc.ops_counter.score import end_of, score_at
from aiperf_hpc.rules.validity.evidence import RunEvidence
from aiperf_hpc.rules.validity.search import RESNET50
from aiperf_hpc.run import records
from aiperf_hpc.run.history import RunHistory
from aiperf_hpc.run.journal import JournalWriter
from aiperf_hpc.run.manifest import RULES, RunManifest
from aiperf_hpc.run.paths import RunPaths
from aiperf_hpc.system.description import (
    Accelerator,
    NodeDescription,
    ProcessDescription,
    RankDescription,
)
from aiperf_hpc.trial import DatasetInfo, DevicePeak, RoundPhase, TimePhase

IMAGENET = DatasetInfo.of_labelled_images(
    name="imagenet",
    sha256="ab" * 32,
    classes=1000,
    shape=(224, 224, 3),
    train_samples=1_281_167,
    validation_samples=50_000,
).model_copy(update={"archives": dict(ARCHIVES["imagenet"])})
VERSION = "1.0.0"
RELEASE = f"{'0' * 64}  __init__.py\n"
RELEASED = hashlib.sha256(RELEASE.encode()).hexdigest()
MANIFEST = RunManifest(
    run_id="official",
    nodes=2,
    hours=1.0,
    launcher="slurm",
    versions={"aiperf-hpc": VERSION, FILES: RELEASED},
    commit="0123456789abcdef0123456789abcdef01234567",
    rules=RULES,
    config=RunConfig(preset="imagenet", dataset=DatasetConfig(name="imagenet", path=Path("/d"))),
)
PEAK = DevicePeak(
    device="cuda:0", model="A", precision="bf16", rates={"matrix product": 100.0}, seconds=4.0
)
LATER = START + 4000.0
"""When the run is judged, UTC seconds."""
SECONDS, BEAT = 3600.0, 30.0
ROUNDS = ((1, 15), (2, 30), (3, 45), (4, 60), (4, 60), (4, 60), (5, 60), (5, 60))
"""The round of each trial of a replica, and its epochs at most."""

Rewrite = Callable[[str, float, records.AnyEvent], records.AnyEvent | None]
"""What becomes of a writer's event at a time, seconds after the start; None: it is not there."""


def as_it_is(_: str, __: float, event: records.AnyEvent) -> records.AnyEvent:
    """Keep an event."""
    return event


class _Journal:
    def __init__(self, path: Path, who: str, rewrite: Rewrite) -> None:
        self._clock = Clock(START)
        self._who, self._rewrite = who, rewrite
        self._writer = JournalWriter(path, clock=self._clock, sync=lambda _: None)

    def __call__(self, seconds: float, event: records.AnyEvent) -> None:
        self._clock.now = START + seconds
        changed = self._rewrite(self._who, seconds, event)
        if changed is not None:
            self._writer.append(changed)

    def close(self) -> None:
        self._writer.close()


def write_release(folder: Path) -> None:
    """Write the list of files of the release that made the run."""
    (folder / f"{VERSION}.sha256").write_text(RELEASE)


def write_official_run(root: Path, rewrite: Rewrite = as_it_is) -> RunPaths:
    """Write a run of two replicas that keeps every rule."""
    paths = RunPaths(root)
    MANIFEST.save(paths)
    names = ("r0", "r1")
    primary = _Journal(paths.primary_journal, "primary", rewrite)
    primary(0, records.RunStarted(run_id="official", nodes=2, hours=1.0, launcher="slurm",
                                  host="h", pid=1))  # fmt: skip
    primary(0, clocks(START + 0, 0))
    for name in names:
        primary(0, records.ReplicaLaunched(replica=name, job="1"))
        _replica(paths, name, rewrite)
    for name in names:
        primary(SECONDS, records.ReplicaExited(replica=name, status=0))
    primary(SECONDS, clocks(START + SECONDS, SECONDS))
    primary(SECONDS, records.RunEnded(reason="time is up"))
    primary.close()
    return paths


def official_evidence(root: Path, rewrite: Rewrite = as_it_is) -> RunEvidence:
    """Return what the rules look at of such a run, minutes after its end."""
    history = RunHistory.read(write_official_run(root, rewrite))
    final = score_at(history, end_of(history))
    return RunEvidence(history, MANIFEST, final, LATER)


def _replica(paths: RunPaths, name: str, rewrite: Rewrite) -> None:
    say = _Journal(paths.replica_journal(name), name, rewrite)
    search = _Journal(paths.search_journal(name, 0), name, rewrite)
    say(1, _started(name))
    say(1, records.SystemDescribed(rank=0, description=_described(name)))
    say(1, clocks(START + 1, 1))
    say(2, records.PeakMeasured(rank=0, peak=PEAK))
    say(2, records.ModulesImported(rank=0, package_sha256=RELEASED))
    say(2, records.DatasetLoaded(dataset=IMAGENET))
    beats = [BEAT * number for number in range(1, int(SECONDS / BEAT))]
    each = len(beats) // len(ROUNDS)
    for number, (round_, limit) in enumerate(ROUNDS):
        trial = f"{name}-t{number}"
        own = beats[number * each : (number + 1) * each]
        if round_ > 1:
            search(own[0] - 1, _proposed(name, number))
        say(own[0], _trial(name, number, round_, limit))
        for beat in own:
            say(beat, records.Heartbeat(phase=TimePhase.TRAIN, cpu_percent=1, memory_bytes=1))
            say(beat, progress(trial, train=100))
        say(own[-1], evaluated(trial, correct=40_000, samples=50_000))
        say(own[-1], _kept(trial))
        say(own[-1], trial_ended(trial))
    for beat in beats[len(ROUNDS) * each :]:
        say(beat, records.Heartbeat(phase=TimePhase.TRAIN, cpu_percent=1, memory_bytes=1))
    say(SECONDS, clocks(START + SECONDS, SECONDS))
    say(SECONDS, records.ReplicaEnded(reason="the run's time is up"))
    say.close()
    search.close()


def _started(name: str) -> records.ReplicaStarted:
    versions = {FILES: RELEASED, "torch": "2.5"}
    machine = MACHINE.model_copy(
        update={"host": f"n-{name}", "accelerators": ("A",), "versions": versions}
    )
    return replica_started(name).model_copy(update={"engine": "torch", "machine": machine})


def _described(name: str) -> RankDescription:
    accelerator = Accelerator(vendor="Example", model="A", index=0)
    return RankDescription(
        host=f"n-{name}",
        process=ProcessDescription(cores=(0,), environment={"OMP_NUM_THREADS": "8"}),
        node=NodeDescription(accelerators=(accelerator,)),
    )


def _kept(trial: str) -> records.BestEpochSaved:
    file = records.SavedFile(bytes=1, sha256="0" * 64)
    return records.BestEpochSaved(trial=trial, epoch=1, start_checkpoint=file, end_checkpoint=file)


def _graph(number: int) -> str:
    return RESNET50 if number == 0 else f"graph{number}"


def _proposed(name: str, number: int) -> records.Proposed:
    return proposed(f"{name}-p{number}", _graph(number), parent=f"{name}-t0")


def _trial(name: str, number: int, round_: int, limit: int) -> records.TrialStarted:
    hpo, first = round_ > 3, f"{name}-t0"
    grown: dict[str, Any] = {
        "parent": first,
        "proposal": f"{name}-p{number}",
        "morphisms": (DEEPER,),
    }
    return trial_started(
        f"{name}-t{number}",
        _graph(number),
        round=round_,
        phase=RoundPhase.HPO if hpo else RoundPhase.WARMUP,
        hyperparameters=HYPERPARAMETERS.model_copy(update={"batch_size": 320 if hpo else 448}),
        epoch_limit=limit,
        train_operations=3,
        **(grown if round_ > 1 else {}),
    )
