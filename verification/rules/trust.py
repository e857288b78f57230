"""Whether the run is what was left at its end, and who says so."""

from __future__ import annotations

from aiperf_hpc.formatting import few
from aiperf_hpc.integrity.signatures import BadSignatureError
from aiperf_hpc.results.report.provenance import differences, is_complete
from aiperf_hpc.results.report.signing import is_signed, signed_by
from aiperf_hpc.verification.evidence import Evidence, Failures, Note

UNSIGNED = "unsigned"
UNCHECKED = "whose key that is was not checked, for which --key is"


def files(run: Evidence) -> Failures:
    """The files of the run are those that its manifest names, to their last byte.

    A scheduler may start a replica once the run has ended, or print into its log. That is no part
    of the run; but whoever signed it did not sign that.
    """
    if run.reported:
        signed = is_signed(run.view.paths)
        for each in differences(run.view):
            yield Note(each.said) if each.late and not signed else each.said


def signature(run: Evidence) -> Failures:
    """The manifest is signed, by a trusted key where any was named."""
    trusted, paths = run.trusted, run.view.paths
    try:
        key = signed_by(paths, trusted)
    except BadSignatureError as error:
        yield f"BAD signature: {error}"
        return
    wanted = f"it must be signed by {few([str(each) for each in trusted])}"
    if key is None:
        yield f"{UNSIGNED}; {wanted}" if trusted else Note(UNSIGNED)
        return
    if not is_complete(run.view):
        yield f"signed by {key}, but manifest.json does not name every file of a run that has ended"
    elif key in trusted:
        yield Note(f"signed by {key}")
    elif trusted:
        yield f"signed by {key}, another key; {wanted}"
    else:
        yield Note(f"signed by {key}; {UNCHECKED}")


def signatures(run: Evidence) -> int:
    """Return how many signatures there are."""
    return int(is_signed(run.view.paths))
