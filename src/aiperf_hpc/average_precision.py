"""The average precision of detections, by COCO's own evaluation (the package pycocotools)."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Sequence
from typing import Any

from aiperf_hpc.errors import DatasetError

OVERLAP = 0.5
"""Intersection over union from which a detection has found a true box."""
_SCORE = 4
"""Where the score of a detection is."""

Rows = Sequence[Sequence[Sequence[float]]]
"""Of each sample, boxes: (top, left, bottom, right, ..., class) each."""


def average_precisions(detections: Rows, boxes: Rows) -> dict[int, float]:
    """Return the average precision at an IoU of 0.5 of each class that has a true box.

    It is the mean of the precision at 101 recalls, over the detections of all samples in falling
    order of their scores, 100 a sample and class at most.

    Args:
        detections: of each sample, with a score before the class.
        boxes: the true ones of each sample.

    Raises:
        DatasetError: there is no true box.
    """
    # Imported here, since only who detects needs it.
    from pycocotools.coco import COCO
    from pycocotools.cocoeval import COCOeval

    classes = sorted({int(box[-1]) for sample in boxes for box in sample})
    if not classes:
        raise DatasetError("no validation sample has a box: there is nothing to find")
    with contextlib.redirect_stdout(io.StringIO()):  # It tells its progress there.
        truth, found = (_put_into(COCO(), rows, classes) for rows in (boxes, detections))
        evaluation = COCOeval(truth, found, "bbox")
        evaluation.params.iouThrs = [OVERLAP]
        evaluation.params.areaRng, evaluation.params.areaRngLbl = [[0.0, 1e10]], ["all"]
        evaluation.evaluate()
        evaluation.accumulate()
    precision = evaluation.eval["precision"]  # (overlaps, recalls, classes, areas, most)
    return {each: float(precision[0, :, i, 0, -1].mean()) for i, each in enumerate(classes)}


def _put_into(collection: Any, samples: Rows, classes: Sequence[int]) -> Any:  # noqa: ANN401
    """Return COCO's collection with the boxes of all samples; numbers begin with 1, 0 is none."""
    rows = [(number, row) for number, sample in enumerate(samples, 1) for row in sample]
    collection.dataset = {
        "images": [{"id": number} for number in range(1, len(samples) + 1)],
        "categories": [{"id": each} for each in classes],
        "annotations": [_annotation(i, *each) for i, each in enumerate(rows, 1)],
    }
    collection.createIndex()
    return collection


def _annotation(number: int, sample: int, row: Sequence[float]) -> dict[str, object]:
    top, left, bottom, right = row[:4]
    height, width = bottom - top, right - left
    return {
        "id": number,
        "image_id": sample,
        "category_id": int(row[-1]),
        "bbox": [left, top, width, height],
        "area": height * width,
        "iscrowd": 0,
        "score": row[_SCORE],
    }
