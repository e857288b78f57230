"""Rules on the score and the energy, recomputed from the records."""

from __future__ import annotations

import math
from collections import defaultdict

from aiperf_hpc.errors import AIPerfError
from aiperf_hpc.grouping import grouped
from aiperf_hpc.rules.consistency.evidence import Evidence, quality
from aiperf_hpc.rules.consistency.journal import Sampler
from aiperf_hpc.rules.rule import Checked, Findings
from aiperf_hpc.run.history import Trial
from aiperf_hpc.run.history.telemetry import Span, apart


def score(run: Evidence) -> Findings:
    """The current score equals the recomputed one; the rule ``report`` checks the stated score."""
    yield Checked(sum(1 for _ in run.progress()))
    try:
        operations, ops, regulated = recount(run)
        final = run.report.score()
    except AIPerfError as error:
        yield f"it cannot be recounted: {error}"
        return
    wanted = {"operations": operations, "ops": ops, "regulated": regulated}
    for key, value in wanted.items():
        if not _same(final[key], value):
            yield f"the score now has {key} {final[key]}, recounted {value}"


def recount(run: Evidence) -> tuple[int, float, float | None]:
    """Return operations, OPS and regulated score, from the records and regrown graphs alone.

    Raises:
        AIPerfError: a trial that executed samples is unknown, or its graph cannot be grown.
    """
    start = run.history.start_utc
    if start is None:
        return 0, 0.0, None
    operations = sum(run.operations(_started(run, name)) for name in run.samples)
    elapsed = run.end - start
    ops = operations / elapsed if elapsed > 0 else 0.0
    results = [e for t in run.trials for e in t.evaluations if e.utc <= run.end]
    if not results:
        return operations, ops, None
    if any(r.quality_metric.name != "accuracy" for r in results):
        return operations, ops, None  # No other metric has an error in (0, 1].
    best = max(results, key=quality)
    wrong = max(best.samples - best.sums["correct"], 1.0)
    return operations, ops, ops * math.log(best.samples / wrong)


def _started(run: Evidence, name: str) -> Trial:
    trial = run.history.trials.get(name)
    if trial is None:
        raise AIPerfError(f"{name} executed samples, and no record of its start exists")
    return trial


def _same(stated: object, recounted: float | None, slack: float = 0.0) -> bool:
    """Return whether values are equal: counts exactly, floats except for their last digits."""
    if isinstance(stated, float) and recounted is not None:
        return math.isclose(stated, recounted, rel_tol=1e-12, abs_tol=slack)
    return stated == recounted


def energy(run: Evidence) -> Findings:
    """The energy of each part, and their sum, equal the sums of the samples until the end.

    Nothing is checked if the report states no energy; the rule ``report`` handles unreadable
    reports.
    """
    yield Checked(sum(len(each.samples) for each in run.samplers()))
    if not run.reported:
        return
    try:
        document = run.report.stated()
        stated = document["telemetry"]["energy"]
    except (OSError, ValueError, KeyError, TypeError):
        return
    found = energy_by_part(run)
    if not isinstance(stated, dict) or not isinstance(stated.get("parts"), dict):
        yield "report.json states an energy of no known form"
        return
    wanted = {part: found.get(part) for part in (*stated["parts"], *found)}
    for part, joules in wanted.items():
        row = stated["parts"].get(part)
        joules_stated = row.get("joules") if isinstance(row, dict) else None
        if not _same(joules_stated, joules, 1e-9):
            yield (
                f"report.json states {joules_stated} J of the {part}, "
                f"the samples sum up to {joules}"
            )
    whole = sum(found.values()) if found else None
    if not _same(stated.get("joules"), whole, 1e-9):
        yield f"report.json states {stated.get('joules')} J, the samples sum up to {whole}"


def energy_by_part(run: Evidence) -> dict[str, float]:
    """Return the joules of each part of all nodes until the end."""
    millijoules: defaultdict[str, int] = defaultdict(int)
    for samplers in grouped((sampler.host, sampler) for sampler in run.samplers()).values():
        for sampler in _alone(samplers):
            for part in sampler.parts:
                millijoules[part] += 0  # A metered part has an energy, even if it is 0.
            for utc, sample in sampler.samples:
                for part, joules in zip(sampler.parts, sample, strict=True):
                    millijoules[part] += joules if utc <= run.end else 0
    return {part: count / 1000.0 for part, count in millijoules.items()}


def _alone(samplers: list[Sampler]) -> list[Sampler]:
    """Return the samplers that count: the longest of those that sampled a host concurrently."""
    in_order = sorted(samplers, key=lambda s: (s.begin, s.replica))
    spans = [Span(s.begin, s.end, s.every) for s in in_order]
    return [in_order[place] for place in apart(spans)]
