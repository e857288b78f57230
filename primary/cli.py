"""The command line: ``aiperf COMMAND``. Thin: it parses, calls, prints.

Exit status: 0 done; 1 a run or a verification failed; 2 the command cannot be carried out as
given, and nothing was started; 130 interrupted.
"""

from __future__ import annotations

import argparse
import codecs
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn, TextIO

import yaml

from aiperf_hpc import __version__
from aiperf_hpc.clock import SYSTEM
from aiperf_hpc.config import load_config, preset_names, preset_text
from aiperf_hpc.errors import AIPerfError, EndedEarlyError, GraphError, UsageError, reason_of
from aiperf_hpc.graph import Graph
from aiperf_hpc.machine import available_bytes
from aiperf_hpc.morphism.networks.resnet import resnet50
from aiperf_hpc.ops_counter.count import GraphCount, count
from aiperf_hpc.primary.control.claim import Claim, Claimed, ClaimedError, take
from aiperf_hpc.primary.control.controller import Controller
from aiperf_hpc.primary.control.prepare import (
    check_engine,
    describe_dataset,
    make_manifest,
    make_run_directory,
    remove_run_directory,
    require_packages,
)
from aiperf_hpc.primary.control.resume import (
    all_have_ended,
    check_resumable,
    end_leftovers,
)
from aiperf_hpc.primary.doctor import examine
from aiperf_hpc.primary.file_system import require_writable
from aiperf_hpc.primary.formatting import age, duration, few, si
from aiperf_hpc.primary.launchers.base import crowding
from aiperf_hpc.primary.launchers.registry import LAUNCHERS, dry_run
from aiperf_hpc.primary.launchers.slurm.rate_limit import RATE_LIMIT
from aiperf_hpc.primary.monitor.cached_view import CachedView
from aiperf_hpc.primary.monitor.progress import Progress, going_on, status_line
from aiperf_hpc.primary.monitor.run_view import RunState, RunStatus, RunView, StorageStatus
from aiperf_hpc.primary.monitor.screen import Screen
from aiperf_hpc.primary.verify.audit import verify
from aiperf_hpc.run.digest import DigestWriter
from aiperf_hpc.run.history import ReplicaHistory, RunHistory
from aiperf_hpc.run.journal import JournalWriter
from aiperf_hpc.run.manifest import RunManifest
from aiperf_hpc.run.paths import RunPaths, write_whole
from aiperf_hpc.run.records import RunEnded, TakenOver
from aiperf_hpc.run.service import Service
from aiperf_hpc.run.storage import BackoffRetry, Retry
from aiperf_hpc.signals import Interruption, Interrupts, interruptible, run_to_its_end
from aiperf_hpc.streams import ascii_json, print_in_any_locale
from aiperf_hpc.trial import JobPhase

INTERRUPTED, KILLED = 130, 137
STOP_WAIT_SECONDS, STOP_TELL_SECONDS = 90.0, 5.0
Command = Callable[[argparse.Namespace], int]
Address = tuple[str, int]


class _Parser(argparse.ArgumentParser):
    """Says what is wrong in one line."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message}; see `{self.prog} --help`")


def main(arguments: Sequence[str] | None = None) -> int:
    """Carry out one command and return its exit status."""
    print_in_any_locale()
    try:
        options = _parser().parse_args(arguments)
        command: Command = options.command
        return command(options)
    except AIPerfError as error:
        sys.stderr.write(f"aiperf: {error}\n")
        return error.exit_status
    except KeyboardInterrupt:
        sys.stderr.write("aiperf: interrupted\n")
        return INTERRUPTED
    except UnicodeEncodeError as error:
        # Of a path that the configuration names, say; what is printed is never refused.
        if codecs.lookup(error.encoding) != codecs.lookup(sys.getfilesystemencoding()):
            raise
        sys.stderr.write(
            f"aiperf: {error.object}: this locale ({error.encoding}) has no such file name; "
            "set LC_ALL=C.UTF-8\n"
        )
        return 1
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        sys.stderr.write(f"aiperf: {where}{reason_of(error)}\n")
        return 1


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="aiperf", description="Benchmark an AI-HPC machine by AutoML.")
    parser.add_argument("--version", action="version", version=f"aiperf-hpc {__version__}")
    commands = parser.add_subparsers(metavar="COMMAND", required=True, parser_class=_Parser)
    _add_start(commands)
    for name, command, help_text in (
        ("status", _status, "show what a run is doing"),
        ("stop", _stop, "stop a run in order, and score it"),
        ("report", _report, "write a run's report, also while it lasts"),
        ("verify", _verify, "recount a run from its own records"),
    ):
        added = commands.add_parser(name, help=help_text, description=help_text)
        added.add_argument("run", type=Path, metavar="RUN", help="the run directory")
        added.add_argument("--json", action="store_true", help="print JSON")
        added.set_defaults(command=command)
        if name == "report":
            added.add_argument(
                "--scaling", nargs="+", type=Path, default=[], metavar="RUN",
                help="runs of other sizes, for a section on weak scaling",
            )  # fmt: skip
    _add_resume(commands)
    _add_conduct(commands)
    _add_serve(commands)
    _add_count(commands)
    _add_data(commands)
    _add_simulate(commands)
    _add_allreduce(commands)
    _add_search(commands)
    _add_config(commands)
    doctor = commands.add_parser("doctor", help="say what this machine has and what is missing")
    doctor.add_argument("--run-dir", type=Path, default=Path("runs"), metavar="DIR")
    doctor.add_argument("--json", action="store_true", help="print JSON")
    doctor.set_defaults(command=_doctor)
    return parser


def _add_start(commands: argparse._SubParsersAction[_Parser]) -> None:
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
    start.set_defaults(command=_start)


def _add_conduct(commands: argparse._SubParsersAction[_Parser]) -> None:
    """What `start --detach` starts; not for people."""
    conduct = commands.add_parser("conduct")
    conduct.add_argument("run", type=Path)
    conduct.add_argument("--serve")
    conduct.set_defaults(command=_conduct_detached)


def _add_resume(commands: argparse._SubParsersAction[_Parser]) -> None:
    resume = commands.add_parser("resume", help="go on with a run whose primary died")
    resume.add_argument("run", type=Path, metavar="RUN", help="the run directory")
    served = resume.add_mutually_exclusive_group()
    served.add_argument(
        "--serve", nargs="?", const="", metavar="HOST:PORT",
        help="REST status; default: where it was served before",
    )  # fmt: skip
    served.add_argument("--no-serve", action="store_true", help="even if it was served before")
    resume.add_argument("--json", action="store_true", help="print the final status as JSON")
    resume.set_defaults(command=_resume)


def _add_serve(commands: argparse._SubParsersAction[_Parser]) -> None:
    serve = commands.add_parser("serve", help="serve a run's status over REST")
    serve.add_argument("run", type=Path, metavar="RUN", help="the run directory")
    serve.add_argument("--address", default="", metavar="HOST:PORT", help="default: loopback")
    serve.set_defaults(command=_serve)


def _add_count(commands: argparse._SubParsersAction[_Parser]) -> None:
    counting = commands.add_parser("count", help="count a network's operations for one image")
    counting.add_argument("network", metavar="resnet50|GRAPH.json")
    counting.add_argument("--input", default="224x224x3", metavar="HxWxC", help="for resnet50")
    counting.add_argument("--classes", type=int, default=1000, help="for resnet50")
    counting.add_argument("--stem", choices=("imagenet", "cifar"), default="imagenet")
    counting.add_argument("--per-layer", action="store_true", help="a row for each layer")
    counting.add_argument("--json", action="store_true", help="print JSON")
    counting.set_defaults(command=_count)


def _add_data(commands: argparse._SubParsersAction[_Parser]) -> None:
    data = commands.add_parser("data", help="prepare a dataset")
    actions = data.add_subparsers(metavar="ACTION", required=True, parser_class=_Parser)
    prepare = actions.add_parser("prepare", help="make a dataset's folder from its source")
    prepare.add_argument("name", metavar="NAME", help="cifar10 or imagenet")
    prepare.add_argument("--from", dest="source", required=True, metavar="ARCHIVE_OR_DIR")
    prepare.add_argument("--to", dest="target", metavar="FOLDER", help="default: data/NAME")
    prepare.add_argument("--shards", metavar="N", help="training shards (imagenet)")
    prepare.set_defaults(command=_data_prepare)


def _add_simulate(commands: argparse._SubParsersAction[_Parser]) -> None:
    simulate = commands.add_parser("simulate", help="run the benchmark on a simulated machine")
    simulate.add_argument("run", type=Path, metavar="RUN_DIR", help="a new folder")
    simulate.add_argument("--nodes", type=int, required=True, metavar="N", help="replicas")
    simulate.add_argument("--hours", type=float, required=True, metavar="H", help="simulated")
    simulate.add_argument("--config", default="simulated", metavar="FILE|PRESET")
    simulate.add_argument(
        "--set", dest="assignments", action="append", default=[], metavar="KEY=VALUE"
    )
    simulate.set_defaults(command=_simulate)


def _add_allreduce(commands: argparse._SubParsersAction[_Parser]) -> None:
    help_text = "measure the all-reduce of every installed collective on this machine"
    allreduce = commands.add_parser("allreduce", help=help_text, description=help_text)
    allreduce.add_argument("--ranks", type=int, default=2, metavar="N")
    allreduce.add_argument("--backends", metavar="A,B", help="default: all that are installed")
    allreduce.add_argument("--repetitions", type=int, metavar="N", help="of each size; 100")
    allreduce.add_argument("--largest", type=float, metavar="N", help="elements; 1e8")
    allreduce.add_argument("--quick", action="store_true", help="10 of each, up to 1e6 elements")
    allreduce.add_argument("--out", type=Path, default=Path("allreduce"), metavar="DIR")
    allreduce.add_argument("--json", action="store_true", help="print JSON")
    allreduce.set_defaults(command=_allreduce)


def _add_search(commands: argparse._SubParsersAction[_Parser]) -> None:
    search = commands.add_parser("search", help="look at how a run searched")
    actions = search.add_subparsers(metavar="ACTION", required=True, parser_class=_Parser)
    replay = actions.add_parser("replay", help="what the search believed, and what came of it")
    replay.add_argument("run", type=Path, metavar="RUN", help="the run directory")
    replay.add_argument("--plot", type=Path, metavar="FILE.svg", help="draw it into a file")
    replay.add_argument("--json", action="store_true", help="print JSON")
    replay.set_defaults(command=_search_replay)


def _add_config(commands: argparse._SubParsersAction[_Parser]) -> None:
    config = commands.add_parser("config", help="show configurations")
    actions = config.add_subparsers(metavar="ACTION", required=True, parser_class=_Parser)
    show = actions.add_parser("show", help="print a preset, or all that it resolves to")
    show.add_argument("preset", metavar="FILE|PRESET")
    show.add_argument("--resolved", action="store_true", help="with every default filled in")
    show.set_defaults(command=_config_show)


def _say(text: str) -> None:
    try:
        sys.stdout.write(f"{text}\n")
        sys.stdout.flush()
    except BrokenPipeError:
        # The reader went away, as `| head` does: the rest, e.g. the report, is done all the same.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _say_json(value: object) -> None:
    _say(json.dumps(value, indent=1))


def _say_document(text: str) -> None:
    """Print JSON: no locale changes it."""
    _say(ascii_json(text))


def _start(options: argparse.Namespace) -> int:
    config = load_config(options.config, options.assignments)
    manifest = make_manifest(
        config, options.nodes, options.hours, options.launcher, dry=options.dry_run
    )
    if manifest.launcher == "local":
        _warn_of_a_crowd(manifest)
    folder = options.run_dir or Path("runs") / manifest.run_id
    if options.dry_run:
        _say(dry_run(manifest, RunPaths(folder.resolve())).rstrip())
        return 0
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
        _say(_plan(manifest, folder))
        if input("Start? [Y/n] ").strip().lower() not in ("", "y", "yes"):
            raise UsageError("not started")
    address = None if options.serve is None else _free_address(options.serve)
    paths = make_run_directory(manifest, folder, dataset)
    try:
        if manifest.launcher == "slurm":
            RATE_LIMIT.wait()  # Before the run's clock starts, which would charge it.
        if options.detach:
            return _detach(paths, options.serve)
        with _taken(RunHistory(paths), manifest, "start") as claim:
            return _conduct(manifest, paths, address, claim, as_json=options.json)
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
    _say(f"running in the background as process {process.pid}; `aiperf status {paths.root}`")
    if (url := view.status().served_at) is not None:
        _say(_where_served(url))
    return 0


def _where_served(url: str) -> str:
    return f"status at {url}/api/v1/status"


def _conduct_detached(options: argparse.Namespace) -> int:
    paths = RunPaths(options.run)
    address = None if options.serve is None else _address(options.serve)
    manifest, history = RunManifest.load(paths), RunHistory(paths)
    with _taken(history, manifest, "conduct") as claim:
        if history.run_started is not None:
            raise UsageError(f"{paths.root}: this run has been started; see `aiperf resume`")
        return _conduct(manifest, paths, address, claim, as_json=False)


def _resume(options: argparse.Namespace) -> int:
    manifest, history = check_resumable(options.run)
    require_packages(manifest.config, manifest.launcher)
    with _taken(history, manifest, "resume") as claim:
        if history.run_ended is not None:  # By who had it since it was looked at.
            raise UsageError(f"{options.run}: this run has ended; see `aiperf report`")
        address = _address_again(options, history.paths)
        end_leftovers(history)
        launch = max(len(history.run_starts), claim.number - 1)
        return _conduct(
            manifest, history.paths, address, claim, as_json=options.json, launch=launch
        )


def _taken(history: RunHistory, manifest: RunManifest, command: str) -> Claim:
    """Take a run in hand, and read its records. Raises ClaimedError when another process has it."""
    heartbeat = manifest.config.journal.heartbeat_seconds
    return take(history, heartbeat, command, BackoffRetry(lambda: False))


def _address_again(options: argparse.Namespace, paths: RunPaths) -> Address | None:
    """Return where a run that goes on is served: as asked for, else where it was before.

    Nobody asked for the latter just now, so that the run goes on without it if it is not known, or
    cannot be had.
    """
    if options.no_serve:
        return None
    if options.serve is not None:
        return _free_address(options.serve)
    try:
        before = Service.load(paths)
        if before is None:
            return None
        from aiperf_hpc.primary.service.rest import check_free

        check_free(before.host, before.port)
    except UsageError as error:
        sys.stderr.write(f"aiperf: {error}; not served: `aiperf serve {paths.root}` does that\n")
        return None
    return before.host, before.port


def _plan(manifest: RunManifest, folder: Path) -> str:
    shares = ", ".join("+".join(str(c) for c in share) for share in manifest.cores)
    cores = f", cores {shares}" if shares else ""
    size = manifest.config.replica.ranks
    replicas = f"{manifest.replicas} replica{'s' * (manifest.replicas > 1)}"
    replicas += f" of {size} ranks" if size > 1 else ""
    return (
        f"{replicas} ({manifest.launcher}{cores}) for {manifest.hours:g} h, "
        f"{manifest.config.preset} on {manifest.config.dataset.name}, records in {folder}"
    )


def _conduct(
    manifest: RunManifest,
    paths: RunPaths,
    address: Address | None,
    claim: Claim,
    *,
    as_json: bool,
    launch: int = 0,
) -> int:
    """Run to the end, write the report, say the score."""
    output = sys.stderr if as_json else sys.stdout
    output.write(f"{_plan(manifest, paths.root)}\n")
    view = RunView(paths)
    live = CachedView(view)
    progress = Progress(live, output)
    view.refresh()
    interrupts = Interrupts()
    retry = BackoffRetry(interrupts.at_once)
    launcher = LAUNCHERS[manifest.launcher](manifest, paths, launch, retry)
    claimed = Claimed(claim, retry)
    with (
        JournalWriter(paths.primary_journal, retry=claimed, recorded=claim.recorded) as journal,
        JournalWriter(paths.digest, retry=claimed) as digest,
        _server(live, address, output, paths, retry),
        progress.alert(interrupts, retry),
    ):
        writer = DigestWriter(view.history, digest)
        controller = Controller(
            manifest,
            launcher,
            journal,
            view.history,
            writer,
            clock=SYSTEM,
            interrupts=interrupts,
            retry=retry,
            waits=retry.take,
            say=progress.say,
        )
        controller.run(progress.tick)
    progress.end()
    if controller.refused is not None:
        raise AIPerfError(f"{controller.refused}; the run was stopped")
    return _finish(view, as_json)


@contextmanager
def _server(
    live: CachedView, address: Address | None, output: TextIO, paths: RunPaths, retry: Retry
) -> Iterator[None]:
    """Serve the run's status over REST while the block runs, if an address was given."""
    if address is None:
        yield
        return
    from aiperf_hpc.primary.service.rest import ServerThread

    with ServerThread(live, *address) as server:
        Service.here(server.host, server.port, server.url).save(paths, retry)
        output.write(f"{_where_served(server.url)}\n")
        output.flush()
        yield


def _finish(view: RunView, as_json: bool) -> int:
    """Write the report of a run that has ended; say its score."""
    from aiperf_hpc.primary.report.writer import summary_lines, write_report

    view.refresh()
    if not as_json:
        for line in summary_lines(view):  # First: nothing that goes wrong below hides it.
            _say(line)
    try:
        page = write_report(view)
    except KeyboardInterrupt:
        raise UsageError(
            f"interrupted while writing the report; `aiperf report {view.paths.root}` writes it"
        ) from None
    if as_json:
        _say_document(view.status().model_dump_json(indent=1))
    else:
        _say(f"Report           {page}")
    for replica in view.history.replicas.values():
        if replica.ended is not None and replica.ended.startswith("failed"):
            log = view.paths.replica_log(replica.id)
            sys.stderr.write(f"aiperf: {replica.id} {replica.ended}; its output is in {log}\n")
        elif replica.exit_status:
            log = view.paths.replica_log(replica.id)
            sys.stderr.write(
                f"aiperf: {replica.id} ended with status {replica.exit_status}; see {log}\n"
            )
        elif _ended_otherwise(replica):
            sys.stderr.write(f"aiperf: {_what_happened(replica, view.paths)}\n")
    in_order = [
        r for r in view.history.replicas.values() if r.ended and not r.ended.startswith("failed")
    ]
    return 0 if in_order else 1


def _ended_otherwise(replica: ReplicaHistory) -> bool:
    """Return whether its job failed, or neither it nor the replica is known to have ended."""
    job = replica.job_state
    if job is None or job.phase is JobPhase.DONE:
        return False
    return job.phase.ended or replica.ended is None


def _what_happened(replica: ReplicaHistory, paths: RunPaths) -> str:
    """Return what the launcher knows of a replica's end that the replica itself never told."""
    job = replica.job_state
    assert job is not None  # noqa: S101 -- for the type checker
    node = f" on {job.node}" if job.node else ""
    said = f"{replica.id} (job {replica.job}{node}) {job.phase}: {job.detail or 'no reason given'}"
    if replica.started is None:
        return f"{said}; it left no record: does its node see {paths.root}?"
    return f"{said}; its output is in {paths.replica_log(replica.id)}"


def _status(options: argparse.Namespace) -> int:
    view = RunView(RunPaths(options.run))
    view.refresh()
    status = view.status()
    if options.json:
        _say_document(status.model_dump_json(indent=1))
        return 0
    kind = ", simulated" if status.simulated else ""
    reason = f" ({status.reason})" if status.reason else ""
    _say(f"{status.run_id}: {status.state}{reason}{kind}")
    _say(status_line(status))
    if status.served_at is not None:
        _say(f"  {_where_served(status.served_at)}")
    for replica in status.replicas:
        last = replica.last_record_seconds
        seen = "" if last is None else f", last record {age(last)} ago"
        where = f"on {replica.node}" if replica.node else "on no node yet"
        detail = f" ({replica.detail})" if replica.detail else ""
        _say(
            f"  {replica.id}  {replica.state}{detail}  {where}, job {replica.job}, round "
            f"{status.rounds[replica.id]}, {replica.trials} trials, stock {replica.stock}{seen}"
        )
    for rule, reason in status.invalid:
        if rule == "engine":
            _say(f"  INVALID: {reason}")
    if status.scheduler_problem:
        _say(f"  the scheduler does not answer: {status.scheduler_problem}")
    for each in status.storage:
        _say(f"  {_storage_line(each)}")
    for problem in status.problems:
        _say(f"  problem: {problem}")
    return 0


def _storage_line(storage: StorageStatus) -> str:
    waited = f"{storage.who} waited {duration(storage.seconds)} for storage"
    if storage.times > 1:
        waited += f", {storage.times} times"
    if storage.waiting:
        return f"{waited}, and waits now: {storage.last_reason}"
    if storage.last_began_seconds is None:
        return waited
    began = f"{duration(storage.last_began_seconds)} after the start"
    return f"{waited}, {'last ' if storage.times > 1 else ''}from {began}: {storage.last_reason}"


def _stop(options: argparse.Namespace) -> int:
    view = RunView(RunPaths(options.run))
    view.refresh()
    if view.status().state is RunState.ENDED:
        raise UsageError(f"{options.run}: the run has ended already; see `aiperf report`")
    if view.history.run_started is None:
        raise UsageError(f"{options.run}: this run never started; there is nothing to stop")
    write_whole(view.paths.stop_request, "stopped by `aiperf stop`\n")
    with _telling_who_goes_on(sys.stderr) as tell:  # The result alone goes to the output.
        _wait_for_end(view, options.run, tell)
    return _finish(view, options.json)


def _wait_for_end(view: RunView, run: Path, tell: Callable[[RunStatus], None]) -> None:
    """Wait until a run that was asked to stop has ended; give it its end where nobody else can."""
    end = time.monotonic() + STOP_WAIT_SECONDS
    while (status := view.status()).state is not RunState.ENDED:
        tell(status)
        if time.monotonic() > end:
            raise AIPerfError(
                f"{run}: a stop is requested, but the run has not ended within "
                f"{STOP_WAIT_SECONDS:.0f} s; `aiperf status {run}` says what it does"
            )
        if all_have_ended(view.history):
            _end_for_its_primary(view)
        time.sleep(0.2)
        view.refresh()


@contextmanager
def _telling_who_goes_on(output: TextIO) -> Iterator[Callable[[RunStatus], None]]:
    """Give what says now and then which replicas a stop waits for."""
    screen, told, due = Screen(output), "", time.monotonic()
    screen.line("stopping: the current steps end, then the score is computed")

    def tell(status: RunStatus) -> None:
        nonlocal told, due
        replicas = going_on(status)
        text = f"waiting for {few(replicas)}" if replicas else "waiting for the primary"
        if screen.is_terminal:
            screen.change(lambda columns: text)
        elif text != told and time.monotonic() >= due:
            screen.line(text)
            told, due = text, time.monotonic() + STOP_TELL_SECONDS

    try:
        yield tell
    finally:
        screen.clear()


def _end_for_its_primary(view: RunView) -> None:
    """Record the end of a run whose primary has died."""
    try:
        claim = _taken(view.history, view.manifest, "stop")
    except ClaimedError:
        return  # Who has it in hand ends it.
    with claim, JournalWriter(view.paths.primary_journal) as journal:
        if view.history.run_ended is None and all_have_ended(view.history):
            journal.append(TakenOver(command="stop", host=socket.gethostname(), pid=os.getpid()))
            journal.append(RunEnded(reason="stopped by `aiperf stop`; its primary had died"))


def _report(options: argparse.Namespace) -> int:
    from aiperf_hpc.primary.report.writer import write_report

    view = RunView(RunPaths(options.run))
    page = write_report(view, [RunPaths(folder) for folder in options.scaling])
    if options.json:
        _say_document(view.paths.report_json.read_text("utf-8").rstrip())
    else:
        _say(str(page))
    return 0


def _verify(options: argparse.Namespace) -> int:
    view = RunView(RunPaths(options.run))
    findings = verify(view)
    ended = view.history.end_utc is not None
    passed = all(finding.passed for finding in findings)
    if options.json:
        rules = [
            {"rule": f.rule, "passed": f.passed, "checked": f.checked, "failures": f.failures}
            for f in findings
        ]
        _say_json({"passed": passed, "ended": ended, "rules": rules})
        return 0 if passed else 1
    for finding in findings:
        verdict = "PASSED" if finding.passed else "FAILED"
        _say(f"{verdict}  {finding.rule:<12} {finding.checks} ({finding.checked} checked)")
        for failure in finding.failures[:10]:
            _say(f"          {failure}")
        if len(finding.failures) > 10:
            _say(f"          and {len(finding.failures) - 10} more")
    failed = [finding.rule for finding in findings if not finding.passed]
    view_end = "" if ended else "; the run has not ended, so that its score is not final"
    _say(
        f"PASSED: the score equals the recount{view_end}"
        if passed
        else f"FAILED: {', '.join(failed)}{view_end}"
    )
    return 0 if passed else 1


def _address(text: str) -> Address:
    from aiperf_hpc.primary.service.rest import parse_address

    return parse_address(text)


def _free_address(text: str) -> Address:
    """Return an address that can be listened on: checked before anything is made or started."""
    from aiperf_hpc.primary.service.rest import check_free

    address = _address(text)
    check_free(*address)
    return address


def _serve(options: argparse.Namespace) -> int:
    from aiperf_hpc.primary.service.rest import serve

    serve(RunPaths(options.run), *_address(options.address), announce=_say)
    return 0


def _count(options: argparse.Namespace) -> int:
    graph = _network(options)
    counted = count(graph)
    if options.json:
        _say_json(_count_document(graph, counted, options.per_layer))
        return 0
    if options.per_layer:
        for name, layer in counted.layers.items():
            shape = "x".join(str(n) for n in layer.output)
            done = layer.operations
            _say(f"{name:<28} {layer.kind:<22} {shape:<14} {done.forward:>16,} "
                 f"{done.backward:>16,}")  # fmt: skip
        _say("")
    _say(f"{'kind of layer':<24} {'forward':>18} {'backward':>18}")
    for kind, done in counted.by_kind().items():
        _say(f"{kind:<24} {done.forward:>18,} {done.backward:>18,}")
    _say(f"{'total':<24} {counted.forward:>18,} {counted.backward:>18,}")
    _say(
        f"\n{si(counted.training, 'OP')} for one training image ({counted.training:,}), "
        f"{si(counted.forward, 'OP')} for one validation image; "
        f"backward/forward {counted.backward / max(counted.forward, 1):.4f}; "
        f"{graph.parameter_count:,} parameters, depth {graph.depth}, hash {graph.hash}"
    )
    return 0


def _count_document(graph: Graph, counted: GraphCount, per_layer: bool) -> dict[str, object]:
    document: dict[str, object] = {
        "hash": graph.hash,
        "parameters": graph.parameter_count,
        "depth": graph.depth,
        "forward": counted.forward,
        "backward": counted.backward,
        "training": counted.training,
        "by_kind": {
            kind: {"forward": done.forward, "backward": done.backward, "update": done.update}
            for kind, done in counted.by_kind().items()
        },
    }
    if per_layer:
        document["layers"] = [
            {
                "name": name,
                "kind": layer.kind,
                "output": layer.output,
                "parameters": layer.parameters,
                "forward": layer.operations.forward,
                "backward": layer.operations.backward,
            }
            for name, layer in counted.layers.items()
        ]
    return document


def _network(options: argparse.Namespace) -> Graph:
    if options.network == "resnet50":
        try:
            shape = tuple(int(n) for n in options.input.split("x"))
        except ValueError:
            shape = ()
        if len(shape) != 3 or min(shape) < 1:
            raise UsageError(
                f"--input {options.input}: write HEIGHTxWIDTHxCHANNELS, e.g. 224x224x3"
            )
        if options.classes < 2:
            raise UsageError(f"--classes {options.classes}: a network needs at least 2 classes")
        return resnet50(shape, options.classes, stem=options.stem)
    path = Path(options.network)
    try:
        return Graph.from_json(path.read_text("utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"cannot read the graph {path}: {reason_of(error)}") from None
    except GraphError as error:
        raise UsageError(f"{path}: {error}") from None


def _data_prepare(options: argparse.Namespace) -> int:
    target = options.target or f"data/{options.name}"
    command = [sys.executable, "-m", "aiperf_hpc.replica.data", "prepare", options.name]
    command += ["--from", options.source, "--to", target]
    if options.shards:
        command += ["--shards", options.shards]
    status = run_to_its_end(command)
    if status == KILLED:
        sys.stderr.write(
            "aiperf: the preparation was ended by SIGKILL; when it is started again, it removes "
            f"what is left beside {target}\n"
        )
    return status


def _simulate(options: argparse.Namespace) -> NoReturn:
    command = [sys.executable, "-m", "aiperf_hpc.simulation", str(options.run)]
    command += ["--nodes", str(options.nodes), "--hours", str(options.hours)]
    command += ["--config", options.config]
    command += [part for value in options.assignments for part in ("--set", value)]
    # In this process, so that its controller hears each signal, once.
    os.execv(sys.executable, command)  # noqa: S606 -- the program is this Python


def _allreduce(options: argparse.Namespace) -> int:
    from aiperf_hpc.primary import allreduce

    plan = allreduce.plan(
        options.backends,
        ranks=options.ranks,
        repetitions=options.repetitions,
        largest=options.largest,
        quick=options.quick,
        available=available_bytes(),
    )
    require_writable(options.out, "the folder", "--out")
    results = [allreduce.measure(name, plan, options.out) for name in plan.names]
    remedies = allreduce.installed()[1]
    files = allreduce.write(results, remedies, options.out)
    if options.json:
        _say_document(files[0].read_text("utf-8"))
    else:
        _say(allreduce.table(results, remedies))
        _say(f"written to {files[0]} and {files[1]}")
    return 0


def _search_replay(options: argparse.Namespace) -> int:
    from aiperf_hpc.primary.report.search_replay import replay_search, table

    view = RunView(RunPaths(options.run))
    view.refresh()
    replay = replay_search(view)
    if options.plot is not None:
        from aiperf_hpc.primary.report.plots import write_belief_plot

        write_belief_plot(replay.candidates, options.plot)
    if options.json:
        _say_document(replay.model_dump_json(indent=1))
    else:
        _say("\n".join(table(replay)))
    return 0


def _config_show(options: argparse.Namespace) -> int:
    if options.resolved or options.preset not in preset_names():
        config = load_config(options.preset)
        _say(yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False).rstrip())
    else:
        _say(preset_text(options.preset).rstrip())
    return 0


def _doctor(options: argparse.Namespace) -> int:
    checks = examine(options.run_dir)
    missing = [check for check in checks if check.required and not check.found]
    if options.json:
        _say_json([check.model_dump() for check in checks])
        return 1 if missing else 0
    for check in checks:
        mark = "yes" if check.found else "NO " if check.required else "no "
        remedy = f"   -> {check.remedy}" if check.remedy else ""
        _say(f"{mark}  {check.area:<12} {check.name:<12} {check.detail}{remedy}")
    if missing:
        _say(f"missing for any run: {', '.join(check.name for check in missing)}")
    return 1 if missing else 0


if __name__ == "__main__":
    raise SystemExit(main())
