"""The same images in every layout are the same dataset, to the last byte."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from tests.support.imagenet_layouts import LAYOUTS

from aiperf_hpc.replica.data.imagenet.preparation import prepare as prepare_imagenet
from aiperf_hpc.replica.data.imagenet.sources import open_source
from aiperf_hpc.replica.data.jobs import not_shown
from aiperf_hpc.replica.data.staging import Options


def _content(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_dataset_does_not_depend_on_its_layout(
    layout: str, make_source: Callable[[Path], Path], imagenet_folder: Path, tmp_path: Path
) -> None:
    LAYOUTS[layout](source := make_source(tmp_path / "source"))
    prepare_imagenet(source, tmp_path / "prepared", Options(shards=4, cores=2))
    assert _content(tmp_path / "prepared") == _content(imagenet_folder)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["prepared", "source"]


@pytest.mark.parametrize(
    ("layout", "below"), [("kaggle", "ILSVRC"), ("parquet", "data"), ("solution", ".")]
)
def test_a_source_may_be_named_by_the_folder_in_it(
    layout: str, below: str, make_source: Callable[[Path], Path], tmp_path: Path
) -> None:
    LAYOUTS[layout](source := make_source(tmp_path / "source"))
    listing = open_source(source / below, 1, not_shown).listing
    assert (len(listing.training), len(listing.validation)) == (27, 12)


def test_labels_number_the_sorted_classes_of_ilsvrc(
    make_source: Callable[[Path], Path], tmp_path: Path
) -> None:
    source = make_source(tmp_path / "source")
    listing = open_source(source, 1, not_shown).listing
    assert list(listing.wnids) == ["n01440764", "n02084071", "n03000134"]
    for image in (*listing.training, *listing.validation):
        assert image.path.split("/")[-2] == listing.wnids[image.label]
