"""The metrics of an analysis, with their definitions."""

from __future__ import annotations

from collections.abc import Iterator

from aiperf_hpc.analysis.metrics import METRICS


def reference() -> Iterator[str]:
    """Yield a table of all metrics."""
    yield "| metric of a training run | definition | unit | source |"
    yield "|---|---|---|---|"
    for each in METRICS:
        yield f"| {each.title} | {each.definition} | {each.unit or '1'} | {each.source} |"
