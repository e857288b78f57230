"""``aiperf status`` and ``aiperf serve``."""

from __future__ import annotations

import argparse
from pathlib import Path

from aiperf_hpc.primary.cli.conduct import address_of, where_served
from aiperf_hpc.primary.cli.output import say, say_document
from aiperf_hpc.primary.cli.parser import Commands, add_for_run
from aiperf_hpc.primary.formatting import age, duration
from aiperf_hpc.primary.monitor.progress import status_line
from aiperf_hpc.primary.monitor.run_view import RunView, StorageStatus
from aiperf_hpc.run.paths import RunPaths


def add(commands: Commands) -> None:
    """Add ``status``."""
    add_for_run(commands, "status", _status, "show what a run is doing")


def add_serve(commands: Commands) -> None:
    """Add ``serve``."""
    serve = commands.add_parser("serve", help="serve a run's status over REST")
    serve.add_argument("run", type=Path, metavar="RUN", help="the run directory")
    serve.add_argument("--address", default="", metavar="HOST:PORT", help="default: loopback")
    serve.set_defaults(command=_serve)


def _status(options: argparse.Namespace) -> int:
    view = RunView(RunPaths(options.run))
    view.refresh()
    status = view.status()
    if options.json:
        say_document(status.model_dump_json(indent=1))
        return 0
    kind = ", simulated" if status.simulated else ""
    reason = f" ({status.reason})" if status.reason else ""
    say(f"{status.run_id}: {status.state}{reason}{kind}")
    say(status_line(status))
    if status.served_at is not None:
        say(f"  {where_served(status.served_at)}")
    for replica in status.replicas:
        last = replica.last_record_seconds
        seen = "" if last is None else f", last record {age(last)} ago"
        where = f"on {replica.node}" if replica.node else "on no node yet"
        detail = f" ({replica.detail})" if replica.detail else ""
        say(
            f"  {replica.id}  {replica.state}{detail}  {where}, job {replica.job}, round "
            f"{status.rounds[replica.id]}, {replica.trials} trials, stock {replica.stock}{seen}"
        )
    for rule, reason in status.invalid:
        if rule == "engine":
            say(f"  INVALID: {reason}")
    if status.scheduler_problem:
        say(f"  the scheduler does not answer: {status.scheduler_problem}")
    for each in status.storage:
        say(f"  {_storage_line(each)}")
    for problem in status.problems:
        say(f"  problem: {problem}")
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


def _serve(options: argparse.Namespace) -> int:
    from aiperf_hpc.primary.service.rest import serve

    serve(RunPaths(options.run), *address_of(options.address), announce=say)
    return 0
