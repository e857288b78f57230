"""The drawings of rooflines: from what an analysis found to what the plot takes."""

from __future__ import annotations

from collections.abc import Iterator

from aiperf_hpc.analysis.measures.roofline import MEMORY, NETWORK, STORAGE
from aiperf_hpc.analysis.sections.roofline import Ceilings, Rooflines, RunRoofline
from aiperf_hpc.results.report.plots.figure import Plot
from aiperf_hpc.results.report.plots.roofline import Panel, Point, Roof, roofline_plot


def roofline_plots(found: Rooflines) -> Iterator[Plot]:
    """Yield a drawing of each run whose machine's peaks are known."""
    for place, run in enumerate(found.runs):
        if run.ceilings is None:
            continue
        roofs = [Roof(name, rate) for name, rate in run.ceilings.compute.items()]
        plot = roofline_plot(
            run.entry, roofs, list(_panels(run, run.ceilings)), f"roofline-{place}"
        )
        if plot is not None:
            yield plot


def _panels(run: RunRoofline, ceilings: Ceilings) -> Iterator[Panel]:
    """Yield a panel for each bandwidth that is known, with the networks that move such bytes."""
    every = run.architectures
    if ceilings.memory is not None:
        points = [
            Point(a.graph[:8], a.separate.intensity, a.fused.intensity, a.achieved, a.precision)
            for a in every
        ]
        yield Panel(MEMORY, ceilings.memory, points)
    for kind, bandwidth, intensities in (
        (NETWORK, ceilings.network, [a.network_intensity for a in every]),
        (STORAGE, ceilings.storage, [a.io_intensity for a in every]),
    ):
        if bandwidth is not None:
            pairs = zip(every, intensities, strict=True)
            points = [
                Point(a.graph[:8], each, each, a.achieved, a.precision)
                for a, each in pairs
                if each is not None
            ]
            yield Panel(kind, bandwidth, points)
