"""``aiperf start``, and the background primary of ``--detach``."""

from __future__ import annotations

import os
import re
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Literal, NoReturn

from typer import Argument, Option

from aiperf_hpc.cli.command import command_line
from aiperf_hpc.cli.output import say, say_text
from aiperf_hpc.cli.parameters import (
    Assignments,
    Config,
    FinalJson,
    NodeRange,
    PerhapsConfig,
    SigningKey,
    Tags,
    key_of,
    nodes_named,
    option,
    value,
)
from aiperf_hpc.cli.primary import conduct_run, plan_line, take_run, where_served
from aiperf_hpc.cli.repeat import RepeatOptions, Series
from aiperf_hpc.cli.serving import ServerSecurity, arguments_of, endpoint_of, free_endpoint
from aiperf_hpc.config import RunConfig, load_config
from aiperf_hpc.errors import AIPerfError, EndedEarlyError, UsageError
from aiperf_hpc.extras import SIMULATION
from aiperf_hpc.host.machine import available_bytes
from aiperf_hpc.host.processes import Interruption, ending_early, interruptible
from aiperf_hpc.host.schedulers import SCHEDULERS
from aiperf_hpc.primary.control.prepare import (
    describe_dataset,
    make_manifest,
    make_run_directory,
    remove_run_directory,
    require_eligible,
)
from aiperf_hpc.primary.launchers.backend import backend_of
from aiperf_hpc.primary.launchers.base import crowding
from aiperf_hpc.primary.programs import start_command
from aiperf_hpc.results.report.system import read_site
from aiperf_hpc.results.views.run_catalog import RUNS
from aiperf_hpc.results.views.run_view import RunView
from aiperf_hpc.run.annotations import Annotations
from aiperf_hpc.run.history import RunHistory
from aiperf_hpc.run.manifest import RequestedLauncher, RunManifest
from aiperf_hpc.run.paths import RunPaths
from aiperf_hpc.streams import warn
from aiperf_hpc.untrusted.bounds import MOST_NAME, NAME
from aiperf_hpc.workloads.automl import WORKLOAD as AUTOML
from aiperf_hpc.workloads.registry import workload_named


@dataclass(frozen=True)
class RunOptions:
    """Options of the run and its machine."""

    nodes: Annotated[NodeRange, value("N|MIN-MAX", nodes_named)]
    """Number of nodes (GPUs with imagenet_gpu), by default one replica each; up to MAX as nodes
    become available."""
    hours: Annotated[float, value("H")]
    """Duration in hours, e.g. 0.05."""
    workload: Annotated[str | None, value("NAME")] = None
    """Workload (`aiperf workloads` lists them). Default: automl."""
    config: PerhapsConfig = None
    assignments: Assignments = None
    launcher: Annotated[
        RequestedLauncher,
        option(
            "--launcher",
            "WAY",
            "How to start the replicas. local: on this machine; "
            f"{'; '.join(s.help for s in SCHEDULERS)}; "
            f"auto: inside a job, else {' or '.join(s.title for s in SCHEDULERS)} if available, "
            "else local.",
        ),
    ] = "auto"
    run_dir: Annotated[Path | None, value("DIR", Path)] = None
    """New run directory. Default: a new folder in runs."""
    name: Annotated[str | None, value("NAME")] = None
    """Name of the run and of its new folder in runs."""
    start_when: Literal["first", "all"] = "first"
    """Start the clock with the first node, or when all replicas are ready."""
    division: Literal["closed", "open"] | None = None
    """Reject configurations that violate the division's rules."""
    system: Annotated[Path | None, value("FILE", Path)] = None
    """Description of the system; `aiperf system --template` prints a template."""


@dataclass(frozen=True)
class StartOptions:
    """Options of the start, the display and the end of a run."""

    serve: Annotated[str | None, value("[HOST:PORT]")] = None
    """Serve the run's status over REST."""
    dry_run: bool = False
    """Print what would be submitted or started."""
    tag: Tags = None
    detach: bool = False
    """Run in the background and return."""
    yes: bool = False
    """Start without confirmation, which is requested only on a terminal."""
    key: SigningKey = None
    json: FinalJson = False


def start(
    run: RunOptions, chosen: StartOptions, security: ServerSecurity, repeats: RepeatOptions
) -> int:
    """Run the benchmark.

    Each node runs a replica that searches for networks and trains them until the run ends. With the
    --workload of another benchmark, it trains the network of that benchmark to its target. The
    score is the number of operations per second. Without --detach, progress is displayed until the
    run ends. The first Ctrl-C stops the run gracefully, the second immediately. Requires an engine
    (extra `cpu`, `cuda` or `torch`) and, for several ranks, a collective, e.g. `mpi`.

    Examples:
      $ aiperf start --nodes 2 --hours 0.05
      $ aiperf start --nodes 4 --hours 1 --config imagenet --set dataset.path=/data/imagenet
      $ aiperf start --nodes 16 --hours 1 --set slurm.partition=gpu --dry-run
      $ aiperf start --nodes 8-64 --hours 4 --set slurm.partition=gpu
      $ aiperf start --nodes 2 --hours 1 --name baseline --tag v100
      $ aiperf start --nodes 2 --hours 1 --repeat 5
      $ aiperf start --workload cosmoflow --nodes 4 --hours 8 --set dataset.path=/data/cosmoflow
      $ aiperf start --nodes 4 --hours 1 --config imagenet --division closed
    """
    repeats.check(detach=chosen.detach)
    key_of(chosen.key)  # First, because a run must not end without its signature.
    Annotations().changed(chosen.tag or ())
    source = _source(run.workload, run.config)
    config = load_config(source, run.assignments or ())
    if run.workload not in (None, config.workload):
        raise UsageError(
            f"--workload {run.workload}: {source} is of the workload {config.workload}; leave "
            "one of them out"
        )
    manifest = _manifest(run, config, dry=chosen.dry_run)
    cores = len(os.sched_getaffinity(0))
    if manifest.launcher == "local" and (crowd := crowding(manifest, cores, available_bytes())):
        warn(crowd)
    folder = _folder(run, manifest)
    configs = repeats.configurations(source, run.assignments or ())
    if chosen.dry_run:
        backend = backend_of(manifest.launcher)
        say_text(backend.dry_run(manifest, RunPaths(folder.resolve())))
        if repeats.repeat is not None:
            say(repeats.seeds_line(configs))
        return 0
    if repeats.repeat is None:
        return _start_manifest(chosen, security, manifest, folder)

    same = replace(run, launcher=manifest.launcher)  # Reported once.

    def start_run(config: RunConfig, folder: Path, asks: bool) -> int:
        each = replace(chosen, yes=chosen.yes or not asks)
        return _start_manifest(each, security, _manifest(same, config), folder)

    here, key = manifest.launcher == "local", key_of(chosen.key)
    series = Series(folder, configs, repeats.same_seed, start_run, here, key)
    return series.run(as_json=chosen.json)


def _folder(run: RunOptions, manifest: RunManifest) -> Path:
    if run.name is None:
        return run.run_dir or RUNS / manifest.run_id
    if run.run_dir is not None:
        raise UsageError("--name is a folder in runs, --run-dir any folder; give one of them")
    if not re.fullmatch(NAME, run.name) or len(run.name) > MOST_NAME or run.name == "last":
        raise UsageError(
            f"--name {run.name[:MOST_NAME]}: give at most {MOST_NAME} characters without a slash "
            "or a dot first; 'last' stands for the latest run"
        )
    return RUNS / run.name


def _source(workload: str | None, config: str | None) -> str:
    """Return the configuration file or preset of a run, by default the workload's first preset.

    Raises:
        ConfigError: there is no such workload.
    """
    named_workload = workload_named(AUTOML.name if workload is None else workload)
    return config or named_workload.presets[0]


def _manifest(run: RunOptions, config: RunConfig, *, dry: bool = False) -> RunManifest:
    site = None if run.system is None else read_site(run.system)
    least, most = run.nodes
    manifest = make_manifest(config, least, run.hours, run.launcher, dry=dry, nodes_max=most)
    values = {"site": site, "command": command_line(), "division": run.division}
    manifest = manifest.model_copy(update={**values, "start_when": run.start_when})
    require_eligible(manifest)
    return manifest


@ending_early(lambda: "interrupted before the run started; nothing is left behind")
@interruptible()  # Until the controller handles signals.
def _start_manifest(
    chosen: StartOptions, security: ServerSecurity, manifest: RunManifest, folder: Path
) -> int:
    dataset = describe_dataset(manifest.config.dataset)
    require_eligible(manifest, dataset)
    if not chosen.yes and sys.stdin.isatty() and not chosen.json:
        say(plan_line(manifest, folder))
        if input("Start? [Y/n] ").strip().lower() not in ("", "y", "yes"):
            raise UsageError("not started")
    endpoint = None if chosen.serve is None else free_endpoint(chosen.serve, security)
    tags = Annotations().changed(chosen.tag) if chosen.tag else None
    paths = make_run_directory(manifest, folder, dataset, tags)
    try:
        backend_of(manifest.launcher).wait()  # Some runs start their clock immediately.
        if chosen.detach:
            return _detach(paths, chosen, security)
        with take_run(RunHistory(paths), manifest, "start") as claim:
            key = key_of(chosen.key)
            return conduct_run(manifest, paths, endpoint, claim, as_json=chosen.json, key=key)
    except (Interruption, UsageError) as error:
        journal = paths.primary_journal
        if not journal.exists() or journal.stat().st_size == 0:  # Before the clock's start.
            remove_run_directory(paths)
        elif isinstance(error, Interruption):
            message = f"interrupted; `aiperf report {paths.root}` shows the progress of the run"
            raise EndedEarlyError(message, error.exit_status) from None
        raise


def _detach(paths: RunPaths, chosen: StartOptions, security: ServerSecurity) -> int:
    """Start a background primary for the run, and return when the run's clock has started."""
    options = [] if chosen.serve is None else [f"--serve={chosen.serve}", *arguments_of(security)]
    options += [] if chosen.key is None else [f"--key={chosen.key.absolute()}"]
    view = RunView(paths)
    process = start_command("conduct", paths, options)
    continues = f"the run continues in the background as process {process.pid}"
    interrupted = f"interrupted; {continues}; `aiperf stop {paths.root}` ends it"
    with ending_early(lambda: interrupted):
        while view.history.run_started is None:
            if process.poll() is not None:
                raise AIPerfError(
                    f"the primary exited immediately; its output is in {paths.primary_log}"
                )
            time.sleep(0.1)
            view.refresh()
    say(f"running in the background as process {process.pid}; `aiperf status {paths.root}`")
    if (url := view.status().service_url) is not None:
        say(where_served(url))
    return 0


def conduct(
    run: Annotated[Path, Argument(parser=Path)],
    security: ServerSecurity,
    serve: Annotated[str | None, Option("--serve")] = None,
    key: SigningKey = None,
) -> int:
    """Conduct a detached run; used by `start --detach`."""
    paths = RunPaths(run)
    endpoint = None if serve is None else endpoint_of(serve, security)
    manifest, history = RunManifest.load(paths), RunHistory(paths)
    with take_run(history, manifest, "conduct") as claim:
        if history.run_started is not None:
            raise UsageError(f"{paths.root}: this run was already started; see `aiperf resume`")
        own = key_of(key)
        return conduct_run(manifest, paths, endpoint, claim, as_json=False, key=own)


def simulate(
    run: Annotated[Path, Argument(metavar="RUN_DIR", parser=Path, help="New run directory.")],
    nodes: Annotated[int, option("--nodes", "N", "Number of simulated nodes.")],
    hours: Annotated[float, option("--hours", "H", "Duration in simulated hours.")],
    config: Config = "simulated",
    assignments: Assignments = None,
) -> NoReturn:
    """Run the benchmark on a simulated machine.

    The primary and the replicas run their real code with a simulated clock and simulated training.
    Requires the extra `simulate`.

    Examples:
      $ aiperf simulate runs/big --nodes 4096 --hours 1
    """
    if not SIMULATION.installed:
        name, remedy = SIMULATION.package, SIMULATION.remedy
        raise UsageError(f"a simulation needs the package '{name}': {remedy}")
    from aiperf_hpc.simulation.main import simulate_and_report

    with ending_early(lambda: "interrupted"), interruptible():
        simulate_and_report(load_config(config, assignments or ()), run, nodes, hours)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)  # Skips the slow destruction of thousands of replicas; all records are written.
