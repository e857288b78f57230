"""What a predictor that has learnt nothing reaches, by the metrics of networks."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from tests.support.fakes import FakeDataset

from aiperf_hpc.errors import DatasetError
from aiperf_hpc.objective import (
    CLASSIFICATION,
    QUALITY_METRICS,
    Objective,
    detection,
    regression,
    segmentation,
)
from aiperf_hpc.replica.data.base import Batch, labelled_images
from aiperf_hpc.replica.data.baseline import PREDICTORS, Tally
from aiperf_hpc.trial import DatasetInfo

INFO = FakeDataset(validation_samples=5).info
"""Of five samples, of four classes."""


def images(*labels: int) -> Batch:
    return labelled_images(np.zeros((len(labels), 2, 2, 1)), np.array(labels, np.int32))


def values(*rows: tuple[float, ...]) -> Batch:
    return Batch({}, {"values": np.array(rows, np.float32)})


def tallied(objective: Objective, *batches: Batch, info: DatasetInfo = INFO) -> Tally:
    tally = Tally(objective, info)
    assert list(tally.watched(iter(batches))) == list(batches)
    return tally


def test_each_metric_says_what_its_predictor_predicts() -> None:
    assert {
        name for name, metric in QUALITY_METRICS.items() if metric.baseline
    } == PREDICTORS.keys()


def test_the_most_frequent_class_is_that_of_all_batches() -> None:
    measured = tallied(CLASSIFICATION, images(1, 1), Batch({}, {}, 4), images(2, 2, 2)).measured()
    assert (measured.metric, measured.sums, measured.samples) == ("accuracy", {"correct": 3}, 5)
    assert measured.quality == 0.6


def test_zeros_are_as_far_off_as_the_targets_are_large() -> None:
    batches = values((0.5, -0.5), (1.0, 0.0)), values((-0.25, 0.25), (0.0, 0.0), (0.5, 0.0))
    measured = tallied(regression(2), *batches).measured()
    assert measured.sums == {"absolute_error": 3.0, "values": 10}
    assert measured.quality == pytest.approx(0.3)


def test_background_everywhere_is_right_about_classes_that_are_not_there() -> None:
    """Masks of 8 pixels: without anything, with a river of 2, with a cyclone of 1 and a river."""
    masks = np.zeros((5, 2, 4), np.int32)
    masks[1, 0, :2] = masks[2, 0, :2] = 2
    masks[2, 1, 3] = 1
    info = INFO.model_copy(update={"classes": 3})
    batches = [Batch({}, {"mask": part}) for part in (masks[:2], masks[2:])]
    measured = tallied(segmentation(), *batches, info=info).measured()
    assert measured.metric == "intersection_over_union"
    each = [1.0, (6 / 8 + 1 + 0) / 3, (5 / 8) / 3, 1.0, 1.0]
    assert measured.quality == pytest.approx(sum(each) / 5)


def test_no_box_finds_nothing_of_the_classes_that_there_are() -> None:
    boxes = np.full((5, 3, 5), -1, np.int32)
    boxes[1, 0], boxes[4, 1], boxes[4, 0] = [0, 0, 2, 2, 3], [0, 0, 2, 2, 3], [0, 0, 1, 1, 0]
    batch = Batch({}, {"boxes": boxes})
    measured = tallied(detection(3), batch).measured()
    assert measured.sums == {"average_precision": 0.0, "classes": 2.0}
    assert measured.quality == 0.0


def test_an_evaluation_that_was_cut_is_no_baseline_and_the_next_one_is_watched_anew() -> None:
    tally = tallied(CLASSIFICATION, images(0, 0, 0))
    with pytest.raises(DatasetError, match="an evaluation had 3 of 5 validation samples"):
        tally.measured()
    watched: Iterator[Batch] = tally.watched(iter([images(0, 1), images(1, 1, 2)]))
    assert len(list(watched)) == 2
    assert tally.measured().sums == {"correct": 3}


def test_a_dataset_of_an_unknown_number_of_classes_has_no_most_frequent_one() -> None:
    info = INFO.model_copy(update={"classes": None})
    with pytest.raises(DatasetError, match="does not state its number of classes"):
        Tally(CLASSIFICATION, info)


def test_a_label_that_is_no_class_is_found() -> None:
    with pytest.raises(DatasetError, match="a label of 4, and classes up to 3"):
        tallied(CLASSIFICATION, images(0, 4))
