"""What a run needs of packages, and how what is missing is installed."""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from aiperf_hpc import extras
from aiperf_hpc.config import validate
from aiperf_hpc.extras import Package, lacking, needed_by, pip_install

PIP = f"{sys.executable} -m pip"


@pytest.mark.parametrize(
    ("values", "package", "what"),
    [
        ({}, "tensorflow", "engine 'tensorflow'"),
        ({"engine": {"name": "torch"}}, "torch", "engine 'torch'"),
        ({"engine": {"name": "torch", "device": "npu"}}, "torch_npu", "engine.device=npu"),
        ({"replica": {"ranks_per_node": 2, "collective": "mpi"}}, "mpi4py", "collective 'mpi'"),
        ({"replica": {"nodes": 2, "collective": "horovod"}}, "horovod", "collective 'horovod'"),
    ],
)
def test_what_a_configuration_needs_and_is_not_there_is_named(
    values: dict[str, object], package: str, what: str, without: Callable[..., None]
) -> None:
    config = validate({"dataset": {"name": "digits"}, **values}, "test")
    without(package)
    (line,) = lacking(needed_by(config))
    assert line.startswith(f"{what} needs the package '{package}': ")
    assert line.endswith(": build it with `make horovod`") == (package == "horovod")
    assert "\n" not in line


def test_what_a_configuration_does_not_need_is_not_asked_for(without: Callable[..., None]) -> None:
    without("torch", "mpi4py", "horovod", "greenlet", "nni")
    assert lacking(needed_by(validate({"dataset": {"name": "digits"}}, "test"))) == []
    simulated = {"dataset": {"name": "digits"}, "engine": {"name": "simulated"}}
    without("torch", "tensorflow")
    assert lacking(needed_by(validate(simulated, "test"))) == []


def test_a_folder_of_that_name_is_no_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "holovod").mkdir()
    monkeypatch.syspath_prepend(str(tmp_path))
    assert not Package("holovod", "").installed
    (tmp_path / "holovod" / "__init__.py").touch()
    importlib.invalidate_caches()
    assert Package("holovod", "").installed


def test_extras_are_installed_from_the_checkout_or_from_a_wheel(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "")
    checkout = Path(__file__).parents[2]
    assert pip_install("cpu", "nni") == f"{PIP} install '.[cpu,nni]' in {checkout}"
    folder = tmp_path / "site packages"
    monkeypatch.setattr(extras, "__file__", str(folder / "aiperf_hpc" / "extras.py"))
    monkeypatch.setattr(extras, "__version__", "1.2.3")
    monkeypatch.setattr(sys, "path", [str(folder)])
    name = "aiperf_hpc-1.2.3-py3-none-any.whl"
    assert pip_install("torch") == f"{PIP} install '{name}[torch]'"
    wheel, source = tmp_path / "my wheels" / name, tmp_path / "source"
    recorded_by_pip(folder, wheel)
    assert pip_install("torch") == f"{PIP} install '{name}[torch]'"  # The wheel is gone.
    wheel.parent.mkdir()
    wheel.touch()
    assert pip_install("torch") == f"{PIP} install '{wheel}[torch]'"
    source.mkdir()
    recorded_by_pip(folder, source)
    assert pip_install("torch") == f"{PIP} install '.[torch]' in {source}"


def recorded_by_pip(folder: Path, source: Path) -> None:
    """What pip leaves beside a package that it installed from a file or a folder."""
    information = folder / "aiperf_hpc-1.2.3.dist-info"
    information.mkdir(parents=True, exist_ok=True)
    (information / "METADATA").write_text("Name: aiperf-hpc\nVersion: 1.2.3\n", "utf-8")
    (information / "direct_url.json").write_text(json.dumps({"url": source.as_uri()}), "utf-8")


def test_pip_is_called_by_name_where_the_shell_finds_this_pythons(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for folder in ("here", "there"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "pip").touch(mode=0o755)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "here" / "python"))
    monkeypatch.setenv("PATH", str(tmp_path / "here"))
    assert pip_install("cpu").startswith("pip install '.[cpu]' in ")
    monkeypatch.setenv("PATH", str(tmp_path / "there"))
    assert pip_install("cpu").startswith(f"{tmp_path / 'here' / 'python'} -m pip install '.[cpu]'")
