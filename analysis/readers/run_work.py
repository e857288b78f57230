"""What the workers of one of our runs computed, moved and read, as its records tell it."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Literal, NamedTuple

from aiperf_hpc.analysis.metric import NotMeasuredError
from aiperf_hpc.errors import GraphError
from aiperf_hpc.graph import Graph
from aiperf_hpc.results.views.run_view import RunView
from aiperf_hpc.run.history import ReplicaHistory, Trial
from aiperf_hpc.run.paths import RunPaths
from aiperf_hpc.run.records import ReplicaStarted
from aiperf_hpc.trial import DatasetInfo, Machine, TensorSpec, TimePhase

_STREAMED = {"imagenet"}
"""The datasets whose files are read while they are trained on; others are made up, or loaded."""
_BYTES = {"float32": 4, "int32": 4, "bool": 1}


class TrialWork(NamedTuple):
    """What one trial executed, of all workers of its replica together."""

    graph: str
    """The hash of what it trained."""
    precision: str
    optimizer: str
    batch_size: int
    samples: int
    """Of training."""
    operations: int
    """Counted operations of all these samples."""
    seconds: float
    """In which it trained: waiting for data, evaluation and storing are not among them."""
    read_samples: int
    """Of training and of validation."""
    read_seconds: float
    """In which it trained, evaluated and waited for data."""


class SampleBytes(NamedTuple):
    """What a sample takes."""

    bytes: float
    of: Literal["files", "tensors"]
    """Whether these are the bytes of its file, or of what is made of it: files may be smaller."""


class RunWork(NamedTuple):
    """The work of a run."""

    engine: str
    ranks: int
    """The workers of each replica."""
    workers: int
    """Of all replicas."""
    workers_on_host: int
    """The most that share a host."""
    several_hosts: bool
    """Whether the ranks of one replica are on several."""
    collective: str
    machine: Machine
    """The first replica's first worker's."""
    tf32: bool
    """Whether its framework may compute products of fp32 in TF32."""
    epoch_samples: int
    sample: SampleBytes | None
    """None where samples differ in size."""
    from_storage: str
    """Why no sample is read from storage while it is trained on; empty where they are."""
    trials: tuple[TrialWork, ...]
    problems: tuple[str, ...]


class OpenRun(NamedTuple):
    """A run's work, and its graphs."""

    view: RunView
    work: RunWork

    def graph(self, graph_hash: str) -> Graph:
        """Return a graph that was trained. Raises NotMeasuredError: it is lost."""
        try:
            return self.view.run_graphs.load(graph_hash)
        except GraphError as error:
            raise NotMeasuredError(str(error)) from None


def open_run(path: Path) -> OpenRun:
    """Read a run directory.

    Raises:
        NotMeasuredError: its records do not tell what it computed in which time.
        AIPerfError: it cannot be read.
    """
    view = RunView(RunPaths(path))
    view.refresh()
    return OpenRun(view, _work(view))


def _work(view: RunView) -> RunWork:
    config, replicas = view.manifest.config, view.history.replicas
    if view.manifest.simulated or config.engine.name == "simulated":
        raise NotMeasuredError("its time is that of a simulation")
    known = [r for r in replicas.values() if r.started is not None and r.dataset is not None]
    if not known:
        raise NotMeasuredError("no replica has said that it loaded its dataset")
    trials = tuple(_trial_work(t) for t in view.history.trials.values() if _timed(t))
    if not trials:
        raise NotMeasuredError("no trial's record says how long it trained")
    started, dataset = known[0].started, known[0].dataset
    assert started is not None  # noqa: S101 -- those were chosen
    assert dataset is not None  # noqa: S101
    ranks = max(1, len(started.hosts))
    return RunWork(
        engine=started.engine,
        ranks=ranks,
        workers=ranks * len(known),
        workers_on_host=_most_on_a_host([r.started for r in known if r.started is not None]),
        several_hosts=len(set(started.hosts)) > 1,
        collective=config.replica.collective,
        machine=started.machine,
        tf32=_uses_tf32(known[0], started.engine),
        epoch_samples=dataset.train_samples,
        sample=_sample_bytes(dataset, known[0]),
        from_storage=_from_storage(view, dataset),
        trials=trials,
        problems=tuple(_problems(view, known)),
    )


def _uses_tf32(replica: ReplicaHistory, engine: str) -> bool:
    """Return whether fp32 is TF32 where the device can, by what the ranks reported.

    Runs of versions that did not report it left TensorFlow its default, which is TF32.
    """
    reported = [rank.process.arithmetic for rank in replica.described.values()]
    if not reported:
        return engine == "tensorflow"
    return any("tf32" in each.values() for each in reported)


def _timed(trial: Trial) -> bool:
    return trial.train_samples > 0 and trial.seconds.get(TimePhase.TRAIN, 0.0) > 0.0


def _trial_work(trial: Trial) -> TrialWork:
    used, seconds = trial.started.hyperparameters, trial.seconds
    phases = (TimePhase.TRAIN, TimePhase.EVALUATE, TimePhase.DATA)
    return TrialWork(
        graph=trial.started.graph,
        precision=used.precision,
        optimizer=used.optimizer,
        batch_size=used.batch_size,
        samples=trial.train_samples,
        operations=trial.train_samples * trial.started.train_operations,
        seconds=seconds[TimePhase.TRAIN],
        read_samples=trial.train_samples + trial.validation_samples,
        read_seconds=sum(seconds.get(phase, 0.0) for phase in phases),
    )


def _most_on_a_host(started: list[ReplicaStarted]) -> int:
    hosts = [host for each in started for host in (each.hosts or (each.machine.host,))]
    return max(hosts.count(host) for host in hosts)


def _sample_bytes(dataset: DatasetInfo, replica: ReplicaHistory) -> SampleBytes | None:
    """Return a sample's bytes: of the files where a copy of them was counted."""
    if replica.staged_bytes:
        samples = dataset.train_samples + dataset.validation_samples
        return SampleBytes(replica.staged_bytes / samples, "files")
    sizes = [_tensor_bytes(spec) for spec in (*dataset.inputs.values(), *dataset.targets.values())]
    known = [size for size in sizes if size is not None]
    return SampleBytes(sum(known), "tensors") if len(known) == len(sizes) else None


def _tensor_bytes(spec: TensorSpec) -> int | None:
    sizes = [size for size in spec.shape if size is not None]
    return None if len(sizes) < len(spec.shape) else _BYTES[spec.dtype] * math.prod(sizes)


def _from_storage(view: RunView, dataset: DatasetInfo) -> str:
    settings = view.manifest.config.dataset
    if settings.name not in _STREAMED:
        return f"the dataset {dataset.name} is in memory"
    if settings.cache == "memory":
        return "the dataset was brought to memory first"
    return ""


def _problems(view: RunView, replicas: list[ReplicaHistory]) -> Iterator[str]:
    untimed = sum(t.train_samples > 0 and not _timed(t) for t in view.history.trials.values())
    if untimed:
        yield f"{untimed} trials were cut off, and no record says how long they trained"
    machines = [r.started.machine for r in replicas if r.started is not None]
    if len({(m.cpu, len(m.cores), m.accelerators) for m in machines}) > 1:
        yield "its replicas ran on different machines; the first one's is taken for all"
