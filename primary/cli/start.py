"""``aiperf start``, and the primary in the background that ``--detach`` starts."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from pathlib import Path

from aiperf_hpc.config import RunConfig, load_config, preset_names
from aiperf_hpc.errors import AIPerfError, EndedEarlyError, UsageError
from aiperf_hpc.machine import available_bytes
from aiperf_hpc.primary.cli.conduct import (
    address_of,
    conduct_run,
    free_address,
    plan_line,
    take_run,
    where_served,
)
from aiperf_hpc.primary.cli.output import say
from aiperf_hpc.primary.cli.parser import Commands
from aiperf_hpc.primary.cli.repeat import add_repeat, check_repeat, repeat, seeds_line
from aiperf_hpc.primary.control.prepare import (
    check_engine,
    describe_dataset,
    make_manifest,
    make_run_directory,
    remove_run_directory,
)
from aiperf_hpc.primary.launchers.base import crowding
from aiperf_hpc.primary.launchers.registry import dry_run
from aiperf_hpc.primary.launchers.slurm.rate_limit import RATE_LIMIT
from aiperf_hpc.primary.monitor.run_view import RunView
from aiperf_hpc.run.history import RunHistory
from aiperf_hpc.run.manifest import RunManifest
from aiperf_hpc.run.paths import RunPaths
from aiperf_hpc.signals import Interruption, interruptible


def add(commands: Commands) -> None:
    """Add ``start``."""
    start = commands.add_parser("start", help="run the benchmark")
    start.add_argument("--nodes", type=int, required=True, metavar="N", help="replicas")
    start.add_argument("--hours", type=float, required=True, metavar="H", help="length, e.g. 0.05")
    start.add_argument(
        "--config",
        default="quickstart",
        metavar="FILE|PRESET",
        help="a YAML file or a preset: " + ", ".join(preset_names()),
    )
    start.add_argument(
        "--set",
        dest="assignments",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="e.g. training.batch_size=64; may be repeated",
    )
    start.add_argument("--launcher", choices=("auto", "slurm", "local"), default="auto")
    start.add_argument("--run-dir", type=Path, metavar="DIR", help="default: runs/ID")
    start.add_argument("--serve", nargs="?", const="", metavar="HOST:PORT", help="REST status")
    start.add_argument(
        "--dry-run", action="store_true", help="print what would be submitted or started"
    )
    start.add_argument("--detach", action="store_true", help="run in the background and return")
    start.add_argument("--yes", action="store_true", help="do not ask before starting")
    start.add_argument("--json", action="store_true", help="print the final status as JSON")
    add_repeat(start)
    start.set_defaults(command=_start)


def add_conduct(commands: Commands) -> None:
    """What `start --detach` starts; not for people."""
    conduct = commands.add_parser("conduct")
    conduct.add_argument("run", type=Path)
    conduct.add_argument("--serve")
    conduct.set_defaults(command=_conduct_detached)


def _start(options: argparse.Namespace) -> int:
    check_repeat(options)
    config = load_config(options.config, options.assignments)
    manifest = _manifest(options, config)
    if manifest.launcher == "local":
        _warn_of_a_crowd(manifest)
    folder = options.run_dir or Path("runs") / manifest.run_id
    if options.dry_run:
        say(dry_run(manifest, RunPaths(folder.resolve())).rstrip())
        if options.repeat is not None:
            say("\n".join(seeds_line(options)))
        return 0
    if options.repeat is not None:
        return repeat(options, manifest.launcher, folder, _start_one)
    return _start_manifest(options, manifest, folder)


def _manifest(options: argparse.Namespace, config: RunConfig) -> RunManifest:
    return make_manifest(
        config, options.nodes, options.hours, options.launcher, dry=options.dry_run
    )


def _start_one(options: argparse.Namespace, config: RunConfig, folder: Path) -> int:
    return _start_manifest(options, _manifest(options, config), folder)


def _start_manifest(options: argparse.Namespace, manifest: RunManifest, folder: Path) -> int:
    try:
        with interruptible():  # Until the controller listens itself.
            return _prepare_and_conduct(options, manifest, folder)
    except Interruption as interruption:
        message = "interrupted before the run started; nothing is left behind"
        raise EndedEarlyError(message, interruption.exit_status) from None


def _prepare_and_conduct(options: argparse.Namespace, manifest: RunManifest, folder: Path) -> int:
    if manifest.launcher == "local":
        check_engine(manifest.config)
    dataset = describe_dataset(manifest.config.dataset)
    if not options.yes and sys.stdin.isatty() and not options.json:
        say(plan_line(manifest, folder))
        if input("Start? [Y/n] ").strip().lower() not in ("", "y", "yes"):
            raise UsageError("not started")
    address = None if options.serve is None else free_address(options.serve)
    paths = make_run_directory(manifest, folder, dataset)
    try:
        if manifest.launcher == "slurm":
            RATE_LIMIT.wait()  # Before the run's clock starts, which would charge it.
        if options.detach:
            return _detach(paths, options.serve)
        with take_run(RunHistory(paths), manifest, "start") as claim:
            return conduct_run(manifest, paths, address, claim, as_json=options.json)
    except (Interruption, UsageError) as error:
        journal = paths.primary_journal
        if not journal.exists() or journal.stat().st_size == 0:  # Without the clock's start.
            remove_run_directory(paths)
        elif isinstance(error, Interruption):
            message = f"interrupted; `aiperf report {paths.root}` says how far the run has come"
            raise EndedEarlyError(message, error.exit_status) from None
        raise


def _warn_of_a_crowd(manifest: RunManifest) -> None:
    said = crowding(manifest, len(os.sched_getaffinity(0)), available_bytes())
    if said is not None:
        sys.stderr.write(f"aiperf: {said}\n")


def _detach(paths: RunPaths, serve: str | None) -> int:
    """Let a primary of its own conduct the run, and return once its clock has started."""
    command = [sys.executable, "-m", "aiperf_hpc.primary.cli", "conduct", str(paths.root)]
    command += [] if serve is None else [f"--serve={serve}"]
    paths.primary_log.parent.mkdir(parents=True, exist_ok=True)
    view = RunView(paths)
    with paths.primary_log.open("ab") as log:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
        )
    try:
        while view.history.run_started is None:
            if process.poll() is not None:
                raise AIPerfError(
                    f"the primary ended at once; its output is in {paths.primary_log}"
                )
            time.sleep(0.1)
            view.refresh()
    except Interruption as interruption:
        raise EndedEarlyError(
            f"interrupted; the run goes on in the background as process {process.pid}; "
            f"`aiperf stop {paths.root}` ends it",
            interruption.exit_status,
        ) from None
    say(f"running in the background as process {process.pid}; `aiperf status {paths.root}`")
    if (url := view.status().served_at) is not None:
        say(where_served(url))
    return 0


def _conduct_detached(options: argparse.Namespace) -> int:
    paths = RunPaths(options.run)
    address = None if options.serve is None else address_of(options.serve)
    manifest, history = RunManifest.load(paths), RunHistory(paths)
    with take_run(history, manifest, "conduct") as claim:
        if history.run_started is not None:
            raise UsageError(f"{paths.root}: this run has been started; see `aiperf resume`")
        return conduct_run(manifest, paths, address, claim, as_json=False)
