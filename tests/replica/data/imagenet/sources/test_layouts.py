"""The same images in every layout are the same dataset, to the last byte."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.support.imagenet_layouts import LAYOUTS
from tests.support.imagenet_source import content_of

from aiperf_hpc.replica.data.imagenet.sources import open_source
from aiperf_hpc.replica.data.imagenet.sources import prepare as prepare_imagenet
from aiperf_hpc.replica.data.staging import Options


@pytest.mark.parametrize("layout", LAYOUTS)
def test_all_layouts(layout: str, source: Path, imagenet_folder: Path, tmp_path: Path) -> None:
    LAYOUTS[layout](source)
    prepare_imagenet(source, tmp_path / "prepared", Options(shards=4, cores=2))
    assert content_of(tmp_path / "prepared") == content_of(imagenet_folder)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["prepared", "source"]


@pytest.mark.parametrize(
    ("layout", "below"), [("kaggle", "ILSVRC"), ("parquet", "data"), ("solution", ".")]
)
def test_a_source_may_be_named_by_the_folder_in_it(layout: str, below: str, source: Path) -> None:
    LAYOUTS[layout](source)
    found = open_source(source / below, Options())
    assert (len(found.training), len(found.validation)) == (27, 12)


def test_labels_number_the_sorted_classes_of_ilsvrc(source: Path) -> None:
    found = open_source(source, Options())
    assert list(found.wnids) == ["n01440764", "n02084071", "n03000134"]
    for image in (*found.training, *found.validation):
        assert image.path.split("/")[-2] == found.wnids[image.label]
