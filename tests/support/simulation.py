"""Simulated runs: the real code of both sides, on a virtual clock."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from aiperf_hpc.config import load_config
from aiperf_hpc.results.report.writer import write_report
from aiperf_hpc.results.views.run_view import RunView
from aiperf_hpc.run.manifest import RULES, RunManifest
from aiperf_hpc.run.paths import RunPaths
from aiperf_hpc.simulation.main import simulate
from aiperf_hpc.simulation.timeline import Queue, Timeline

SHORT = (
    "engine.simulation.charge_cpu=false",
    "rounds.warmup_epochs=[4,5,6]",
    "training.max_epochs=4",
)
"""Settings by which a run has warm-up and some HPO in minutes, always the same."""


def simulated_run(
    folder: Path,
    *assignments: str,
    show: Callable[[Timeline], None] = lambda _: None,
    queue: Queue | None = None,
    **manifest: Any,  # noqa: ANN401 -- the manifest's fields
) -> RunView:
    """Simulate a run with ``SHORT`` and other settings, and write its report."""
    values = {"run_id": "simulated", "versions": {}, "commit": None, "rules": RULES, **manifest}
    config = load_config("simulated", (*SHORT, *assignments))
    paths = RunPaths(folder)
    folder.mkdir()
    RunManifest(launcher="simulated", config=config, **values).save(paths)
    simulate(RunManifest.load(paths), paths, show, queue)
    view = RunView.read(paths)
    write_report(view)
    return view
