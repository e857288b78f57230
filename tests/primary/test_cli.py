"""The command line within this process: what is refused before anything is started."""

from __future__ import annotations

import runpy
from collections.abc import Callable
from importlib import util
from importlib.machinery import ModuleSpec
from pathlib import Path

import pytest

from aiperf_hpc.config import load_config
from aiperf_hpc.errors import UsageError
from aiperf_hpc.primary.cli import main
from aiperf_hpc.primary.prepare import require_packages

REAL = util.find_spec
START = ["start", "--nodes", "1", "--hours", "0.01", "--yes", "--launcher", "local"]


@pytest.fixture
def without(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., None]:
    """Hide packages, in an empty folder to run commands in."""
    monkeypatch.chdir(tmp_path)

    def hide(*names: str) -> None:
        def found(name: str, package: str | None = None) -> ModuleSpec | None:
            return None if name in names else REAL(name, package)

        monkeypatch.setattr(util, "find_spec", found)

    return hide


@pytest.mark.parametrize(
    ("package", "settings", "words"),
    [
        ("tensorflow", [], "engine 'tensorflow' needs the package 'tensorflow': "),
        ("torch", ["engine.name=torch"], "engine 'torch' needs the package 'torch': "),
        ("mpi4py", ["replica.ranks_per_node=2"], "collective 'mpi' needs the package 'mpi4py': "),
    ],
)
@pytest.mark.parametrize("more", [[], ["--dry-run"]])
def test_a_run_whose_packages_are_missing_is_not_started(
    package: str,
    settings: list[str],
    words: str,
    more: list[str],
    without: Callable[..., None],
    capfd: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    without(package)
    assert main([*START, *(part for s in settings for part in ("--set", s)), *more]) == 2
    output = capfd.readouterr()
    assert output.err.startswith(f"aiperf: {words}")
    assert len(output.err.splitlines()) == 1
    assert output.out == ""
    assert list(tmp_path.iterdir()) == []


def test_only_a_batch_script_of_the_sites_own_may_start_another_python(
    without: Callable[..., None],
) -> None:
    without("torch")
    own = ["engine.name=torch", "slurm.template=site.sh"]
    config = load_config("quickstart", own)
    require_packages(config, "slurm")
    for refused, launcher in ((config, "local"), (load_config("quickstart", own[:1]), "slurm")):
        with pytest.raises(UsageError, match="engine 'torch' needs the package 'torch': "):
            require_packages(refused, launcher)


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("engine.device=cuda", "engine.device=cuda: PyTorch "),
        ("training.precision=fp16", "training.precision=fp16 needs an accelerator"),
    ],
)
def test_a_device_that_is_not_there_is_seen_before_the_start(
    setting: str,
    words: str,
    without: Callable[..., None],
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    without()
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")  # Also on a machine with a GPU.
    assert main([*START, "--set", "engine.name=torch", "--set", setting]) == 2
    output = capfd.readouterr()
    assert output.err.startswith(f"aiperf: {words}")
    assert len(output.err.splitlines()) == 1
    assert list(tmp_path.iterdir()) == []


def test_a_simulation_without_greenlet_says_what_installs_it(
    without: Callable[..., None], capfd: pytest.CaptureFixture[str]
) -> None:
    without("greenlet")
    with pytest.raises(SystemExit) as left:
        runpy.run_module("aiperf_hpc.simulation", run_name="__main__")
    assert left.value.code == 2
    words = "aiperf: a simulation needs the package 'greenlet': "
    assert capfd.readouterr().err.startswith(words)
