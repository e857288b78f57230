"""One replica: ``python -m aiperf_hpc.replica RUN_DIR --replica r0 [--cores 0,1]``.

Reads ``run.yaml``, appends to its own journal, keeps its search workers running, and trains
until the run's time is over or a stop is requested.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import traceback
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path

from aiperf_hpc import errors
from aiperf_hpc.clock import SYSTEM
from aiperf_hpc.host.machine import VisibleDevices
from aiperf_hpc.host.schedulers import job_variable, node_name
from aiperf_hpc.replica.engines.peaks import rank_peak
from aiperf_hpc.replica.host import Host
from aiperf_hpc.replica.node_check import (
    check_node,
    checked_dataset,
    checked_engine,
    imported_modules,
    package_versions,
)
from aiperf_hpc.replica.parallel.binding import Cores, bind, devices_of_job, near_cores, share_cores
from aiperf_hpc.replica.parallel.collectives import Buffer, RankLostError, load_collective
from aiperf_hpc.replica.parallel.follower import follow
from aiperf_hpc.replica.parallel.handshake import Facts, Ranks, facts_of
from aiperf_hpc.replica.parallel.protocol import Command, announce
from aiperf_hpc.replica.replica import Replica
from aiperf_hpc.replica.runtime.background import background_thread
from aiperf_hpc.replica.runtime.kernel_caches import own_kernel_caches
from aiperf_hpc.replica.runtime.telemetry import journaled_telemetry
from aiperf_hpc.run.manifest import RunManifest
from aiperf_hpc.run.paths import Identity, Incarnation, RunPaths
from aiperf_hpc.run.storage import BackoffRetry, Retry
from aiperf_hpc.streams import print_in_any_locale, warn
from aiperf_hpc.system.node import describe_rank

SWITCH_SECONDS = 50e-6
"""Switch interval of Python's interpreter lock in seconds. It is short because the thread that
launches a step's kernels needs the lock back after each launch."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one replica; return its exit status."""
    print_in_any_locale()
    parser = argparse.ArgumentParser(prog="aiperf_hpc.replica")
    parser.add_argument("run_dir", type=Path)
    parser.add_argument("--replica", required=True, help="its name, e.g. r0")
    parser.add_argument("--cores", default="", help="logical CPUs, e.g. 0,1; all when not given")
    parser.add_argument("--devices", default="", help="accelerators, e.g. CUDA_VISIBLE_DEVICES=0,1")
    parser.add_argument("--launch", type=int, default=0, help="launches of it before this one")
    parser.add_argument(
        "--restart",
        type=int,
        default=int(job_variable("restarts") or 0),
        help="restarts of it since that launch",
    )
    parser.add_argument("--sharing", type=int, default=1, help="replicas on this machine")
    options = parser.parse_args(arguments)
    if options.cores:
        os.sched_setaffinity(0, {int(core) for core in options.cores.split(",")})
    sys.setswitchinterval(SWITCH_SECONDS)
    with ExitStack() as own:
        return _run(options, own)


def _run(options: argparse.Namespace, own: ExitStack) -> int:
    """Run one rank of the replica; ``own`` closes its resources at the end."""
    try:
        manifest = RunManifest.load(RunPaths(options.run_dir), BackoffRetry(lambda: False))
        replica = manifest.config.replica
        # Before any library enumerates devices: most of them do so only once.
        near = _bind(options, manifest)
        own.enter_context(own_kernel_caches(os.environ))
        collective = load_collective(replica.collective, replica.ranks)
    except errors.RunDirectoryError as error:
        warn(f"{options.replica}: node {node_name()}: {error}")
        return errors.UNSEEN_RUN_STATUS
    except errors.AIPerfError as error:
        warn(f"{options.replica}: {error}")
        return error.exit_status
    share_cores(collective, near)
    try:
        ranks = Ranks(collective)
        if collective.rank:
            return _follow(options, manifest, ranks)
        return _lead(options, manifest, ranks)
    except BaseException:
        if collective.size > 1:
            # The other ranks would wait for this one forever.
            traceback.print_exc()
            collective.abort(errors.UNEXPECTED_STATUS)
        raise
    finally:
        collective.close()


def _bind(options: argparse.Namespace, manifest: RunManifest) -> list[Cores]:
    """Make one accelerator visible to this rank, of those from its launcher or the scheduler.

    Returns:
        The cores near each rank's accelerator, if this node has several ranks.
    """
    if not manifest.config.engine.uses_accelerators:
        return []
    local = VisibleDevices.parse(options.devices) if options.devices else None
    given = local if options.cores else devices_of_job(os.environ)
    if given is None:
        return []
    bind(given, manifest.config.replica, os.environ)
    return near_cores(given) if len(given.names) > 1 else []


def _follow(options: argparse.Namespace, manifest: RunManifest, ranks: Ranks) -> int:
    """Run a rank other than 0, which records this rank's errors."""
    config = manifest.config
    for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)  # Rank 0 gets the signal too, and decides.
    cores = len(os.sched_getaffinity(0))
    local_rank, folders = ranks.collective.local_rank, manifest.folders(RunPaths(options.run_dir))
    facts: Facts = {}
    failure: errors.AIPerfError | None = None
    probe: Buffer = None
    with background_thread() as background:
        try:
            check_node(manifest)
            engine = checked_engine(manifest, cores, SYSTEM, local_rank)
            peak = rank_peak(config, cores, local_rank)
            described = background.submit(describe_rank, folders, with_node=local_rank == 0)
            dataset, _ = checked_dataset(manifest, cores)
            facts = facts_of(package_versions() | engine.versions, dataset.info, config.seed)
            probe = engine.probe()
        except errors.AIPerfError as error:
            failure = error
    try:
        ranks.handshake(facts, failure=failure, probe=probe)
    except errors.AIPerfError as error:
        warn(f"rank {ranks.collective.rank}: {error}")
        return 0
    ranks.exchange(imported_modules(ranks.collective.rank).model_dump_json())
    ranks.exchange(described.result().model_dump_json())
    if config.peak_seconds:
        ranks.exchange(peak.model_dump_json() if peak is not None else "")
    incarnation = Incarnation.parse(ranks.incarnation)
    paths = RunPaths(options.run_dir)
    folder = paths.incarnation(options.replica, incarnation)
    collective = ranks.watched(folder, config.replica.rank_timeout_seconds)
    own = paths.telemetry_journal(options.replica, ranks.collective.rank, incarnation)
    # The first rank of each node records the node's telemetry; here, except on rank 0's node.
    seconds = config.telemetry.interval_seconds if local_rank == 0 else 0.0
    try:
        with journaled_telemetry(paths, own, seconds=seconds, clock=SYSTEM):
            follow(engine, dataset, collective)
    except RankLostError as error:
        ranks.lost(error)
    return 0


def _lead(options: argparse.Namespace, manifest: RunManifest, ranks: Ranks) -> int:
    """Run the replica, or its rank 0."""
    with ExitStack() as others:
        others.callback(_dismiss, ranks)
        try:
            return _replica(options, manifest, ranks)
        except errors.DeviceLostError:
            others.pop_all()  # They wait for this rank's device; the caller ends them.
            raise


def _dismiss(ranks: Ranks) -> None:
    """End the following ranks."""
    if ranks.ready and ranks.several:
        announce(ranks.collective, Command.END)
    else:
        ranks.decline()


def _replica(options: argparse.Namespace, manifest: RunManifest, ranks: Ranks) -> int:
    paths = RunPaths(options.run_dir)
    counted = Incarnation(options.launch, options.restart)
    try:
        own = claim_incarnation(paths, options.replica, counted, BackoffRetry(lambda: False))
        who = Identity(options.replica, own)
        started = Replica(paths, manifest, who, Host(options.sharing, ranks.several), ranks)
    except errors.AIPerfError as error:
        warn(f"{options.replica}: {error}")
        return error.exit_status
    return started.run()


def claim_incarnation(
    paths: RunPaths, replica: str, counted: Incarnation, retry: Retry
) -> Incarnation:
    """Claim a new attempt of a replica by creating its folder; return the attempt.

    Args:
        paths: paths of the run.
        replica: name of the replica.
        counted: number of the attempt by the scheduler's count. It may be too low: a scheduler's
            controller that is killed loses its last seconds, and counts a restart in them again
            while the forgotten attempt continues to run.
        retry: retries failed writes.

    Raises:
        StorageError: the folder cannot be made.
    """
    known = _known_incarnations(paths.replica(replica))
    later = (each.restart + 1 for each in known if each.launch == counted.launch)
    restart = max(counted.restart, *later, 0)
    while True:
        incarnation = Incarnation(counted.launch, restart)
        folder = paths.incarnation(replica, incarnation)
        if retry(partial(_make_new, folder), str(folder)):
            return incarnation
        restart += 1


def _known_incarnations(folder: Path) -> list[Incarnation]:
    """Return the attempts whose folders are visible here."""
    found = []
    for path in folder.glob("*.*"):
        with suppress(ValueError):  # Another program's folder.
            found.append(Incarnation.parse(path.name))
    return found


def _make_new(folder: Path) -> bool:
    """Return whether this process created the folder; of two, one fails, also on NFS."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    try:
        folder.mkdir()
    except FileExistsError:
        return False
    return True


if __name__ == "__main__":
    try:
        status = main()
    except Exception:  # noqa: BLE001 -- printed in full, and in the exit status
        traceback.print_exc()
        status = errors.UNEXPECTED_STATUS
    sys.stdout.flush()
    sys.stderr.flush()
    # Frameworks need seconds to shut down, which would count towards the run. All records are on
    # stable storage by now, and the search workers have ended.
    os._exit(status)
