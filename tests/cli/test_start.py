"""A run that is interrupted before it has started leaves nothing, or says what it leaves."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
from tests.support.command import AIPERF, printed
from tests.support.processes import alive, in_a_group
from tests.support.refusals import refused_line
from tests.support.run_factory import DATASET, configuration
from tests.support.waiting import PATIENCE_SECONDS

from aiperf_hpc.cli import main, start
from aiperf_hpc.config import load_config
from aiperf_hpc.errors import RunDirectoryError, UsageError
from aiperf_hpc.integrity import release
from aiperf_hpc.primary.control.prepare import make_manifest, make_run_directory, require_eligible
from aiperf_hpc.run.manifest import RunManifest
from aiperf_hpc.run.paths import RunPaths
from aiperf_hpc.trial import DatasetInfo, TensorSpec

START = ("start", "--nodes", "1", "--hours", "1", "--launcher", "local", "--yes")
NOTHING = "aiperf: interrupted before the run started; nothing is left behind\n"


@pytest.mark.parametrize(
    ("number", "send"), [(signal.SIGINT, os.killpg), (signal.SIGTERM, os.kill)]
)
def test_interrupted_while_the_dataset_is_looked_at(
    number: signal.Signals, send: Callable[[int, int], None], tmp_path: Path
) -> None:
    (data := tmp_path / "data").mkdir()
    os.mkfifo(data / "dataset.json")  # It is waited for what this says.
    command = [*AIPERF, *START, "--config", "cifar10", "--set", f"dataset.path={data}"]
    with (
        in_a_group(*command, "--run-dir", tmp_path / "run") as process,
        (data / "dataset.json").open("w"),  # Once someone reads it.
    ):
        (child,) = psutil.Process(process.pid).children()
        send(process.pid, number)
        out, err = process.communicate(timeout=PATIENCE_SECONDS)
    assert (process.returncode, out, err) == (128 + number, "", NOTHING)
    assert not alive(child.pid)
    assert [path.name for path in tmp_path.iterdir()] == ["data"]


@pytest.fixture
def started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., int]:
    """Start a run of a dataset that needs no looking at."""
    monkeypatch.setattr(start, "describe_dataset", lambda config: DATASET)
    command = [*START, "--config", "quickstart", "--run-dir", str(tmp_path / "run")]
    return lambda *options: main([*command, *options])


def test_a_key_that_cannot_sign_is_refused_before_anything_is_made(
    started: Callable[..., int], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    key = tmp_path / "key"
    key.touch(0o644)
    assert started("--key", str(key)) == UsageError.exit_status
    assert f"others may read the private key {key}" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["key"]


def interrupt() -> None:
    os.kill(os.getpid(), signal.SIGINT)


def test_interrupted_between_the_run_directory_and_the_runs_start(
    started: Callable[..., int],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    made: list[str] = []

    def conduct(*_: object, **__: object) -> int:
        made.extend(path.name for path in (tmp_path / "run").iterdir())
        interrupt()
        return 0

    monkeypatch.setattr(start, "conduct_run", conduct)
    assert started() == 130
    assert capsys.readouterr().err == NOTHING
    assert sorted(made) == ["candidates", "primary", "replicas", "run.yaml"]
    assert not list(tmp_path.iterdir())
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "replicas").symlink_to(tmp_path)
    assert started() == RunDirectoryError.exit_status  # What is someone else's stays.
    assert (tmp_path / "run" / "replicas").is_symlink()


def test_interrupted_while_the_primary_starts_in_the_background(
    started: Callable[..., int],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    background = SimpleNamespace(pid=4711, poll=interrupt)
    monkeypatch.setattr(start, "start_command", lambda *_: background)
    assert started("--detach") == 130
    run = tmp_path / "run"
    assert capsys.readouterr().err == (
        "aiperf: interrupted; the run continues in the background as process 4711; "
        f"`aiperf stop {run}` ends it\n"
    )
    assert RunPaths(run).manifest.exists()


def test_a_run_directory_that_cannot_be_finished_is_not_begun(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, os.strerror(28))

    monkeypatch.setattr(RunManifest, "save", full)
    manifest = make_manifest(configuration(), 1, 1.0, "local")
    with pytest.raises(RunDirectoryError, match="No space left on device"):
        make_run_directory(manifest, tmp_path / "run", DATASET)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        (
            {"inputs": {"volume": TensorSpec(shape=(40, 40, 40, 4))}},
            r"dataset 'density': a volume of \(40, .* each side must be a multiple of 16",
        ),
        ({"train_samples": 7}, "training.batch_size=8: dataset 'density' has 7 training samples"),
    ],
)
def test_data_that_a_workload_cannot_be_trained_on_make_no_run(
    changed: dict[str, object], message: str, tmp_path: Path
) -> None:
    manifest = make_manifest(load_config("cosmoflow_laptop"), 1, 1.0, "local")
    described = DatasetInfo(
        name="density",
        sha256="0" * 64,
        inputs={"volume": TensorSpec(shape=(32, 32, 32, 4))},
        targets={"values": TensorSpec(shape=(2,))},
        train_samples=8,
        validation_samples=4,
    )
    with pytest.raises(UsageError, match=message) as caught:
        make_run_directory(manifest, tmp_path / "run", described.model_copy(update=changed))
    assert "\n" not in str(caught.value)
    assert not list(tmp_path.iterdir())
    make_run_directory(manifest, tmp_path / "run", described)


def test_a_run_knows_the_command_that_started_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    manifests: list[RunManifest] = []

    def kept(manner: object, protection: object, manifest: RunManifest, folder: Path) -> int:
        manifests.append(manifest)
        return 0

    monkeypatch.setattr(start, "_start_manifest", kept)
    options = ["--config", "quickstart", "--set", "seed=7", "--run-dir", str(tmp_path / "a run")]
    assert main([*START, *options]) == 0
    (manifest,) = manifests
    begun = "aiperf start --nodes 1 --hours 1 --launcher local --yes --config quickstart"
    assert manifest.command == f"{begun} --set seed=7 --run-dir '{tmp_path}/a run'"
    manifest.save(paths := RunPaths(tmp_path))
    assert RunManifest.load(paths) == manifest
    manifest.model_copy(update={"command": ""}).save(paths)
    assert "\ncommand:" not in paths.manifest.read_text("utf-8")


OFFICIAL = ("--config", "imagenet", "--set", "dataset.path=/data")


@pytest.fixture
def released(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., int]:
    """Start a run of a release, of a dataset that needs no looking at."""
    monkeypatch.setattr(start, "describe_dataset", lambda config: DATASET)
    monkeypatch.setattr(release, "RELEASES", tmp_path / "releases")
    assert release.main([]) == 0
    command = [*START, *OFFICIAL, "--run-dir", str(tmp_path / "run"), "--dry-run"]
    return lambda *options: main([*command, *options])


def test_what_can_become_official_is_let_through(released: Callable[..., int]) -> None:
    assert released("--division", "closed") == 0
    assert released("--division", "open", "--set", "training.batch_size=64") == 0


def test_what_cannot_become_official_is_refused_with_a_line_for_each_reason(
    released: Callable[..., int],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("ONEDNN_DEFAULT_FPMATH_MODE", "ANY")
    changes = ("--set", "training.batch_size=64", "--set", "dataset.augment=false")
    assert released("--division", "closed", *changes, "--hours", "0.5") == 2
    assert capsys.readouterr().err.splitlines()[-5:] == [
        "aiperf: not started: it cannot be official in the closed division:",
        "  settings: dataset.augment is False; True is required",
        "  closed settings: training.batch_size is 64; 448 is required",
        "  hours: 0.5 h; at least 1 h is required",
        "  environment: ONEDNN_DEFAULT_FPMATH_MODE=ANY computes in any, but bf16 is recorded; "
        "unset it",
    ]


def test_the_dataset_is_looked_at_too() -> None:
    plan = make_manifest(load_config("imagenet"), 1, 1.0, "local")
    with pytest.raises(
        UsageError, match="dataset: digits; ImageNet is required\n  content: digits is not an off"
    ):
        require_eligible(plan.model_copy(update={"division": "open"}), DATASET)
    require_eligible(plan, DATASET)  # Nobody asked for a division.


@pytest.mark.parametrize(
    ("nodes", "said"),
    [
        ("4-2", "--nodes 4-2: MAX is below MIN; give MIN-MAX, e.g. 2-4"),
        ("0-2", "--nodes 0: a run needs at least 1 node"),
        ("-1", "--nodes -1: a run needs at least 1 node"),
        ("2-", "--nodes 2-: give a number, or MIN-MAX, e.g. 2-4"),
        ("two", "--nodes two: give a number, or MIN-MAX, e.g. 2-4"),
        ("1-1000000000", "--nodes 1000000000: a run has at most 1,000,000 nodes"),
    ],
)
def test_nodes_that_make_no_run_are_refused_in_a_line(
    nodes: str, said: str, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    assert refused_line(*START, f"--nodes={nodes}", "--run-dir", folder) == said
    assert not folder.exists()


def test_a_range_of_nodes_is_in_the_manifest_and_a_number_is_as_it_was(tmp_path: Path) -> None:
    config = configuration({"replica": {"nodes": 2}})
    several = make_manifest(config, 2, 1.0, "local", nodes_max=6)
    assert (several.nodes, several.nodes_max, several.most_replicas) == (2, 6, 3)
    assert len(several.cores) == 3
    one = make_manifest(config, 2, 1.0, "local", nodes_max=2)
    paths = RunPaths(tmp_path)
    one.save(paths)
    assert "nodes_max" not in paths.manifest.read_text()
    with pytest.raises(UsageError, match="--nodes 5: a replica spans 2 nodes"):
        make_manifest(config, 2, 1.0, "local", nodes_max=5)


@pytest.mark.parametrize(
    ("option", "asked", "reason"),
    [
        ("--nodes", "1-2", "  nodes: 1-2 nodes; official runs have a fixed number of nodes"),
        (
            "--start-when",
            "all",
            "  start when: all; loading and staging would lie outside the clock",
        ),
    ],
)
def test_an_official_run_keeps_its_nodes_and_starts_its_clock_with_the_first(
    released: Callable[..., int],
    capsys: pytest.CaptureFixture[str],
    option: str,
    asked: str,
    reason: str,
) -> None:
    assert released(option, asked, "--division", "closed") == 2
    assert reason in capsys.readouterr().err


def test_a_run_has_the_name_of_the_folder_that_it_is_made_in(tmp_path: Path) -> None:
    manifest = make_manifest(load_config("quickstart"), 1, 0.1, "local", dry=True)
    mine = make_run_directory(manifest, tmp_path / "mine", DATASET)
    assert (RunManifest.load(mine).name, RunManifest.load(mine).title) == ("mine", "mine")
    one = make_run_directory(manifest, tmp_path / "series" / "1", DATASET)
    assert RunManifest.load(one).title == "series/1"
    own = make_run_directory(manifest, tmp_path / manifest.run_id, DATASET)
    assert RunManifest.load(own).title == manifest.run_id
    assert "\nname:" not in own.manifest.read_text("utf-8")


def test_a_named_run_is_a_folder_in_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    command = (*START, "--config", "quickstart", "--dry-run", "--name")
    assert str(tmp_path / "runs/baseline") in printed(*command, "baseline")
    for other in (["a/b"], [".a"], ["last"], ["a" * 201], ["a", "--run-dir", "b"]):
        assert "--name" in refused_line(*command, *other)
