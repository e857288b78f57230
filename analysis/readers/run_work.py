"""Work of the workers of an AIPerf run, from its records: operations, data movement and I/O."""

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
"""Datasets whose files are read during training; others are generated or loaded into memory."""
_BYTES = {"float32": 4, "int32": 4, "bool": 1}


class SampleBytes(NamedTuple):
    """Size of a sample in bytes."""

    bytes: float
    of: Literal["files", "tensors"]
    """Whether the size is that of the files or of the tensors; files may be smaller."""


class RunWork(NamedTuple):
    """The work of a run."""

    view: RunView
    started: ReplicaStarted
    """Start record of the first replica."""
    dataset: DatasetInfo
    ranks: int
    """Workers per replica."""
    workers: int
    """Workers of all replicas."""
    workers_on_host: int
    """Maximum number of workers per host."""
    tf32: bool
    """Whether the framework may compute fp32 products in TF32."""
    sample: SampleBytes | None
    """Size of a sample; None if samples have different sizes."""
    from_storage: str
    """Reason why samples are not read from storage during training; empty if they are."""
    trials: tuple[Trial, ...]
    """Trials whose records state their training time."""
    problems: tuple[str, ...]

    def graph(self, graph_hash: str) -> Graph:
        """Return the graph of a trial. Raises NotMeasuredError if it is lost."""
        try:
            return self.view.run_graphs.load(graph_hash)
        except GraphError as error:
            raise NotMeasuredError(str(error)) from None


def work_of(path: Path) -> RunWork:
    """Read the work of a run directory.

    Raises:
        NotMeasuredError: the records do not state the work and its time.
        AIPerfError: the run directory cannot be read.
    """
    view = RunView.read(RunPaths(path))
    if view.manifest.simulated or view.manifest.config.engine.name == "simulated":
        raise NotMeasuredError("its time is simulated")
    replicas = view.history.replicas.values()
    known = [(r, r.started, r.dataset) for r in replicas if r.started and r.dataset]
    if not known:
        raise NotMeasuredError("no replica has recorded that it loaded its dataset")
    trials = tuple(trial for trial in view.history.trials.values() if _timed(trial))
    if not trials:
        raise NotMeasuredError("no trial's record states how long it trained")
    first, started, dataset = known[0]
    all_started = [each for _, each, _ in known]
    ranks = max(1, len(started.hosts))
    return RunWork(
        view=view,
        started=started,
        dataset=dataset,
        ranks=ranks,
        workers=ranks * len(known),
        workers_on_host=_most_on_a_host(all_started),
        tf32=_uses_tf32(first, started.engine),
        sample=_sample_bytes(dataset, first),
        from_storage=_from_storage(view, dataset),
        trials=trials,
        problems=tuple(_problems(view, [each.machine for each in all_started])),
    )


def _uses_tf32(replica: ReplicaHistory, engine: str) -> bool:
    """Return whether fp32 products use TF32 on capable devices, according to the ranks.

    Versions that did not report it used TensorFlow's default, which is TF32.
    """
    reported = [rank.process.arithmetic for rank in replica.described.values()]
    if not reported:
        return engine == "tensorflow"
    return any("tf32" in each.values() for each in reported)


def _timed(trial: Trial) -> bool:
    return trial.train_samples > 0 and trial.seconds.get(TimePhase.TRAIN, 0.0) > 0.0


def _most_on_a_host(started: list[ReplicaStarted]) -> int:
    hosts = [host for each in started for host in (each.hosts or (each.machine.host,))]
    return max(hosts.count(host) for host in hosts)


def _sample_bytes(dataset: DatasetInfo, replica: ReplicaHistory) -> SampleBytes | None:
    """Return a sample's bytes, from the files if their copy was counted."""
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
        return "the dataset was loaded into memory first"
    return ""


def _problems(view: RunView, machines: list[Machine]) -> Iterator[str]:
    untimed = sum(t.train_samples > 0 and not _timed(t) for t in view.history.trials.values())
    if untimed:
        yield f"{untimed} trials were cut off, and no record states how long they trained"
    if len({(m.cpu, len(m.cores), m.accelerators) for m in machines}) > 1:
        yield "its replicas ran on different machines; the first machine is assumed for all"
