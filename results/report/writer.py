"""Writer of a run's report: a page for people, a document for programs, and a manifest.

A report may also be written during the run and then states that it is not final.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import starmap
from pathlib import Path
from statistics import median

from aiperf_hpc.config import differences
from aiperf_hpc.errors import RunDirectoryError, UsageError
from aiperf_hpc.formatting import NAMED, duration, few, quality, si
from aiperf_hpc.integrity.signatures import PrivateKey
from aiperf_hpc.objective import QUALITY_METRICS
from aiperf_hpc.ops_counter.score import ScoreStatus
from aiperf_hpc.results.report.document import Report, make_report
from aiperf_hpc.results.report.html import render
from aiperf_hpc.results.report.mllog import mllog_text
from aiperf_hpc.results.report.provenance import (
    ReportManifest,
    changed_inputs,
    is_final,
    is_signed,
    provenance_of,
    put_signature,
)
from aiperf_hpc.results.report.result_text import result_text
from aiperf_hpc.results.report.scaling import Scaling, ScalingRun, make_scaling
from aiperf_hpc.results.report.schema import schema_text
from aiperf_hpc.results.views.clock import clock_lines
from aiperf_hpc.results.views.quantities import View, quantities_in
from aiperf_hpc.results.views.run_catalog import RunSummary, run_argument
from aiperf_hpc.results.views.run_view import RunStatus, RunView
from aiperf_hpc.results.views.telemetry import energy_line
from aiperf_hpc.results.views.trials import model_lines, trials_text
from aiperf_hpc.results.views.witnesses import witness_line
from aiperf_hpc.rules.judgement import IF_ASSURED
from aiperf_hpc.rules.rule import Division
from aiperf_hpc.run.paths import RunPaths, journal_order, write_whole
from aiperf_hpc.untrusted.files import bytes_inside, require_no_link

RESULT_INDENT = 17
"""Width of the titles in the summary's lines."""

Files = dict[Path, bytes]
"""Contents of files."""


def write_report(
    view: RunView, others: Sequence[RunPaths] = (), *, key: PrivateKey | None = None
) -> Path:
    """Write the page, document, text and manifest of a report. Return the path of the page.

    After the end of the run, ``summary.json`` is written too, for lists of runs.

    Args:
        view: the run.
        others: runs of other sizes, for a section on scaling.
        key: signs the manifest of a final report.

    Raises:
        UsageError: the other runs have no final reports or are not comparable with this one; or a
            run that has not ended is to be signed.
        JournalError: a journal cannot be read.
        GraphError: a trained graph is lost and cannot be grown again: nothing can be counted.
        RunDirectoryError: the report cannot be written; or the run's files are no longer those
            that its final report was made from, which stays as it is; so does one that is signed,
            where it would be another and there is no key.
    """
    view.refresh()
    _require_its_sources(view)
    paths = view.paths
    try:
        # Files of a run must not be written elsewhere.
        require_no_link(paths.report)
        files, manifest = _made(view, others)
        _take_signature(paths, manifest, key)
        # First, because it names the records from which an interrupted report can be rewritten.
        write_whole(paths.report_manifest, manifest.content())
        for path, content in files.items():
            write_whole(path, content)
    except OSError as error:
        where = error.filename or paths.report
        raise RunDirectoryError(
            f"cannot write the report of {paths.root}: {where}: {error.strerror}"
        ) from None
    if key is not None:
        put_signature(paths, manifest.content(), key)
    return paths.report_html


@dataclass(frozen=True, slots=True)
class _Page:
    """Inputs of a page."""

    text: str
    """Complete document as JSON."""
    fine: tuple[ScoreStatus, ...]
    journals: tuple[str, ...]
    document: Report = field(compare=False)


@lru_cache(maxsize=2)
def _rendered(page: _Page) -> str:
    """Return the page, which is cached for writing and verifying a report."""
    return render(page.document, page.fine, page.journals)


def _take_signature(paths: RunPaths, manifest: ReportManifest, key: PrivateKey | None) -> None:
    """Remove the signature of another manifest, if there is a key for a new one.

    Raises:
        UsageError: a run that has not ended is to be signed.
        RunDirectoryError: there is no key.
        OSError: the signature cannot be removed.
    """
    if key is not None and not manifest.final:
        raise UsageError(f"{paths.root} has not ended; only ended runs are signed")
    if not is_signed(paths) or _is_there(paths, manifest):
        return
    if key is None:
        raise RunDirectoryError(
            f"{paths.root} is signed, and a new report would invalidate the signature; "
            "name a key with --key, or "
            f"remove {paths.signature}"
        )
    paths.signature.unlink()


def _is_there(paths: RunPaths, manifest: ReportManifest) -> bool:
    try:
        return bytes_inside(paths.root, paths.report_manifest) == manifest.content()
    except OSError:
        return False


def _made(view: RunView, others: Sequence[RunPaths]) -> tuple[Files, ReportManifest]:
    """Return the report's files and their manifest. Raises like ``write_report``."""
    while True:
        view = _in_order(view)
        document = make_report(view)
        if others:
            document = document.model_copy(update={"scaling": _scaling(document, others)})
        files = report_files(view, document)
        manifest = provenance_of(view, files, final=document.final)
        read = view.history.bytes_read
        if document.final:
            view.refresh()
        # A disconnected replica may still write: the manifest covers all of its records.
        if view.history.bytes_read == read:
            return files, manifest


def _in_order(view: RunView) -> RunView:
    """Return a view that has read the journals in their order, as all later readers do.

    A journal that a file system listed late is read last, and its trials would be the last rows.
    """
    read = list(view.history.bytes_read)
    return view if read == sorted(read, key=journal_order) else RunView.read(view.paths)


def report_files(view: RunView, document: Report) -> Files:
    """Return the content of each file of a report on the records that ``view`` has read."""
    paths = view.paths
    text = f"{document.model_dump_json(indent=1)}\n"
    journals = tuple(str(path.relative_to(paths.root)) for path in view.history.bytes_read)
    page = _Page(text, tuple(view.series.curve()), journals, document)
    files = {
        paths.report_json: text,
        paths.report_html: _rendered(page),
        paths.result_text: result_text(document),
        paths.result_log: mllog_text(view, document),
        paths.report_schema: schema_text(),
    }
    if document.final:
        summary = RunSummary.of(view, document.name)
        files[paths.report_summary] = f"{summary.model_dump_json(indent=1)}\n"
    return {path: text.encode() for path, text in files.items()}


def _require_its_sources(view: RunView) -> None:
    """Require that the files used by an existing final report are unchanged.

    Raises:
        RunDirectoryError: the files have changed, or the manifest is unreadable.
    """
    if not is_final(view):
        return
    root, kept = view.paths.root, "the final report is unchanged because"
    try:
        changed = changed_inputs(view)
    except RunDirectoryError as error:
        raise RunDirectoryError(
            f"{root}: {kept} its sources are unknown: {error}; restore that file, or "
            f"move {view.paths.report} away for a new report"
        ) from None
    if changed:
        raise RunDirectoryError(
            f"{root}: {kept} files have changed since: {changed[0]}; see `aiperf verify {root}`"
        )


def _scaling(document: Report, others: Sequence[RunPaths]) -> Scaling:
    if not document.final:
        raise UsageError(f"{document.name} has not ended; scaling needs runs that have")
    own = ScalingRun.model_validate_json(document.model_dump_json())
    return make_scaling([own, *(ScalingRun.read(paths) for paths in others)])


def summary_lines(view: RunView) -> list[str]:
    """Return the result in a few lines of text for the end of a run, with the score last.

    Raises:
        GraphError: a trained graph is missing or damaged, so operations cannot be counted.
    """
    return list(starmap(_row, _summary(view)))


def _row(name: str, text: str) -> str:
    return f"{name:<{RESULT_INDENT - 1}} {text}"


def _summary(view: RunView) -> Iterator[tuple[str, str]]:
    """Yield titles and texts of the lines; further lines of a title have none."""
    final, status, metric = view.final(), view.status(view.until), view.quality_metric
    ended = view.history.end_utc is not None
    yield "Time", duration(final.elapsed_seconds)
    yield from (("Queue", line) for line in clock_lines(status.clock))
    yield "Operations", f"{si(final.operations, '')}  ({final.operations:,})"
    yield "Trials", trials_text(status.trials_by_state, ended=ended)
    yield from _training(view)
    for place, line in enumerate(model_lines(status.models, status.metric)):
        yield "" if place else "Models", line
    if (energy := status.energy) is not None and energy.joules is not None:
        yield "Energy", energy_line(energy).removeprefix("energy ")
    if waited := [f"{each.component} {duration(each.seconds)}" for each in status.storage]:
        yield "Storage", f"waited for: {few(waited)}"
    yield "Witness", witness_line(status.witnesses, ended=ended)
    yield "Result", _verdict(view)
    if (found := status.baseline) is not None:
        reached = quality(found.quality, metric.name)
        yield "Baseline", f"{reached}, the {metric.label} of {found.predictor}"
    yield from _scores(status)


def reason_lines(view: RunView) -> list[str]:
    """Return the violated rules, one line each with the first reason, followed by the score."""
    status, final = view.status(view.until), view.history.end_utc is not None
    broken = [each for each in view.judgement().results if not each.passed]
    result = f"VALID{_division_of(view)}"
    if broken:
        result = f"INVALID: {len(broken)} rules violated; every reason is in report/result.txt"
    reasons = ((e.rule, e.failures[0] + "; …" * (len(e.failures) > 1)) for e in broken)
    verdict = ("Result", f"{'' if final else 'so far '}{result}")
    return list(starmap(_row, (*reasons, verdict, *_scores(status))))


def _scores(status: RunStatus) -> Iterator[tuple[str, str]]:
    """Yield the headline figures, the score last."""
    for heading, row in reversed(quantities_in(View.END).items()):
        if (value := row.read(status)) is not None:
            exact = f"  ({digits})" if (digits := row.exact(value)) else ""
            yield heading, f"{row.text(value)}{exact}"
            continue
        yield heading, f"none{f': {status.error_unavailable_reason}' * row.needs_error}"
        if row.name == "error" and status.best_quality is not None:
            best = quality(status.best_quality, status.metric)
            yield "Quality", f"{best}, the best {QUALITY_METRICS[status.metric].label}"


def _verdict(view: RunView) -> str:
    """Return whether a result is valid, and the violated rules; all their reasons if few."""
    broken = view.violations()
    if not broken:
        return f"VALID{_division_of(view)}"
    if len(broken) <= NAMED:
        return f"INVALID: {'; '.join(map(str, broken))}"
    config, rules = view.manifest.config, list(dict.fromkeys(v.rule for v in broken))
    fixed = "settings" in rules and all(each.key == "preset" for each in differences(config))
    what = f"{config.preset if fixed else 'this run'} is not official:"
    if nothing := [each.reason for each in broken if each.rule == "engine"]:
        what = f"{nothing[0]};"  # This reason outweighs all others.
    return (
        f"INVALID: {what} {len(rules)} rules violated ({', '.join(rules)}); "
        f"`aiperf report {run_argument(view.paths.root)}` lists the reasons"
    )


def _division_of(view: RunView) -> str:
    """Return the division of a result and its declared deviations; empty if it is in none."""
    judgement = view.judgement()
    if judgement.division is None:
        return ""
    declared = "; ".join(map(str, judgement.declared)) or "nothing declared"
    said = f", {IF_ASSURED}" if judgement.division is Division.CLOSED else f": {declared}"
    return f", {judgement.division} division{said}"


def _training(view: RunView) -> Iterator[tuple[str, str]]:
    """Yield the time of a training run and its split, in runs without a search."""
    times = view.training_times(view.until)
    reached = [each for each in times if each.reached is not False]
    if not reached:
        return
    parts = {
        "staging": [each.staging_seconds for each in reached],
        "compute": [each.compute_seconds for each in reached],
        "extra": [each.extra_seconds for each in reached],
    }
    split = ", ".join(f"{name} {duration(median(each))}" for name, each in parts.items())
    seconds = duration(median(each.seconds for each in reached))
    whose = reached[0].trial if len(reached) == 1 else f"medians of {len(reached)} training runs"
    what = "Time to target" if reached[0].reached else "A training run took"
    yield what, f"{seconds} ({split}), {whose}"
