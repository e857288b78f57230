"""The energy that the report states, summed anew from the samples."""

from __future__ import annotations

import math
from collections import defaultdict

from aiperf_hpc.results.report.files import report_document
from aiperf_hpc.run.history.telemetry import Span, apart
from aiperf_hpc.verification.evidence import Evidence, Failures
from aiperf_hpc.verification.journal import Sampler


def energy(run: Evidence) -> Failures:
    """Each part's joules, and their sum, are those of the samples until the end.

    A report that states none has none to be checked; one that cannot be read is the rule
    ``report``'s.
    """
    if not run.reported:
        return
    try:
        document = report_document(run.view.paths)
        stated = document["telemetry"]["energy"]
    except (OSError, ValueError, KeyError, TypeError):
        return
    found = recount(run)
    if not isinstance(stated, dict) or not isinstance(stated.get("parts"), dict):
        yield "report.json states an energy of no known form"
        return
    wanted = {part: found.get(part) for part in (*stated["parts"], *found)}
    for part, joules in wanted.items():
        row = stated["parts"].get(part)
        told = row.get("joules") if isinstance(row, dict) else None
        if not _same(told, joules):
            yield f"report.json states {told} J of the {part}, the samples sum up to {joules}"
    whole = sum(found.values()) if found else None
    if not _same(stated.get("joules"), whole):
        yield f"report.json states {stated.get('joules')} J, the samples sum up to {whole}"


def recount(run: Evidence) -> dict[str, float]:
    """Return the joules of each part of all nodes until the end."""
    hosts: defaultdict[str, list[Sampler]] = defaultdict(list)
    for sampler in run.samplers():
        hosts[sampler.host].append(sampler)
    millijoules: defaultdict[str, int] = defaultdict(int)
    for samplers in hosts.values():
        for sampler in _alone(samplers):
            for part in sampler.parts:
                millijoules[part] += 0  # A part that is metered has an energy, if it is 0.
            for utc, sample in sampler.samples:
                for part, joules in zip(sampler.parts, sample, strict=True):
                    millijoules[part] += joules if utc <= run.end else 0
    return {part: count / 1000.0 for part, count in millijoules.items()}


def _alone(samplers: list[Sampler]) -> list[Sampler]:
    """Return those that count: of several that sampled a host at once, the longest."""
    in_order = sorted(samplers, key=lambda s: (s.begin, s.replica))
    spans = [Span(s.begin, s.end, s.every) for s in in_order]
    return [in_order[place] for place in apart(spans)]


def _same(stated: object, recounted: float | None) -> bool:
    if recounted is None or not isinstance(stated, int | float):
        return stated is recounted
    return math.isclose(stated, recounted, rel_tol=1e-12, abs_tol=1e-9)
