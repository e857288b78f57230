"""Start the ranks of one replica on this machine, for collectives without mpirun.

``python -m aiperf_hpc.replica.parallel.start_ranks --collective torch --ranks 2 -- COMMAND...``

Each rank is a process that reads its number from its environment. If one fails, the others have
``GRACE_SECONDS`` to exit and are then killed, and the exit status is that of the failed one: 128
plus the number of a signal, as with mpirun. ``torchrun`` and ``horovodrun`` exit with status 1 for
every failure, which does not distinguish a rejected configuration from a crash.
"""

from __future__ import annotations

import argparse
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from functools import partial

from aiperf_hpc.errors import AIPerfError, UsageError
from aiperf_hpc.extras import COLLECTIVES
from aiperf_hpc.streams import print_in_any_locale, warn

Environment = dict[str, str]
GRACE_SECONDS = 10.0
"""Seconds that ranks have to exit after one of them failed."""
LOOK_SECONDS = 0.1
FORWARDED = (signal.SIGUSR1, signal.SIGTERM, signal.SIGINT)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the ranks; return the exit status."""
    print_in_any_locale()
    parser = argparse.ArgumentParser(prog="aiperf_hpc.replica.parallel.start_ranks")
    parser.add_argument("--collective", choices=("torch", "horovod"), required=True)
    parser.add_argument("--ranks", type=int, required=True)
    parser.add_argument("command", nargs=argparse.REMAINDER)
    options = parser.parse_args(arguments)
    command = options.command[options.command[:1] == ["--"] :]
    make = {"torch": _torch, "horovod": _horovod}[options.collective]
    try:
        environments = make(options.ranks)
    except AIPerfError as error:
        warn(error)
        return error.exit_status
    ranks = [subprocess.Popen(command, env=os.environ | own) for own in environments]
    for number in FORWARDED:
        signal.signal(number, partial(_forward, ranks))
    return _watch(ranks)


def _forward(ranks: Sequence[subprocess.Popen[bytes]], number: int, _: object) -> None:
    for rank in ranks:
        rank.send_signal(number)


def _watch(ranks: Sequence[subprocess.Popen[bytes]]) -> int:
    """Wait until all ranks have succeeded or one has failed."""
    while True:
        ended = [rank.poll() for rank in ranks]
        failed = [status for status in ended if status]
        if failed or None not in ended:
            break
        time.sleep(LOOK_SECONDS)
    until = time.monotonic() + GRACE_SECONDS
    for rank in ranks:
        try:
            rank.wait(max(0.0, until - time.monotonic()))
        except subprocess.TimeoutExpired:
            rank.kill()
            rank.wait()
    status = failed[0] if failed else 0
    return 128 - status if status < 0 else status


def _torch(ranks: int) -> list[Environment]:
    """Return the environment variables of torchrun."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    return [
        {
            "RANK": str(rank),
            "WORLD_SIZE": str(ranks),
            "LOCAL_RANK": str(rank),
            "LOCAL_WORLD_SIZE": str(ranks),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
            "GLOO_SOCKET_IFNAME": "lo",
        }
        for rank in range(ranks)
    ]


def _horovod(ranks: int) -> list[Environment]:
    """Return the environment variables of horovodrun, and start its rendezvous server.

    Raises:
        UsageError: Horovod is not installed.
    """
    try:
        from horovod.runner.common.util.hosts import get_host_assignments, parse_hosts
        from horovod.runner.gloo_run import create_slot_env_vars
        from horovod.runner.http.http_server import RendezvousServer
    except ModuleNotFoundError as error:
        remedy = COLLECTIVES["horovod"].remedy
        raise UsageError(
            f"collective 'horovod' needs the package '{error.name}': {remedy}"
        ) from None
    slots = get_host_assignments(parse_hosts(f"localhost:{ranks}"), ranks)
    server = RendezvousServer()
    port = server.start()  # Its thread ends with this process.
    server.init(slots)
    shared = {
        "HOROVOD_GLOO_RENDEZVOUS_ADDR": "127.0.0.1",
        "HOROVOD_GLOO_RENDEZVOUS_PORT": str(port),
        "HOROVOD_GLOO_IFACE": "lo",
        "HOROVOD_CONTROLLER": "gloo",
        "HOROVOD_CPU_OPERATIONS": "gloo",
    }
    return [shared | create_slot_env_vars(slot) for slot in slots]


if __name__ == "__main__":
    sys.exit(main())
