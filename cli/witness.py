"""``aiperf witness``."""

from __future__ import annotations

import socket
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from aiperf_hpc.cli.output import say
from aiperf_hpc.cli.serving import Certificate, CertificateKey, Protection, endpoint_of
from aiperf_hpc.errors import UsageError, reason_of


@dataclass(frozen=True)
class Listening:
    """Where a witness listens."""

    address: Annotated[
        str, Option("--address", metavar="HOST:PORT", help="Default: a port of loopback.")
    ] = ""
    tls_certificate: Certificate = None
    tls_key: CertificateKey = None


def witness(
    folder: Annotated[
        Path, Argument(metavar="DIR", parser=Path, help="Where its key and its log are kept.")
    ],
    listening: Listening,
    name: Annotated[
        str, Option("--name", help="What it calls itself. Default: the host's name.")
    ] = "",
    per_minute: Annotated[
        int, Option("--per-minute", metavar="N", min=1, help="Requests of one address a minute.")
    ] = 600,
    most_gib: Annotated[
        float, Option("--most-gib", metavar="GIB", min=0.001, help="How long its log may become.")
    ] = 16.0,
    check: Annotated[
        bool, Option("--check", help="Check all that its log says, and serve nothing.")
    ] = False,
) -> int:
    """Run a timestamping server that signs journal digests.

    A run shows the head of its primary's journal every so often (`witness.urls`); the witness signs
    and logs which head it was shown and when. It learns nothing else of a run. Anybody may run one;
    it is worth something where who runs it has nothing to gain. Its key is made at its first start,
    and DIR/key.pub is what others check its statements by.

    Examples:
      $ aiperf witness /var/lib/aiperf-witness --address 0.0.0.0:8766
      $ aiperf witness /var/lib/aiperf-witness --check
    """
    from aiperf_hpc.service.witness_server.log import WitnessLog

    if check:
        return _check(folder)
    protection = Protection(None, listening.tls_certificate, listening.tls_key)
    endpoint = endpoint_of(listening.address, protection)
    log = WitnessLog(folder, most_bytes=int(most_gib * 2**30))
    from aiperf_hpc.service.witness_server.server import serve

    say(f"key {log.key.public.fingerprint} ({folder / 'key.pub'})")
    say(f"log {folder / 'log.jsonl'}, {log.count} statements")
    serve(log, name or socket.gethostname(), endpoint, per_minute=per_minute, announce=say)
    log.close()
    return 0


def _check(folder: Path) -> int:
    from aiperf_hpc.integrity.signatures import read_trusted
    from aiperf_hpc.service.witness_server.log import checked_log

    (key,) = read_trusted([folder / "key.pub"])
    try:
        count = sum(1 for _ in checked_log(folder / "log.jsonl", key.fingerprint))
    except OSError as error:
        raise UsageError(f"cannot read the log in {folder}: {reason_of(error)}") from None
    say(f"PASSED: {count} statements, chained and signed by {key.fingerprint}")
    return 0
