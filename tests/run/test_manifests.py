from __future__ import annotations

from pathlib import Path

import pytest
from tests.support.run_factory import DATASET

from aiperf_hpc.config import DatasetConfig, RunConfig, load_config, preset_names
from aiperf_hpc.datasets import MANIFEST, load_dataset_manifest, save_dataset_manifest
from aiperf_hpc.errors import DatasetError, RunDirectoryError
from aiperf_hpc.run.manifest import RunManifest
from aiperf_hpc.run.paths import RunPaths

RUN = RunManifest(
    run_id="2026-01-01",
    nodes=2,
    hours=1.5,
    launcher="local",
    cores=((0, 1), (2,)),
    versions={"python": "3.11", "numpy": "2.0"},
    commit="1e10",
    config=RunConfig(dataset=DatasetConfig(name="cifar10", path=Path("/data/é"))),
)


@pytest.mark.parametrize(
    "config", [RUN.config, *(load_config(name).settled() for name in preset_names())]
)
def test_a_run_manifest_is_written_again_to_the_byte(tmp_path: Path, config: RunConfig) -> None:
    """Its SHA-256 is recorded at each start; a primary that goes on has it from the file."""
    first, again = RunPaths(tmp_path / "first"), RunPaths(tmp_path / "again")
    written = RUN.model_copy(update={"config": config, "hours": 0.1})
    written.save(first)
    read = RunManifest.load(first)
    assert read == written
    read.save(again)
    assert again.manifest.read_bytes() == first.manifest.read_bytes()


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (".", "is not a run directory: it has no run.yaml"),
        ("file", "is not a run directory: it is a file"),
        ("absent", "there is no run .*absent; "),
    ],
)
def test_a_place_without_run_yaml_is_no_run_directory(
    tmp_path: Path, name: str, message: str
) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(RunDirectoryError, match=message):
        RunManifest.load(RunPaths(tmp_path / name))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"a: [", r"cannot read .*run\.yaml"),
        (b"\xff", r"cannot read .*run\.yaml"),
        (b"", r"run\.yaml: the file: should be a mapping"),
        (b"nodes: 1", r"run\.yaml: run_id: is missing"),
    ],
)
def test_a_damaged_run_manifest_is_refused_by_its_path(
    tmp_path: Path, content: bytes, message: str
) -> None:
    (tmp_path / "run.yaml").write_bytes(content)
    with pytest.raises(RunDirectoryError, match=message):
        RunManifest.load(RunPaths(tmp_path))


@pytest.mark.parametrize(
    ("old", "new", "key"),
    [
        ("schema_version: 2", "schema_version: 3", "schema_version"),
        ("nodes: 2", "nodes: 0", "nodes"),
        ("preset: custom", "preset: ../x", r"config\.preset"),
        ("nodes: 2", "nodes: 2\nsurprise: 1", "surprise"),
    ],
)
def test_a_manifest_with_another_value_is_refused_by_its_key(
    tmp_path: Path, old: str, new: str, key: str
) -> None:
    paths = RunPaths(tmp_path)
    RUN.save(paths)
    text = paths.manifest.read_text("utf-8")
    assert old in text
    paths.manifest.write_text(text.replace(old, new), "utf-8")
    with pytest.raises(RunDirectoryError, match=rf"run\.yaml: {key}: "):
        RunManifest.load(paths)


def test_a_dataset_manifest_comes_back_as_it_was(tmp_path: Path) -> None:
    save_dataset_manifest(tmp_path / "digits", DATASET)
    assert load_dataset_manifest(tmp_path / "digits", "digits") == DATASET


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, rf"has no {MANIFEST}; create it with"),
        *(
            (content, rf"{MANIFEST} is damaged: .*; create it with")
            for content in (b"", b"{", b"[]", b"\xff\xfe", b'{"name": "digits"}', b'{"x": 1}')
        ),
    ],
)
def test_a_missing_or_damaged_dataset_manifest_is_refused_with_what_to_do(
    tmp_path: Path, content: bytes | None, message: str
) -> None:
    if content is not None:
        (tmp_path / MANIFEST).write_bytes(content)
    with pytest.raises(DatasetError, match=message):
        load_dataset_manifest(tmp_path, "digits")


def test_a_dataset_manifest_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    (tmp_path / MANIFEST).mkdir()
    for folder, message in ((tmp_path, "cannot read"), (tmp_path / "absent", "there is no folder")):
        with pytest.raises(DatasetError, match=message):
            load_dataset_manifest(folder, "digits")


def test_the_folder_of_another_dataset_is_refused(tmp_path: Path) -> None:
    save_dataset_manifest(tmp_path, DATASET)
    with pytest.raises(DatasetError, match="holds 'digits'"):
        load_dataset_manifest(tmp_path, "cifar10")
