"""Checks of a node before its replica trains."""

from __future__ import annotations

import platform
from importlib import util
from pathlib import Path

import numpy as np
import pytest
from tests.support.run_manifest import run_manifest

from aiperf_hpc import __version__
from aiperf_hpc.clock import SYSTEM
from aiperf_hpc.config import validate
from aiperf_hpc.datasets import save_dataset_manifest
from aiperf_hpc.errors import PreflightError
from aiperf_hpc.host.machine import BOUND
from aiperf_hpc.integrity.release import FILES, package_digest
from aiperf_hpc.replica import node_check
from aiperf_hpc.replica.node_check import (
    check_dataset,
    check_node,
    checked_dataset,
    checked_engine,
    imported_modules,
)
from aiperf_hpc.run.manifest import RunManifest
from aiperf_hpc.trial import DatasetInfo, TensorSpec

VERSIONS = {
    "aiperf-hpc": __version__,
    "python": platform.python_version(),
    "numpy": np.__version__,
    FILES: package_digest(),
}
NODE = "^node n7: "


@pytest.fixture(autouse=True)
def _node(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURMD_NODENAME", "n7")


CIFAR10 = DatasetInfo.of_labelled_images(
    name="cifar10",
    sha256="ab" * 32,
    classes=10,
    shape=(32, 32, 3),
    train_samples=50_000,
    validation_samples=10_000,
)


def manifest(
    versions: dict[str, str], engine: dict[str, str] | None = None, **dataset: object
) -> RunManifest:
    return run_manifest(
        validate({"dataset": dataset or {"name": "digits"}, "engine": engine or {}}, "test"),
        launcher="slurm",
        versions=versions,
        dataset=CIFAR10 if dataset else None,
    )


SAME = "install the same environment on all nodes"


@pytest.mark.parametrize(
    ("name", "version"),
    [
        ("numpy", "1.0.0"),
        (FILES, "ab" * 32),
        ("no-such-thing", "1"),
    ],
)
def test_another_version_is_rejected(name: str, version: str) -> None:
    with pytest.raises(PreflightError, match=f"{NODE}{name} is .*{version}; {SAME}$"):
        check_node(manifest(VERSIONS | {name: version}))
    check_node(manifest(VERSIONS))


def test_a_missing_device_or_engine_is_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    requested = manifest(VERSIONS, engine={"name": "torch", "device": "cuda"})
    with pytest.raises(PreflightError, match=f"{NODE}engine.device=cuda: PyTorch "):
        checked_engine(requested, 1, SYSTEM, 0)
    monkeypatch.setattr(util, "find_spec", lambda _: None)
    with pytest.raises(PreflightError, match=f"{NODE}engine 'torch' needs the package 'torch'"):
        check_node(requested)


def test_training_on_the_cpu_of_a_node_with_accelerators_must_be_requested(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.delenv(BOUND, raising=False)
    monkeypatch.setattr(node_check, "computing_on_bus", lambda: {"NVIDIA": 4})
    with pytest.raises(PreflightError, match=rf"{NODE}it has accelerators \(4 of NVIDIA\) that "):
        checked_engine(manifest(VERSIONS, engine={"name": "torch"}), 1, SYSTEM, 0)
    requested = manifest(VERSIONS, engine={"name": "torch", "device": "cpu"})
    assert checked_engine(requested, 1, SYSTEM, 0).name == "torch"
    monkeypatch.setenv(BOUND, "CUDA_VISIBLE_DEVICES=2")
    with pytest.raises(PreflightError, match="does not see the accelerator that it was allocated"):
        checked_engine(manifest(VERSIONS, engine={"name": "torch"}), 1, SYSTEM, 0)


def test_decoded_images_need_memory_for_all_ranks_of_a_node(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(node_check, "available_bytes", lambda: 3 * 2**30)
    values = {
        "dataset": {"name": "imagenet", "path": tmp_path, "decoded_cache_gib": 2},
        "engine": {"name": "torch"},
        "replica": {"ranks_per_node": 2},
    }
    asked = manifest(VERSIONS).model_copy(update={"config": validate(values, "test")})
    with pytest.raises(PreflightError, match=r"2 for each of 2 ranks is 4 GiB, 3 GiB are"):
        checked_dataset(asked, 1)
    one = asked.config.replica.model_copy(update={"ranks_per_node": 1})
    config = asked.config.model_copy(update={"replica": one})
    with pytest.raises(PreflightError, match="has no dataset.json"):  # There is room for one.
        checked_dataset(asked.model_copy(update={"config": config}), 1)


def test_a_node_without_the_dataset_or_with_another_one_is_rejected(tmp_path: Path) -> None:
    requested = manifest(VERSIONS, name="cifar10", path=str(tmp_path / "data"))
    for check in (check_node, lambda manifest: checked_dataset(manifest, 1)):
        with pytest.raises(PreflightError, match=f"{NODE}dataset 'cifar10': there is no folder"):
            check(requested)
    save_dataset_manifest(tmp_path / "data", CIFAR10)
    check_node(requested)
    # The shape of samples comes from the run's configuration, not from the folder.
    shape = {"inputs": {"image": TensorSpec(shape=(16, 16, 3))}}
    check_dataset(requested, CIFAR10.model_copy(update=shape))
    save_dataset_manifest(tmp_path / "data", CIFAR10.model_copy(update={"train_samples": 49_999}))
    with pytest.raises(PreflightError, match=r"49999 \+ 10000 samples here, .*50000 \+ 10000;"):
        check_node(requested)


def test_a_dataset_without_a_folder_is_loaded_and_compared() -> None:
    assert checked_dataset(manifest(VERSIONS), 1)[0].info.name == "digits"
    with pytest.raises(PreflightError, match="let all nodes see the same dataset.path"):
        check_dataset(
            manifest(VERSIONS, name="cifar10", path="/data"),
            CIFAR10.model_copy(update={"sha256": "cd" * 32}),
        )


def test_a_dataset_is_loaded_from_its_copy_on_the_node(tmp_path: Path) -> None:
    source = tmp_path / "source"
    save_dataset_manifest(source, CIFAR10)
    asked = manifest(
        VERSIONS, name="cifar10", path=source, cache="disk", cache_path=tmp_path / "cache"
    )
    with pytest.raises(PreflightError, match=f"{NODE}.*{tmp_path / 'cache'}/cifar10-"):
        checked_dataset(asked, 1)  # It reads the copy, which has no images.


def test_an_unreadable_package_has_no_digest_and_the_reason_is_printed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail() -> str:
        raise PermissionError(13, "Permission denied", "/site/clock.py")

    monkeypatch.setattr(node_check, "current_package_digest", fail)
    assert imported_modules(3).package_sha256 == ""
    error = "aiperf: rank 3: cannot hash the installed package: [Errno 13] Permission denied"
    assert capsys.readouterr().err.startswith(error)
