"""Keys, signatures and timestamps: ``aiperf keygen``, ``aiperf sign`` and ``aiperf witness``."""

from __future__ import annotations

import socket
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from typer import Argument

from aiperf_hpc.cli.output import say
from aiperf_hpc.cli.parameters import Run, option, path_option, value
from aiperf_hpc.cli.serving import Certificate, CertificateKey, ServerSecurity, endpoint_of
from aiperf_hpc.errors import restated


def keygen(
    file: Annotated[
        Path,
        Argument(
            metavar="FILE", parser=Path, help="Path of the private key; FILE.pub is the public key."
        ),
    ],
    name: Annotated[str, option("--name", "TEXT", "Owner of the key.")] = "",
) -> int:
    """Generate a key pair for signing results.

    The keys are Ed25519 keys in the format of `ssh-keygen -t ed25519`. Only the owner can read the
    private key; publish the public key so that others can verify the results.

    Examples:
      $ aiperf keygen ~/.aiperf-key --name "Example Centre"
    """
    from aiperf_hpc.integrity.signatures import make_key, public_path

    say(f"{make_key(file, name)}: {file}, keep it secret; {public_path(file)}, publish it")
    return 0


def sign(
    run: Run,
    key: Annotated[Path, path_option("--key", "FILE", "The private key.")],
) -> int:
    """Sign a finished run.

    The signature covers the manifest, which lists the SHA-256 of every file of the run. If the key
    has a passphrase, or is in an agent or a hardware token, sign with OpenSSH:
    `ssh-keygen -Y sign -n run@aiperf-hpc -f KEY RUN/report/manifest.json`.

    Examples:
      $ aiperf sign 20261121-101500-imagenet-3f2a --key ~/.aiperf-key
    """
    from aiperf_hpc.integrity.signatures import load_private_key
    from aiperf_hpc.results.report.provenance import sign_run
    from aiperf_hpc.results.views.run_view import RunView
    from aiperf_hpc.run.paths import RunPaths

    own, paths = load_private_key(key), RunPaths(run)
    say(f"signed by {sign_run(RunView(paths), own)}: {paths.signature}")
    return 0


@dataclass(frozen=True)
class WitnessOptions:
    """Folder, address and limits of a witness."""

    folder: Annotated[Path, Argument(metavar="DIR", parser=Path)]
    """Folder for the server's key and log."""
    address: Annotated[str, value("HOST:PORT")] = ""
    """Listening address. Default: 127.0.0.1, any free port."""
    tls_certificate: Certificate = None
    tls_key: CertificateKey = None
    name: Annotated[str, value("TEXT")] = ""
    """Name of the server. Default: the host's name."""
    per_minute: Annotated[int, value("N", min=1)] = 600
    """Maximum number of requests per minute from one address."""
    max_gib: Annotated[float, value("GIB", min=0.001)] = 16.0
    """Maximum size of the log in GiB."""
    check: bool = False
    """Check the log and exit."""


def witness(chosen: WitnessOptions) -> int:
    """Run a timestamping server that signs journal digests.

    Runs send the digest of the primary's journal periodically (`witness.urls`); the server signs
    and logs each digest with the time of its own clock. Besides the digest, the witness receives
    only the run's name and the length of the journal. Anyone can run a server, but its statements
    carry weight only if the operator does not profit from the result. The first start creates the
    key; others verify the statements with DIR/key.pub.

    Examples:
      $ aiperf witness /var/lib/aiperf-witness --address 0.0.0.0:8766
      $ aiperf witness /var/lib/aiperf-witness --check
    """
    from aiperf_hpc.service.witness_server.log import WitnessLog

    folder = chosen.folder
    if chosen.check:
        return _check(folder)
    security = ServerSecurity(None, chosen.tls_certificate, chosen.tls_key)
    endpoint = endpoint_of(chosen.address, security)
    log = WitnessLog(folder, most_bytes=int(chosen.max_gib * 2**30))
    from aiperf_hpc.service.witness_server.app import serve

    say(f"key {log.key.public.fingerprint} ({folder / 'key.pub'})")
    say(f"log {folder / 'log.jsonl'}, {log.count} statements")
    name = chosen.name or socket.gethostname()
    serve(log, name, endpoint, per_minute=chosen.per_minute, announce=say)
    log.close()
    return 0


def _check(folder: Path) -> int:
    from aiperf_hpc.integrity.signatures import read_trusted
    from aiperf_hpc.service.witness_server.log import checked_log

    (key,) = read_trusted([folder / "key.pub"])
    with restated(f"cannot read the log in {folder}", caught=OSError):
        count = sum(1 for _ in checked_log(folder / "log.jsonl", key.fingerprint))
    say(f"PASSED: {count} statements, chained and signed by {key.fingerprint}")
    return 0
