"""Profiling of a network's training steps, timed with and without the framework's profiler.

    python -m aiperf_hpc.replica.profiling --out DIR

Reads the request of ``aiperf profile`` from standard input.
"""

from __future__ import annotations

import itertools
import math
import os
import socket
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from aiperf_hpc.config import RunConfig
from aiperf_hpc.errors import EngineError, OutOfMemoryError, UsageError
from aiperf_hpc.graph import Graph
from aiperf_hpc.host.machine import available_bytes
from aiperf_hpc.morphism.weights.weight_file import initial_weights
from aiperf_hpc.ops_counter.memory import training_bytes
from aiperf_hpc.replica.data import load_dataset
from aiperf_hpc.replica.data.base import Batch
from aiperf_hpc.replica.engines import engine_for
from aiperf_hpc.replica.engines.base import Engine, Network, NetworkState
from aiperf_hpc.replica.engines.profiling import Recording, load_profiler
from aiperf_hpc.replica.request_process import answer
from aiperf_hpc.replica.training.trial import configured_hyperparameters
from aiperf_hpc.run.paths import write_whole
from aiperf_hpc.run.replica_requests import Profile, ProfileRequest, by_category
from aiperf_hpc.trial import DatasetInfo, Hyperparameters, TensorSpec
from aiperf_hpc.workloads.registry import initial_graph

WARM_UP = 2
"""Warm-up steps before timing: the first steps choose kernels and allocate memory."""
BATCHES = 4
"""Number of prepared batches, which are reused."""
_MEBI = 2**20


class Subject(NamedTuple):
    """The network to profile, and its engine."""

    engine: Engine
    dataset: DatasetInfo
    graph: Graph
    used: Hyperparameters
    cores: int


def profile_steps(request: ProfileRequest, folder: Path) -> Profile:
    """Build the network and profile its training.

    The weights are initial and the learning rate is 0, so nothing diverges; the duration of a step
    does not depend on them. Batches are in memory and one rank trains, so a profile contains
    neither input nor all-reduce.

    Raises:
        EngineError: the network cannot be built, trained or profiled here.
        DatasetError: the dataset cannot be read.
        GraphError: there is no such network.
        UsageError: the dataset has no such batch.
    """
    record = load_profiler(request.config.engine.name)
    subject = _subject(request)
    _require_memory(subject, request.config)
    batches = _batches(request, subject)
    weights = initial_weights(subject.graph, np.random.default_rng(request.config.seed))
    network = subject.engine.build(NetworkState(subject.graph, weights, subject.used))
    network.warm(subject.used.batch_size)
    _train(network, batches, WARM_UP)

    def steps() -> float:
        begun = time.perf_counter()
        _train(network, batches, request.steps)
        return time.perf_counter() - begun

    folder.mkdir(parents=True, exist_ok=True)
    alone, profiled = [steps()], list[float]()
    recording = record(lambda: profiled.append(steps()), folder)
    alone.append(steps())
    if not recording.total_seconds:
        raise EngineError(
            f"the profiler of {subject.engine.name} recorded nothing of {request.steps} steps"
        )
    if subject.engine.accelerators and recording.timed != "kernels":
        raise EngineError(
            f"the profiler of {subject.engine.name} saw no kernel on "
            f"{subject.engine.accelerators[0]}: its times would be of the host alone"
        )
    return _profile(request, subject, recording, fmean(alone), profiled[0])


def _subject(request: ProfileRequest) -> Subject:
    config, cores = request.config, len(os.sched_getaffinity(0))
    engine = engine_for(config, cores)
    dataset = request.dataset or load_dataset(config.dataset, cores, engine.name).info
    if request.graph is None:
        graph = initial_graph(config, dataset)
    else:
        graph = Graph.from_json(request.graph)
    used = request.hyperparameters or configured_hyperparameters(config.training)
    part = -(-used.batch_size // config.replica.ranks)
    used = used.model_copy(update={"batch_size": request.batch_size or part})
    return Subject(engine, dataset, graph, used, cores)


def _profile(
    request: ProfileRequest, subject: Subject, recording: Recording, alone: float, profiled: float
) -> Profile:
    """Return the profile, with the seconds of all steps without and with the profiler."""
    return Profile(
        **Profile.fields_from(subject.used),
        **Profile.fields_from(recording),
        source=request.source,
        graph=subject.graph.hash,
        trial=request.trial,
        engine=subject.engine.name,
        versions=subject.engine.versions,
        host=socket.gethostname(),
        device=", ".join(subject.engine.accelerators) or "cpu",
        cores=subject.cores,
        dataset=subject.dataset.name,
        data=request.data,
        steps=request.steps,
        steps_per_second=request.steps / alone,
        profiled_steps_per_second=request.steps / profiled,
        categories=by_category(recording.kernels, recording.total_seconds),
    )


def _require_memory(subject: Subject, config: RunConfig) -> None:
    """Reject a batch whose estimated memory is not available, as a run does."""
    used, batch_size = subject.used, subject.used.batch_size
    needed = training_bytes(subject.graph, batch_size, used.precision, used.optimizer)
    limit = config.engine.memory_limit_gib
    available = subject.engine.memory_bytes or available_bytes()
    if limit is not None:
        available = min(available, int(limit * 2**30))
    if needed > available:
        raise EngineError(
            f"a batch of {batch_size} samples needs an estimated {needed // _MEBI} MiB, "
            f"{available // _MEBI} MiB are there; lower --batch-size"
        )


def _train(network: Network, batches: list[Batch], steps: int) -> None:
    for batch in itertools.islice(itertools.cycle(batches), steps):
        network.train_step(batch, 0.0)
    network.drain_training()


def _batches(request: ProfileRequest, subject: Subject) -> list[Batch]:
    if request.data == "real":
        return _real_batches(request.config, subject.used.batch_size, subject.cores)
    dataset, size = subject.dataset, subject.used.batch_size
    return [_synthetic_batch(dataset, size, number) for number in range(BATCHES)]


def _real_batches(config: RunConfig, batch_size: int, cores: int) -> list[Batch]:
    dataset = load_dataset(config.dataset, cores, config.engine.name)
    samples = dataset.info.train_samples
    if samples < batch_size:
        raise UsageError(
            f"dataset '{dataset.info.name}' has {samples} training samples, not a batch of "
            f"{batch_size}; lower --batch-size, or use --data synthetic"
        )
    epoch = dataset.train(1, batch_size, config.seed)
    return list(itertools.islice(epoch, min(BATCHES, samples // batch_size)))


def _synthetic_batch(dataset: DatasetInfo, batch_size: int, number: int) -> Batch:
    """Return random samples in the shapes of a dataset, with evenly distributed classes."""
    rng = np.random.default_rng(number)

    def array(spec: TensorSpec, below: int) -> NDArray[np.generic]:
        shape = (batch_size, *(size or 1 for size in spec.shape))
        if spec.dtype == "float32":
            return rng.standard_normal(shape, np.float32)
        if spec.dtype == "bool":
            return np.ones(shape, np.bool_)
        values = np.arange(math.prod(shape), dtype=np.int32) % below
        return values.reshape(shape)

    inputs = {name: array(spec, 1) for name, spec in dataset.inputs.items()}
    targets = {name: array(spec, dataset.classes or 1) for name, spec in dataset.targets.items()}
    return Batch(inputs, targets)


def main(arguments: Sequence[str] | None = None) -> int:
    """Profile, write ``profile.json``, and return the exit status."""
    return answer(arguments, ProfileRequest, "aiperf_hpc.replica.profiling", _write)


def _write(request: ProfileRequest, folder: Path) -> None:
    try:
        profile = profile_steps(request, folder)
    except (MemoryError, OutOfMemoryError) as error:
        why = " ".join(str(error).split()) or "the host has no memory left"
        raise OutOfMemoryError(f"{why}; lower --batch-size") from None
    write_whole(folder / "profile.json", profile.model_dump_json(indent=1))


if __name__ == "__main__":
    sys.exit(main())
