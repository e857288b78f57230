"""The witnesses of a run, as its configuration names them."""

from __future__ import annotations

from contextlib import suppress

from aiperf_hpc.run.history import RunHistory
from aiperf_hpc.run.manifest import RunManifest
from aiperf_hpc.verification.witness_client.witness import StatingWitness, Witness, token_in


def witnesses_of(manifest: RunManifest, history: RunHistory) -> list[tuple[Witness, float]]:
    """Return who is shown the heads of a run, with the seconds between two of them.

    Args:
        manifest: the run.
        history: its records so far, which have what each witness has stated before.

    Raises:
        AIPerfError: what witnesses know the run by cannot be read or written.
    """
    config, run = manifest.config, manifest.run_id
    found: list[tuple[Witness, float]] = []
    if config.witness.urls:
        token = token_in(history.paths.witness_token)
        for url in config.witness.urls:
            known = history.witnesses.get(url)
            last = None if known is None else known.last
            found.append((StatingWitness(url, run, token, last), config.witness.seconds))
    if config.timestamps.urls:
        from aiperf_hpc.verification.witness_client.timestamps import StampingAuthority

        for url in config.timestamps.urls:
            found.append((StampingAuthority(url, run), config.timestamps.seconds))
    return found


def forget(history: RunHistory) -> None:
    """Remove what witnesses know the run by, which is of no use once it has ended."""
    if history.end_utc is not None:
        with suppress(OSError):  # It says nothing of the run, and is said in the manifest.
            history.paths.witness_token.unlink(missing_ok=True)
