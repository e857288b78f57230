"""What a user can get wrong: one line that says what, where and what to do; no traceback."""

from __future__ import annotations

import socket
import subprocess
from pathlib import Path

import pytest
from tests.end_to_end.conftest import FAST, TINY, TORCH, LiveRun
from tests.support.command import AIPERF, aiperf, aiperf_process
from tests.support.waiting import PATIENCE_SECONDS

from aiperf_hpc.cli import main
from aiperf_hpc.config import load_config
from aiperf_hpc.primary.control import prepare
from aiperf_hpc.primary.control.prepare import make_manifest
from aiperf_hpc.run.history import RunHistory
from aiperf_hpc.run.paths import RunPaths

DIVERGE = ["--set", "training.learning_rate=100", "--set", "training.momentum=0.99"]
START = ["start", "--nodes", 1, "--hours", 0.01, "--yes", "--launcher", "local"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["start", "--nodes", 1, "--hours", -1, "--yes"], "--hours -1: the duration must be"),
        (["start", "--nodes", 1, "--hours", "nan", "--yes"], "--hours nan"),
        (["start", "--nodes", 1], "missing option '--hours'; see `aiperf start --help`"),
        ([*START, "--config", "quickstrat"], "did you mean 'quickstart'?"),
        ([*START, "--config", "missing.yaml"], "cannot read the configuration missing.yaml"),
        ([*START, "--set", "training.batchsize=3"], "did you mean 'training.batch_size'?"),
        ([*START, "--set", "training.batch_size=0"], "the range is >= 1 and <= 1048576"),
        ([*START, "--set", "training.batch_size"], "write it as key=value"),
        ([*START, "--set", "hpo.space.kernel_size.choices=[4]"], "sizes are of (1, 3, 5, 7)"),
        ([*START, "--config", "cifar10"], "aiperf data prepare cifar10"),
        ([*START, "--config", "cifar10", "--set", "dataset.path=/"], "has no dataset.json"),
        ([*START, "--launcher", "slurm"], "--launcher slurm"),
        ([*START, "--run-dir", "/proc/run"], "name another one with --run-dir"),
        ([*START, "--config", TINY, "--run-dir", "."], "is not empty; name a new one"),
        ([*START, "--serve", "here:there"], "here:there"),
        (
            [*START, "--set", "training.batch_size=abc"],
            "training.batch_size: should be a whole number (got 'abc'; the range is ",
        ),
        ([*START, "--config", "tab.yaml"], "tab.yaml is not YAML: line 2: a tab; use spaces"),
        ([*START, "--config", "broken.yaml"], "broken.yaml is not YAML: "),
        ([*START, "--config", "text"], "text must be a mapping of sections, not a str"),
        (["data", "prepare", "imagent"], "no dataset 'imagent'; did you mean 'imagenet'?; "),
        (["data", "prepare", "foo", "--from", "text"], "no dataset 'foo'; datasets to prepare: "),
        (["status", "nowhere"], "there is no run nowhere; "),
        (["status", "text"], "text is not a run directory: it is a file; "),
        (["resume", "empty"], "empty is not a run directory: it has no run.yaml; "),
        (["compare", "nowhere", "text"], "there is no run nowhere; "),
        (["serve", "nowhere"], "cannot list the runs in nowhere: No such file or directory; "),
        (["count", "resnet51"], "did you mean 'resnet50'?; networks: resnet50"),
        (["config", "show", "imagent"], "no preset and no file 'imagent'; did you mean "),
        (["count", "nothing.json"], "cannot read the graph nothing.json"),
        (["count", "resnet50", "--input", "224"], "write HEIGHTxWIDTHxCHANNELS"),
        (["count", "resnet50", "--classes", "1"], "at least 2 classes"),
        (
            ["data", "prepare", "cifar10", "--from", "nowhere", "--to", "x"],
            "--from nowhere: no such file or folder in ",
        ),
        (
            ["start", "--nodes", 3, "--hours", 1, "--set", "replica.nodes=2"],
            "--nodes 3: a replica spans 2 nodes (replica.nodes); give a multiple of it",
        ),
        (
            [*START, "--config", TINY, "--set", "replica.ranks_per_node=17"],
            "a batch of 16 samples cannot be divided among the 17 ranks",
        ),
    ],
)
def test_a_wrong_command_says_so_in_one_line(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    arguments: list[object],
    said: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "text").write_text("text")
    (tmp_path / "tab.yaml").write_text("training:\n\tbatch_size: 3\n")
    (tmp_path / "broken.yaml").write_text("training: {batch_size: [1, 2")
    (tmp_path / "empty").mkdir()
    there = sorted(tmp_path.rglob("*"))
    assert main([str(argument) for argument in arguments]) == 2
    out, err = capfd.readouterr()
    assert out == ""
    assert said in err
    assert len(err.splitlines()) == 1
    assert err.startswith("aiperf: ")
    assert sorted(tmp_path.rglob("*")) == there


def test_an_address_in_use_is_seen_before_anything_is_made(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        run = ["--config", TINY, "--run-dir", tmp_path / "run"]
        done = aiperf(*START, *run, "--serve", address)
    assert done.returncode == 2
    assert "the port is in use" in done.stderr
    assert not (tmp_path / "run").exists()


def test_a_run_that_never_started_cannot_be_stopped(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    dry = [*START, "--config", TINY, "--run-dir", folder, "--launcher", "local"]
    manifest = make_manifest(load_config(TINY), 1, 1.0, "local")
    manifest.save(RunPaths(folder))
    assert aiperf(*dry).returncode == 2  # It is not empty.
    done = aiperf("stop", folder)
    assert done.returncode == 2
    assert "this run never started" in done.stderr


def test_a_reader_that_goes_away_ends_neither_the_run_nor_its_report(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    command = [*AIPERF, *START, "--hours", 0.004, "--config", FAST, "--run-dir", folder]
    with subprocess.Popen(
        [str(part) for part in command], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        process.stdout.close()  # As `| head -1` does.
        assert process.wait(PATIENCE_SECONDS) == 0
    assert RunPaths(folder).report_html.exists()
    history = RunHistory.read(RunPaths(folder))
    assert history.replicas["r0"].ended == "the run's time is over"
    assert history.end_utc is not None
    assert history.start_utc is not None
    assert history.end_utc - history.start_utc >= 0.004 * 3600
    assert aiperf("verify", folder).returncode == 0


def test_a_disk_that_is_nearly_full_is_seen_before_anything_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(prepare, "free_bytes", lambda _: 80_000_000)
    many = ["--set", "search.keep_checkpoints=1000"]  # More than what every run needs.
    command = [*START, "--config", TINY, *many, "--run-dir", tmp_path / "run"]
    assert main([str(word) for word in command]) == 2
    assert " has 76.29 MiB free, the run needs at least 97.39 MiB; " in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_a_run_whose_trials_all_fail_says_why_and_ends_with_status_1(tmp_path: Path) -> None:
    refuse = ["--set", "engine.memory_limit_gib=0.5", "--set", "engine.on_out_of_memory=fail"]
    done = aiperf_process(*START, "--config", TINY, *refuse, "--run-dir", tmp_path / "run")
    assert done.returncode == 1
    assert "5 trials in a row failed" in done.stderr
    assert "raise engine.memory_limit_gib" in done.stderr
    assert "Traceback" not in done.stderr
    assert aiperf("verify", tmp_path / "run").returncode == 0


def test_a_loss_that_is_not_finite_fails_its_trial_and_the_run_goes_on(tmp_path: Path) -> None:
    run = LiveRun(tmp_path / "run", *DIVERGE, *TORCH, "--nodes", 1)
    try:
        run.wait_until(lambda h: sum("not finite" in t.reason for t in h.trials.values()) > 1)
    finally:
        run.close()
