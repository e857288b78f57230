"""Keys, and the signatures of runs: ``aiperf keygen`` and ``aiperf sign``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from aiperf_hpc.cli.output import say
from aiperf_hpc.cli.parameters import Run


def keygen(
    file: Annotated[
        Path,
        Argument(
            metavar="FILE", parser=Path, help="Of the private key; FILE.pub is the public one."
        ),
    ],
    name: Annotated[str, Option("--name", metavar="TEXT", help="Whose key it is.")] = "",
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
    key: Annotated[Path, Option("--key", metavar="FILE", parser=Path, help="The private key.")],
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
