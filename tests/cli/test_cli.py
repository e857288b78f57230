"""The command line within this process: what is refused before anything is started."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.support.command import aiperf, printed
from tests.support.refusals import refused_line
from tests.support.run_factory import Plan, write_run

from aiperf_hpc.cli import start
from aiperf_hpc.cli.control import ServeOptions, _endpoint_again
from aiperf_hpc.cli.serving import ServerSecurity
from aiperf_hpc.config import load_config
from aiperf_hpc.errors import UsageError
from aiperf_hpc.primary.control.prepare import require_packages
from aiperf_hpc.results.views.run_view import RunView
from aiperf_hpc.run.manifest import RunManifest
from aiperf_hpc.run.paths import RunPaths
from aiperf_hpc.run.requests import Service
from aiperf_hpc.run.storage import no_retry
from aiperf_hpc.service.endpoint import Endpoint

START = ["start", "--nodes", "1", "--hours", "0.01", "--yes", "--launcher", "local"]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder to run commands in."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("more", [[], ["--dry-run"]])
def test_a_run_whose_packages_are_missing_is_not_started(
    more: list[str], here: Path, without: Callable[..., None]
) -> None:
    without("mpi4py", "torch")
    refused = refused_line(*START, "--set", "replica.ranks_per_node=2", *more)
    assert refused.startswith("collective 'mpi' needs the package 'mpi4py': ")
    assert list(here.iterdir()) == []


def test_only_a_batch_script_of_the_sites_own_may_start_another_python(
    without: Callable[..., None],
) -> None:
    without("torch")
    own = ["engine.name=torch", "slurm.template=site.sh"]
    config = load_config("quickstart", own)
    require_packages(config, "array")
    for refused, launcher in ((config, "local"), (load_config("quickstart", own[:1]), "array")):
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
    setting: str, words: str, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")  # Also on a machine with a GPU.
    refused = refused_line(*START, "--set", "engine.name=torch", "--set", setting)
    assert refused.startswith(words)
    assert list(here.iterdir()) == []


def test_a_simulation_without_greenlet_says_what_installs_it(without: Callable[..., None]) -> None:
    without("greenlet")
    refused = refused_line("simulate", "run", "--nodes", 1, "--hours", 1)
    assert refused.startswith("a simulation needs the package 'greenlet': ")


@pytest.fixture
def served(tmp_path: Path) -> RunPaths:
    """A run whose primary died while it served it at a port that is free now."""
    paths = write_run(tmp_path / "run", Plan(replicas=1, trials=1, hpo_trials=0, ended=False))
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    url = f"http://127.0.0.1:{port}"
    service = Service(host="127.0.0.1", port=port, url=url, primary_host="head", primary_pid=100)
    service.save(paths, no_retry)
    return paths


def again(paths: RunPaths, serve: str | None = None, *, no_serve: bool = False) -> Endpoint | None:
    return _endpoint_again(ServeOptions(serve, no_serve), ServerSecurity(), paths)


def test_a_run_that_goes_on_is_served_where_it_was(served: RunPaths) -> None:
    before = Service.load(served)
    assert before is not None
    assert again(served) == Endpoint("127.0.0.1", before.port)
    assert again(served, no_serve=True) is None
    assert again(served, "localhost:0") == Endpoint("localhost", 0)
    served.service.unlink()
    assert again(served) is None


def test_a_run_goes_on_unserved_where_its_port_was_taken_and_says_so(
    served: RunPaths, capsys: pytest.CaptureFixture[str]
) -> None:
    before = Service.load(served)
    assert before is not None
    with socket.create_server(("127.0.0.1", before.port)):
        assert again(served) is None
        line = capsys.readouterr().err
        with pytest.raises(UsageError, match="the port is in use"):  # Asked for by name.
            again(served, str(before.port))
    assert "the port is in use" in line
    assert line.endswith(f"not served: `aiperf serve {served.root}` does that\n")
    assert len(line.splitlines()) == 1
    served.service.write_text("{")
    assert again(served) is None
    assert "service.json is damaged; removing it" in capsys.readouterr().err


def test_status_says_where_the_present_primary_serves(served: RunPaths) -> None:
    view = RunView.read(served)
    now = view.until
    before = Service.load(served)
    assert before is not None
    assert view.status(now).service_url == before.url
    assert view.status(now + 1000.0).service_url is None  # It is silent.
    before.model_copy(update={"primary_pid": 99}).save(served, no_retry)
    assert view.status(now).service_url is None  # That was an earlier one's.
    served.service.write_text("{")
    status = view.status(now)
    assert status.service_url is None
    assert status.problems == (
        f"{served.service} is damaged; removing it discards only the address of the service",
    )


@pytest.mark.parametrize(
    ("method", "done"), [("fixed", ", 2 trials\n"), ("greedy", ", round 2, 2 trials, queue 0\n")]
)
def test_status_says_what_a_replica_has_done(method: str, done: str, tmp_path: Path) -> None:
    plan = Plan(replicas=1, trials=2, hpo_trials=0, config={"search": {"method": method}})
    status = printed("status", write_run(tmp_path / "run", plan).root)
    (line,) = [each for each in status.splitlines(True) if "  r0  " in each]
    assert line.endswith(done)


def test_status_fits_the_window(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = write_run(tmp_path / "run", Plan(replicas=2))
    whole = printed("status", run.root)
    monkeypatch.setenv("COLUMNS", "60")
    lines = printed("status", run.root).splitlines()
    assert max(map(len, lines)) <= 60 < max(map(len, whole.splitlines()))
    assert " ".join(" ".join(lines).split()) == " ".join(whole.split())


def test_a_simulated_run_cannot_be_resumed(tmp_path: Path) -> None:
    paths = write_run(tmp_path, Plan(replicas=1, trials=0, hpo_trials=0, ended=False))
    RunManifest.load(paths).model_copy(update={"launcher": "simulated"}).save(paths)
    refused = refused_line("resume", tmp_path)
    assert refused == f"{tmp_path}: a simulated run cannot be resumed; simulate it again"


def test_a_crowd_is_told_before_the_start_and_without_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    monkeypatch.setattr(start, "available_bytes", lambda: 4 * 2**30)
    dry = ("start", "--hours", 1, "--launcher", "local", "--dry-run", "--nodes")
    crowded = aiperf(*dry, 3)
    assert crowded.returncode == 0
    assert crowded.stderr.startswith("aiperf: 3 replicas share 2 cores: ")
    assert [len(text.splitlines()) for text in (crowded.stderr, crowded.stdout)] == [1, 3]
    enough = aiperf(*dry, 2)
    assert (enough.returncode, enough.stderr) == (0, "")
    assert refused_line(*dry, 99).startswith("--nodes 99: 99 replicas need at least 55.69 GiB")
