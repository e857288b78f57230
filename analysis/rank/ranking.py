"""Which runs are ranked, in which order, and why others are not.

Every run is verified again here, in this process: a run is ranked by what its records give, not by
what its report says.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from aiperf_hpc.analysis.rank.entry import NOBODY, RankEntry
from aiperf_hpc.errors import AIPerfError, reason_of
from aiperf_hpc.integrity.signatures import PublicKey
from aiperf_hpc.ops_counter.divisions import Division
from aiperf_hpc.results.report.signing import signed_by
from aiperf_hpc.results.views.run_catalog import find_runs
from aiperf_hpc.results.views.run_view import RunView
from aiperf_hpc.run.paths import RunPaths
from aiperf_hpc.trial import Value
from aiperf_hpc.verification.audit import verify

Announce = Callable[[str], None]
"""Told the name of each run before it is verified."""


class LeftOut(Value):
    """A run without a place, and why."""

    name: str
    reasons: tuple[str, ...]


class Ranking(Value):
    """The runs in a folder."""

    valid: tuple[RankEntry, ...]
    """Verified runs that are official: the closed division's, then the open one's, the highest
    score first."""
    invalid: tuple[RankEntry, ...]
    """Verified runs that do not, likewise."""
    left_out: tuple[LeftOut, ...]
    """Runs whose score is not final, not verified, or that of another folder's run."""
    foreign: tuple[str, ...]
    """Folders that are no runs."""

    @property
    def divisions(self) -> dict[Division, list[RankEntry]]:
        """The official runs of each division that has any, the highest score first."""
        found: dict[Division, list[RankEntry]] = {}
        for entry in self.valid:
            if entry.division is not None:
                found.setdefault(entry.division, []).append(entry)
        return found


class _NotRankedError(Exception):
    """A run has no place; the arguments are the reasons."""


def rank_runs(
    folder: Path,
    announce: Announce = lambda name: None,
    trusted: Sequence[PublicKey] = (),
) -> Ranking:
    """Verify the runs in a folder, and rank those that pass.

    Args:
        folder: of the runs.
        announce: told the name of each.
        trusted: the keys of which one must have signed each, if any must.

    Raises:
        RunDirectoryError: it cannot be read.
    """
    found, foreign = find_runs(folder)
    entries: dict[str, RankEntry] = {}
    left_out: list[LeftOut] = []
    for name, paths in sorted(found.items()):
        announce(name)
        try:
            entry = _entry(name, paths, trusted)
            if (same := entries.get(entry.run_id)) is not None:
                raise _NotRankedError(f"it is the run of {same.name} again")
            entries[entry.run_id] = entry
        except _NotRankedError as why:
            left_out.append(LeftOut(name=name, reasons=why.args))
    ordered = sorted(entries.values(), key=lambda entry: (-entry.ops, entry.run_id))
    return Ranking(
        valid=tuple(e for each in Division for e in ordered if e.division is each),
        invalid=tuple(entry for entry in ordered if entry.division is None),
        left_out=tuple(left_out),
        foreign=foreign,
    )


def _entry(name: str, paths: RunPaths, trusted: Sequence[PublicKey]) -> RankEntry:
    """Return a run that passes verification. Raises _NotRankedError for any other."""
    try:
        view = RunView(paths)
        view.refresh()
        if view.history.end_utc is None:
            raise _NotRankedError("it has not ended")
        failures = tuple(_failures(view, trusted))
        if failures:
            raise _NotRankedError(*failures)
        key = signed_by(paths, trusted)
        return RankEntry.of(view, name, NOBODY if key is None else str(key))
    except AIPerfError as error:
        raise _NotRankedError(str(error)) from None
    except OSError as error:
        raise _NotRankedError(reason_of(error)) from None


def _failures(view: RunView, trusted: Sequence[PublicKey]) -> Iterator[str]:
    for finding in verify(view, trusted):
        if not finding.passed:
            first, more = finding.failures[0], len(finding.failures) - 1
            others = f" and {more} more" if more else ""
            yield f"not verified, {finding.rule}: {first}{others}"
