"""Keys, signatures and timestamps: ``aiperf keygen``, ``aiperf sign`` and ``aiperf witness``."""

from __future__ import annotations

import socket
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from typer import Argument

from aiperf_hpc.cli.output import say
from aiperf_hpc.cli.parameters import Run, flag, option, path_option
from aiperf_hpc.cli.serving import Certificate, CertificateKey, Protection, endpoint_of
from aiperf_hpc.errors import UsageError, reason_of


def keygen(
    file: Annotated[
        Path,
        Argument(
            metavar="FILE", parser=Path, help="Of the private key; FILE.pub is the public one."
        ),
    ],
    name: Annotated[str, option("--name", "TEXT", "Whose key it is.")] = "",
) -> int:
    """Generate a key pair for signing results.

    It is a key of Ed25519 as `ssh-keygen -t ed25519` makes it. The private one is for its owner
    alone to read; the public one goes to whoever is to believe the results.

    Examples:
      $ aiperf keygen ~/.aiperf-key --name "Example Centre"
    """
    from aiperf_hpc.integrity.signatures import make_key, public_path

    say(f"{make_key(file, name)}: {file}, to be kept; {public_path(file)}, to be given away")
    return 0


def sign(
    run: Run,
    key: Annotated[Path, path_option("--key", "FILE", "The private key.")],
) -> int:
    """Sign a finished run.

    What is signed is the manifest, which has the SHA-256 of every file of the run. With a key that
    has a passphrase, or is in an agent or a token, OpenSSH signs the same:
    `ssh-keygen -Y sign -n run@aiperf-hpc -f KEY RUN/report/manifest.json`.

    Examples:
      $ aiperf sign 20261121-101500-imagenet-3f2a --key ~/.aiperf-key
    """
    from aiperf_hpc.integrity.signatures import load_private_key
    from aiperf_hpc.results.report.signing import sign_run
    from aiperf_hpc.results.views.run_view import RunView
    from aiperf_hpc.run.paths import RunPaths

    own, paths = load_private_key(key), RunPaths(run)
    say(f"signed by {sign_run(RunView(paths), own)}: {paths.signature}")
    return 0


@dataclass(frozen=True)
class Listening:
    """Where a witness listens."""

    address: Annotated[str, option("--address", "HOST:PORT", "Default: a port of loopback.")] = ""
    tls_certificate: Certificate = None
    tls_key: CertificateKey = None


def witness(
    folder: Annotated[
        Path, Argument(metavar="DIR", parser=Path, help="Where its key and its log are kept.")
    ],
    listening: Listening,
    name: Annotated[str, flag("--name", "What it calls itself. Default: the host's name.")] = "",
    per_minute: Annotated[
        int, option("--per-minute", "N", "Requests of one address a minute.", min=1)
    ] = 600,
    most_gib: Annotated[
        float, option("--most-gib", "GIB", "How long its log may become.", min=0.001)
    ] = 16.0,
    check: Annotated[
        bool, flag("--check", "Check all that its log says, and serve nothing.")
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
    from aiperf_hpc.service.witness_server.app import serve

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
