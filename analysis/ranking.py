"""Ranking of runs with its tables and its page, and the reasons why other runs are not ranked.

This process verifies every run again, so that the ranking depends on the records and not on the
reports.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

from pydantic import field_serializer

from aiperf_hpc import __version__
from aiperf_hpc.errors import AIPerfError, RunDirectoryError, reason_of, restated
from aiperf_hpc.formatting import si, utc_text
from aiperf_hpc.grouping import grouped
from aiperf_hpc.results.report.provenance import signed_by
from aiperf_hpc.results.report.templates import page_templates
from aiperf_hpc.results.table import NONE, Table
from aiperf_hpc.results.views.quantities import Quantity, View, quantities_in
from aiperf_hpc.results.views.run_catalog import RunDetails, find_runs
from aiperf_hpc.results.views.run_view import RunView
from aiperf_hpc.rules.consistency.evidence import NOBODY_TRUSTED, Trusted
from aiperf_hpc.rules.judgement import assured
from aiperf_hpc.rules.rule import Division, RuleResult, Violation
from aiperf_hpc.run.history import RunHistory
from aiperf_hpc.run.paths import RunPaths, write_whole
from aiperf_hpc.streams import without_controls, without_stand_ins
from aiperf_hpc.system.summary import times
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
        return grouped((each.division, each) for each in self.valid if each.division is not None)


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


WORDS = ("system", "accelerators", "signed by", "rules violated")
"""Titles of text columns."""
RANKED = "Official runs"
WITHOUT_A_NAME = "no name given"


def tables_of(ranking: Ranking) -> list[Table]:
    """Return the tables of ranked runs, unofficial runs and unranked runs."""
    ranked = [_ranked(division, entries) for division, entries in ranking.divisions.items()]
    none = Table(_columns("rank"), title=RANKED, notes=("No run.",))
    return [*(ranked or [none]), *_invalid(ranking.invalid), *_excluded(ranking)]


def _ranked(division: Division, entries: Sequence[RunDetails]) -> Table:
    return Table(
        columns := _columns("rank"),
        tuple((f"{place}", *_cells(each)) for place, each in enumerate(entries, 1)),
        title=f"{RANKED}, {division} division",
        words=_words(columns),
        notes=(
            *(f"{e.name} declares {'; '.join(e.declared)}." for e in entries if e.declared),
            *(f"{e.name} is not closed: {each}." for e in entries for each in e.closed_violations),
            *(f"{e.name}: {e.witness}." for e in entries),
        ),
    )


def _invalid(entries: Iterable[RunDetails]) -> Iterable[Table]:
    rows = tuple((*_cells(each), _rules(each)) for each in entries)
    if rows:
        title = "Unofficial runs: verified, without a rank"
        notes = ("Reasons: result.txt of the run, or --json.",)
        columns = (*_columns(), "rules violated")
        yield Table(columns, rows, title=title, words=_words(columns), notes=notes)


def _columns(*first: str) -> tuple[str, ...]:
    return (*first, "system", *quantities_in(View.RANKING), "signed by", "run")


def _words(columns: Sequence[str]) -> tuple[int, ...]:
    """Return the indices of the text columns after the first column."""
    return tuple(place for place, name in enumerate(columns) if place and name in WORDS)


def _rules(entry: RunDetails) -> str:
    """Return the names of the rules that a run violates."""
    return ", ".join(dict.fromkeys(each.rule for each in entry.violations))


def _excluded(ranking: Ranking) -> Iterable[Table]:
    rows = tuple((each.name, "; ".join(each.reasons)) for each in ranking.excluded)
    if rows:
        yield Table(("run", "reason"), rows, title="Not ranked", words=(1,))


def _cells(entry: RunDetails) -> tuple[str, ...]:
    models = entry.resources.accelerators.items()
    accelerators = ", ".join(times(count, model) for model, count in models) or "none"
    figures = (
        accelerators if quantity.name == "accelerators" else figure_of(quantity, entry)
        for quantity in quantities_in(View.RANKING).values()
    )
    return (system_of(entry), *figures, entry.signed_by, entry.name)


def figure_of(quantity: Quantity, entry: RunDetails) -> str:
    """Return a headline figure; the power with its label."""
    return power_of(entry) if quantity.name == "watts" else quantity.text_of(entry)


def power_of(entry: RunDetails) -> str:
    """Return the mean power, and whether it is an estimate or excludes parts of the machine."""
    if entry.energy is None or entry.energy.watts is None:
        return NONE
    watts = si(entry.energy.watts, "W")
    return watts if entry.energy_label == "measured" else f"{watts}, estimated"


def system_of(entry: RunDetails) -> str:
    """Return a system's name and submitter, or the names of its processors if it has no name."""
    named = ", ".join(filter(None, [entry.system, entry.submitter]))
    return named or ", ".join(entry.resources.processors) or WITHOUT_A_NAME


def write_page(ranking: Ranking, path: Path) -> None:
    """Write the page. Raises RunDirectoryError if it cannot be written."""
    with restated(f"cannot write {path}", RunDirectoryError, caught=OSError):
        write_whole(path, without_controls(without_stand_ins(render(ranking))))


def render(ranking: Ranking) -> str:
    """Return the page's text, which is deterministic for a ranking."""
    templates = page_templates("aiperf_hpc.analysis.page")
    templates.filters |= {
        "system": system_of,
        "figure": figure_of,
        "day": lambda utc: str(utc_text(utc))[:10],
        "heading": lambda text: text[:1].upper() + text[1:],
        "times": lambda model, count: times(count, model),
    }
    return templates.get_template("rank.html").render(
        ranking=ranking, quantities=quantities_in(View.RANKING), version=__version__
    )
