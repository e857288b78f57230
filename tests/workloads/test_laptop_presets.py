"""Each laptop preset runs with the engine that is installed: `make start` installs one."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from tests.support.command import aiperf_process

from aiperf_hpc.config import load_config
from aiperf_hpc.run.history import RunHistory
from aiperf_hpc.run.manifest import RunManifest
from aiperf_hpc.run.paths import RunPaths
from aiperf_hpc.trial import TrialState
from aiperf_hpc.workloads.registry import missing, workload_of

BOTH = {
    "cosmoflow_laptop": "cosmoflow",
    "deepcam_laptop": "deepcam",
    "resnet50_v15_laptop": "resnet50-v1.5",
    "volumes": "volumes",
}
"""Presets whose networks both engines train, with their workloads."""
HIDE_TORCH = """
from importlib.machinery import PathFinder

find_spec = PathFinder.find_spec
PathFinder.find_spec = classmethod(
    lambda cls, name, path=None, target=None:
        None if name.partition(".")[0] == "torch" else find_spec(name, path, target)
)
"""
SHORT = (
    "training.max_epochs=1", "training.patience=1", "training.target=null",
    "search.max_trainings=1", "dataset.train_samples=32", "dataset.validation_samples=8",
)  # fmt: skip


@pytest.mark.parametrize("preset", BOTH)
def test_the_installed_engine_is_used_unless_one_is_named(
    preset: str, without: Callable[..., None]
) -> None:
    assert load_config(preset).engine.name == "torch"
    without("torch")
    assert load_config(preset).engine.name == "tensorflow"
    workload_of(load_config(preset))
    assert load_config(preset, ["engine.name=torch"]).engine.name == "torch"
    without("tensorflow", "torch")
    assert load_config(preset).engine.name == "tensorflow"


def test_a_missing_engine_names_the_installed_one_that_trains_the_workload(
    without: Callable[..., None],
) -> None:
    without("torch")
    (line,) = missing(load_config("cosmoflow_laptop", ["engine.name=torch"]))
    assert line.startswith("engine 'torch' needs the package 'torch': ")
    assert line.endswith("; or use --set engine.name=tensorflow")
    (line,) = missing(load_config("extreme_weather_laptop"))
    assert "tensorflow" not in line


@pytest.fixture
def without_torch(tmp_path: Path) -> Mapping[str, str]:
    """An environment for processes that do not find PyTorch."""
    folder = tmp_path / "site"
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(HIDE_TORCH)
    path = os.pathsep.join(filter(None, [str(folder), os.environ.get("PYTHONPATH")]))
    return {**os.environ, "PYTHONPATH": path}


@pytest.mark.parametrize("preset", ["cosmoflow_laptop", "deepcam_laptop"])
def test_a_preset_trains_with_tensorflow_alone(
    preset: str, without_torch: Mapping[str, str], tmp_path: Path
) -> None:
    done = aiperf_process(
        "start", "--workload", BOTH[preset], "--config", preset, "--nodes", 1, "--hours", 0.2,
        "--launcher", "local", "--run-dir", tmp_path / "run", "--yes",
        *(word for setting in SHORT for word in ("--set", setting)),
        environment=without_torch,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    history = RunHistory.read(RunPaths(tmp_path / "run"))
    assert [trial.state for trial in history.ended] == [TrialState.COMPLETED]
    assert RunManifest.load(RunPaths(tmp_path / "run")).config.engine.name == "tensorflow"
