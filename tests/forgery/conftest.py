"""The honest runs that are forged, each made once."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from tests.forgery.forger import COMPLETE, ForgedRun, copy_of
from tests.forgery.omissions import DATA, complete, recorded
from tests.support.run_manifest import run_manifest

from aiperf_hpc.config import load_config
from aiperf_hpc.results.report.writer import write_report
from aiperf_hpc.results.views.run_view import RunView
from aiperf_hpc.run.paths import RunPaths
from aiperf_hpc.simulation.main import simulate

RUNS = DATA / "runs"
SETTINGS = (
    "engine.simulation.charge_cpu=false",
    "rounds.warmup_epochs=[2,2,2]",
    "training.max_epochs=2",
    "training.batch_size=64",
    "hpo.trials_per_round=2",
    "search.keep_checkpoints=2",
    "engine.memory_limit_gib=1.005",  # So that some batches do not fit, and are halved.
)


def simulated(root: Path, *settings: str) -> RunPaths:
    """Simulate three replicas: three rounds of warm-up, some of HPO, checkpoints dropped."""
    paths = RunPaths(root)
    root.mkdir(parents=True)
    manifest = run_manifest(
        load_config("simulated", (*SETTINGS, *settings)),
        run_id="simulated-3n",
        nodes=3,
        hours=0.25,
        launcher="simulated",
        versions={"aiperf-hpc": "0.1.0"},
    )
    manifest.save(paths)
    simulate(manifest, paths)
    return paths


def _made(name: str, root: Path, base: Callable[[str], Path]) -> RunPaths:
    if name == "simulated":
        return simulated(root)
    if name == "reported":
        run = copy_of(base("simulated"), root)
        write_report(RunView(run.paths))
        return run.paths
    if name == COMPLETE:
        return complete(root)
    return recorded(RUNS / f"{name}.tar.gz", root)


@pytest.fixture(scope="session")
def bases(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Return a function that makes an honest run once, and returns where it is."""
    made: dict[str, Path] = {}

    def base(name: str) -> Path:
        if name not in made:
            root = tmp_path_factory.mktemp("base") / name
            made[name] = _made(name, root, base).root
        return made[name]

    return base


@pytest.fixture
def copied(bases: Callable[[str], Path], tmp_path: Path) -> Callable[[str], ForgedRun]:
    """Return a function that copies an honest run, to be forged."""
    return lambda name: copy_of(bases(name), tmp_path / "run")
