"""Signatures of runs, made over the bytes of the manifest with every file of the run."""

from __future__ import annotations

from collections.abc import Sequence

from aiperf_hpc.errors import RunDirectoryError, UsageError, reason_of
from aiperf_hpc.integrity.signatures import (
    LONGEST,
    BadSignatureError,
    PrivateKey,
    PublicKey,
    check_signature,
)
from aiperf_hpc.results.report.provenance import differences, is_final, manifest_of
from aiperf_hpc.results.views.run_view import RunView
from aiperf_hpc.run.paths import RunPaths, write_whole
from aiperf_hpc.untrusted.files import bytes_inside

NAMESPACE = "run@aiperf-hpc"
"""Namespace of signatures of runs (``ssh-keygen -n``); signatures for other uses are rejected."""


def sign_run(view: RunView, key: PrivateKey) -> PublicKey:
    """Sign a run that has a final report and whose files match its manifest.

    Raises:
        UsageError: the run has no final report, or its files differ from the manifest.
    """
    root = view.paths.root
    view.refresh()
    if not is_final(view):
        raise UsageError(
            f"{root} has no final report to sign; `aiperf report {root}` writes "
            "it once the run has ended"
        )
    if wrong := differences(view):
        raise UsageError(
            f"{root} does not match its manifest: {wrong[0].said}; `aiperf report {root}` writes a "
            "new one if the records are unchanged"
        )
    if not manifest_of(view).complete:
        raise UsageError(
            f"{root}: its manifest is of an earlier version, which does not name every file; "
            f"`aiperf report {root}` writes a new one"
        )
    put_signature(view.paths, view.paths.report_manifest.read_bytes(), key)
    return key.public


def put_signature(paths: RunPaths, manifest: bytes, key: PrivateKey) -> None:
    """Write the signature of a manifest. Raises RunDirectoryError if it cannot be written."""
    try:
        write_whole(paths.signature, key.sign(manifest, NAMESPACE))
    except OSError as error:
        raise RunDirectoryError(f"cannot write {paths.signature}: {reason_of(error)}") from None


def is_signed(paths: RunPaths) -> bool:
    """Return whether a signature exists, valid or not."""
    return paths.signature.is_symlink() or paths.signature.exists()


def signed_by(paths: RunPaths, trusted: Sequence[PublicKey] = ()) -> PublicKey | None:
    """Return the key of a run's signature, with its name if trusted, or None if unsigned.

    Raises:
        BadSignatureError: the signature is malformed or does not match the manifest.
    """
    if not is_signed(paths):
        return None
    try:
        signature = bytes_inside(paths.root, paths.signature, LONGEST)
        manifest = bytes_inside(paths.root, paths.report_manifest)
    except OSError as error:
        raise BadSignatureError(f"it cannot be checked: {reason_of(error)}") from None
    key = check_signature(manifest, signature, NAMESPACE)
    return next((each for each in trusted if each.raw == key.raw), key)
