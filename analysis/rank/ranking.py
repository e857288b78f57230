"""Ranking of runs, and the reasons why other runs are not ranked.

This process verifies every run again, so that the ranking depends on the records and not on the
reports.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from pydantic import field_serializer

from aiperf_hpc.errors import AIPerfError, reason_of
from aiperf_hpc.formatting import utc_text
from aiperf_hpc.results.report.signing import signed_by
from aiperf_hpc.results.views.quantities import View, quantities_in
from aiperf_hpc.results.views.run_catalog import find_runs
from aiperf_hpc.results.views.run_summary import RunDetails
from aiperf_hpc.results.views.run_view import RunView
from aiperf_hpc.rules.consistency.evidence import NOBODY_TRUSTED, Trusted
from aiperf_hpc.rules.judgement import assured
from aiperf_hpc.rules.rule import Division, RuleResult, Violation
from aiperf_hpc.run.history import RunHistory
from aiperf_hpc.run.paths import RunPaths
from aiperf_hpc.trial import Value
from aiperf_hpc.verification.audit import check, evidence_of
from aiperf_hpc.verification.verdict import assurance_of

Announce = Callable[[str], None]
"""Called with the name of each run before it is verified."""
Processes = frozenset[tuple[float, int]]
"""Start, UTC seconds, and number of each process of a run: two runs share none."""
NOBODY = "nobody"
UNSIGNED = Violation(rule="signature", reason="the run is not signed; sign it with `aiperf sign`")


class ExcludedRun(Value):
    """An unranked run and the reasons."""

    name: str
    reasons: tuple[str, ...]


class Ranking(Value):
    """The runs in a folder."""

    valid: tuple[RunDetails, ...]
    """Verified official runs: the closed division, then the open division, highest score first."""
    invalid: tuple[RunDetails, ...]
    """Verified unofficial runs in the same order."""
    excluded: tuple[ExcludedRun, ...]
    """Runs whose score is not final or not verified, and copies of other runs."""
    foreign: tuple[str, ...]
    """Names of folders that are not runs."""

    @field_serializer("valid", "invalid", when_used="json")
    def _rows(self, entries: tuple[RunDetails, ...]) -> list[dict[str, object]]:
        return [_row(entry) for entry in entries]

    @property
    def divisions(self) -> dict[Division, list[RunDetails]]:
        """The official runs of each division with any, highest score first."""
        found: dict[Division, list[RunDetails]] = {}
        for entry in self.valid:
            if entry.division is not None:
                found.setdefault(entry.division, []).append(entry)
        return found


def _row(run: RunDetails) -> dict[str, object]:
    """Return a run for the ranking's document: length in hours, reasons and figures."""
    names = ("name", "run_id", "system", "submitter", "preset", "dataset", "signed_by", "witness")
    figures = {each.name: each.read(run) for each in quantities_in(View.RANKING).values()}
    return {
        **{name: getattr(run, name) for name in names},
        **figures,
        "resources": run.resources,
        "started": utc_text(run.started_utc),
        "hours": run.score.elapsed_seconds / 3600.0,
        "energy_label": run.energy_label,
        "division": run.division,
        "declared": run.declared,
        "violations": run.violations,
        "closed_violations": run.closed_violations,
    }


class _NotRankedError(Exception):
    """A run is not ranked; the arguments are the reasons."""


def rank_runs(
    folder: Path,
    announce: Announce = lambda name: None,
    trusted: Trusted = NOBODY_TRUSTED,
) -> Ranking:
    """Verify the runs in a folder and rank those that pass.

    Args:
        folder: path of the folder with the runs.
        announce: called with the name of each run.
        trusted: trusted keys, one of which must have signed each run, and trusted witnesses, one
            of which must have covered it; no requirement if empty, but then no run is closed.

    Raises:
        RunDirectoryError: the folder cannot be read.
    """
    found, foreign = find_runs(folder)
    entries: list[RunDetails] = []
    known: dict[str | tuple[float, int], RunDetails] = {}
    excluded: list[ExcludedRun] = []
    for name, paths in sorted(found.items()):
        announce(name)
        try:
            entry, processes = _entry(name, paths, trusted)
            keys: tuple[str | tuple[float, int], ...] = (entry.run_id, *processes)
            same = next((known[key] for key in keys if key in known), None)
            if same is not None:
                raise _NotRankedError(f"it is a copy of the run {same.name}")
            known |= dict.fromkeys(keys, entry)
            entries.append(entry)
        except _NotRankedError as why:
            excluded.append(ExcludedRun(name=name, reasons=why.args))
    ordered = sorted(entries, key=lambda entry: (-entry.score.ops, entry.run_id))
    return Ranking(
        valid=tuple(e for each in Division for e in ordered if e.division is each),
        invalid=tuple(entry for entry in ordered if entry.division is None),
        excluded=tuple(excluded),
        foreign=foreign,
    )


def _entry(name: str, paths: RunPaths, trusted: Trusted) -> tuple[RunDetails, Processes]:
    """Return a run that passes verification, and its processes.

    Raises _NotRankedError for any other run.
    """
    try:
        view = RunView.read(paths)
        if view.history.end_utc is None:
            raise _NotRankedError("it has not ended")
        results = check(evidence_of(view, trusted))
        failures = tuple(_failures(results))
        if failures:
            raise _NotRankedError(*failures)
        key = signed_by(paths, trusted.signers)
        found = RunDetails.of(view, name)
        if found.division is Division.CLOSED:
            judged = assured(view.judgement(), view.manifest, assurance_of(trusted, results))
            changed = {
                "division": judged.division,
                "violations": tuple(judged.violations),
                "closed_violations": judged.closed_violations,
            }
            found = found.model_copy(update=changed)
        if key is None:
            violations = (*found.violations, UNSIGNED)
            found = found.model_copy(update={"division": None, "violations": violations})
        signer = (
            NOBODY if key is None else str(key) if trusted.signers else f"{key}, key not checked"
        )
        return found.model_copy(update={"signed_by": signer}), _processes(view.history)
    except (AIPerfError, OSError) as error:
        raise _NotRankedError(reason_of(error)) from None


def _processes(history: RunHistory) -> Processes:
    primaries = ((utc, event.pid) for utc, event in history.run_starts)
    replicas = (
        (utc, event.pid)
        for replica in history.replicas.values()
        for utc, event in replica.all_started
    )
    return frozenset((*primaries, *replicas))


def _failures(results: Iterable[RuleResult]) -> Iterator[str]:
    for finding in results:
        if not finding.passed:
            first, more = finding.failures[0], len(finding.failures) - 1
            others = f" and {more} more" if more else ""
            yield f"not verified, {finding.rule}: {first}{others}"
