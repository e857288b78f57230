"""``aiperf profile``: a kernel breakdown by the framework's profiler.

``replica/profiling.py`` trains and profiles in a separate process: no framework is imported here.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

from aiperf_hpc.config import RunConfig, load_config
from aiperf_hpc.config.loading import validate
from aiperf_hpc.config.sections import ReplicaConfig
from aiperf_hpc.errors import GraphError, UsageError
from aiperf_hpc.formatting import percent
from aiperf_hpc.graph import Graph
from aiperf_hpc.host.processes import interruptible, run_in_session
from aiperf_hpc.results.views.run_view import RunView
from aiperf_hpc.run.history import Trial
from aiperf_hpc.run.paths import RunPaths
from aiperf_hpc.run.replica_requests import KernelCategory, Profile, ProfileRequest
from aiperf_hpc.trial import DatasetInfo
from aiperf_hpc.workloads.registry import initial_graph, missing, workload_of

INITIAL = "initial"
STEPS, MOST_STEPS = 10, 10_000
TIME_LIMIT = 3600.0
"""Time limit of the process in seconds."""
TOP = 12
"""Number of kernels in the table."""


class Choice(NamedTuple):
    """User's options besides the source of the network."""

    steps: int = STEPS
    batch_size: int | None = None
    engine: str | None = None
    data: Literal["synthetic", "real"] = "synthetic"


def of_run(run: Path, wanted: str | None, choice: Choice) -> ProfileRequest:
    """Return the profiling request for a graph of a run.

    Args:
        run: run directory.
        wanted: hash of a trained graph, or a prefix of it, or ``initial``; by default the graph
            with the best evaluation.
        choice: further options.

    Raises:
        UsageError: there is no such run, graph or engine.
    """
    view = RunView.read(RunPaths(run))
    dataset = _dataset(view)
    config = with_engine(view.manifest.config, choice.engine)
    graph, trial = _of_run(view, wanted, dataset)
    found = _request(str(run), config, choice)
    own = {"graph": graph.to_json(), "dataset": dataset}
    if trial is not None:
        own |= {"trial": trial.id, "hyperparameters": trial.started.hyperparameters}
    return found.model_copy(update=own)


def of_config(
    source: str, assignments: Sequence[str], wanted: str | None, choice: Choice
) -> ProfileRequest:
    """Return the profiling request for the initial network of a configuration.

    Args:
        source: preset or file.
        assignments: overrides, each ``section.key=value``.
        wanted: ``initial`` or not given.
        choice: further options.

    Raises:
        UsageError: there is no such configuration or engine.
    """
    if wanted not in (None, INITIAL):
        raise UsageError(
            f"--graph {wanted}: a configuration has its initial network only; name a run instead"
        )
    return _request(source, with_engine(load_config(source, assignments), choice.engine), choice)


def with_engine(config: RunConfig, engine: str | None) -> RunConfig:
    """Return a configuration with another engine, if one is given, with the engine's defaults.

    Raises:
        ConfigError: the engine does not support the configuration.
    """
    if engine is None or engine == config.engine.name:
        return config
    values: dict[str, Any] = config.model_dump(mode="json")
    values["engine"] = {"name": engine, "memory_limit_gib": config.engine.memory_limit_gib}
    values["replica"]["collective"] = "mpi"  # One rank reduces nothing; support differs by engine.
    return validate(values, f"--engine {engine}")


def _request(source: str, config: RunConfig, choice: Choice) -> ProfileRequest:
    """Return the request for a configuration's initial network. Raises UsageError."""
    if not 1 <= choice.steps <= MOST_STEPS:
        raise UsageError(f"--steps {choice.steps}: from 1 to {MOST_STEPS}")
    if choice.batch_size is not None and choice.batch_size < 1:
        raise UsageError(f"--batch-size {choice.batch_size}: at least 1")
    workload_of(config)
    if config.engine.name == "simulated":
        raise UsageError(
            "engine 'simulated' computes nothing that could be profiled; "
            "use --engine torch or --engine tensorflow"
        )
    if lacking := missing(config.model_copy(update={"replica": ReplicaConfig()})):
        raise UsageError(lacking[0])
    return ProfileRequest(
        source=source,
        config=config,
        data=choice.data,
        batch_size=choice.batch_size,
        steps=choice.steps,
    )


def _dataset(view: RunView) -> DatasetInfo:
    replicas = view.history.replicas.values()
    found = (r.dataset for r in replicas if r.dataset is not None)
    dataset = next(found, view.manifest.dataset)
    if dataset is None:
        raise UsageError(f"{view.paths.root}: its records do not name its dataset; use --config")
    return dataset


def _of_run(view: RunView, wanted: str | None, dataset: DatasetInfo) -> tuple[Graph, Trial | None]:
    """Return a graph of a run with the best of the trials that trained it."""
    if wanted == INITIAL:
        graph = initial_graph(view.manifest.config, dataset)
        return graph, _best_trial(view, graph.hash)
    if wanted is None:
        best = view.history.best_until(view.until)
        if best is None:
            raise UsageError(
                f"{view.paths.root}: nothing was evaluated, so it has no best graph; "
                "use --graph initial, or --graph HASH"
            )
        trial = view.history.trials[best.trial]
        return _load(view, trial.started.graph), trial
    name = _hash(view, wanted)
    return _load(view, name), _best_trial(view, name)


def _hash(view: RunView, wanted: str) -> str:
    found = sorted(g for g in view.history.graphs if wanted and g.startswith(wanted))
    if len(found) != 1:
        what = f"{len(found)} graphs with that prefix" if found else "no such graph"
        raise UsageError(f"--graph {wanted}: {view.paths.root} has {what}; its report lists all")
    return found[0]


def _load(view: RunView, name: str) -> Graph:
    try:
        return view.run_graphs.load(name)
    except GraphError as error:
        raise UsageError(str(error)) from None


def _best_trial(view: RunView, graph: str) -> Trial | None:
    """Return the best trial of a graph, or the first if none was evaluated."""
    own = [trial for trial in view.ordered_trials() if trial.started.graph == graph]
    evaluated = [trial for trial in own if trial.best is not None]
    if not evaluated:
        return next(iter(own), None)
    return max(evaluated, key=lambda t: t.best.objective_value if t.best else 0.0)


def measure(request: ProfileRequest, folder: Path, seconds: float = TIME_LIMIT) -> Profile:
    """Profile in a process of the replica side, which creates ``folder`` and writes into it.

    The process and its children have exited when this function returns, raises or is interrupted.

    Raises:
        UsageError: profiling is not possible here, or exceeds the time limit.
    """
    command = [sys.executable, "-m", "aiperf_hpc.replica.profiling", "--out", str(folder)]
    late = (
        f"{request.steps} steps were not profiled within {{:g}} s; give fewer --steps, a smaller "
        "--batch-size or a longer --time-limit"
    )
    with interruptible():
        run_in_session(
            command, seconds, request.model_dump_json(), late=late, what="the profiled training"
        )
    return Profile.model_validate_json((folder / "profile.json").read_text("utf-8"))


def table(profile: Profile) -> Iterator[str]:
    """Yield the lines of a profile: its network, its categories, its longest kernels."""
    yield (
        f"{profile.source}, graph {profile.graph[:12]}: {profile.steps} steps of "
        f"{profile.batch_size} samples ({profile.data} data in the shapes of "
        f"'{profile.dataset}'), {profile.precision}, {profile.optimizer}"
    )
    versions = ", ".join(f"{name} {version}" for name, version in profile.versions.items())
    yield f"{profile.engine} ({versions}) on {profile.device}, {profile.cores} cores"
    change = profile.profiled_steps_per_second / profile.steps_per_second - 1.0
    yield (
        f"{profile.steps_per_second:.3g} steps/s, with the profiler "
        f"{profile.profiled_steps_per_second:.3g} ({change:+.1%})"
    )
    yield ""
    yield f"{'category':<24}{'ms/step':>10}{'share':>9}"
    for each in profile.categories:
        yield f"{each.category:<24}{_per_step(profile, each.seconds)}{percent(each.fraction, 1):>9}"
    if all(c.category is not KernelCategory.UNCATEGORIZED for c in profile.categories):
        yield f"{KernelCategory.UNCATEGORIZED:<24}{_per_step(profile, 0.0)}{percent(0.0, 1):>9}"
    yield f"{'total of the profiler':<24}{_per_step(profile, profile.total_seconds)}"
    yield ""
    what = "operator" if profile.timed == "operators" else "kernel"
    yield f"{what:<52}{'category':<22}{'calls':>8}{'ms/step':>10}{'share':>9}"
    for kernel in profile.kernels[:TOP]:
        share = percent(kernel.seconds / profile.total_seconds, 1)
        yield (
            f"{_short(kernel.name, 50):<52}{kernel.category:<22}{kernel.calls:>8}"
            f"{_per_step(profile, kernel.seconds)}{share:>9}"
        )
    if (more := len(profile.kernels) - TOP) > 0:
        yield f"and {more} more"


def _per_step(profile: Profile, seconds: float) -> str:
    return f"{1e3 * seconds / profile.steps:>10.3f}"


def _short(name: str, length: int) -> str:
    return name if len(name) <= length else f"{name[: length - 3]}..."
