"""The objective of training: targets, loss function and quality metric.

Objectives are plain data. Each engine registers the functions that compute its losses and metrics
(``replica/engines/*/objectives.py``). The interpretation of the recorded sums is defined here, so
that readers of a run's records need no engine.
"""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import AfterValidator

from aiperf_hpc.errors import DatasetError
from aiperf_hpc.trial import LABEL, TensorSpec, Value

Sums = Mapping[str, float]
"""Sums over the evaluated samples, by name."""


@dataclass(frozen=True, slots=True)
class QualityMetric:
    """A quality metric and the sums that it is computed from.

    Sums are added over batches and ranks, so that the quality does not depend on how samples are
    distributed. A metric that needs all samples at once (average precision, area under a curve)
    has rows instead, one per sample, which are concatenated; ``summarize`` converts them to the
    recorded sums.
    """

    name: str
    label: str
    """Name of the metric in tables and on axes."""
    sums: tuple[str, ...]
    """Names of the recorded sums."""
    quality: Callable[[Sums, int], float]
    """Computes the quality from the recorded sums and the number of samples."""
    impossible: Callable[[Sums, int], str]
    """Returns the error in sums that are impossible for the number of samples, or an empty text."""
    goal: Literal["maximize", "minimize"]
    perfect: float
    """Best possible quality."""
    error: Callable[[Sums, int], float] | None = None
    """Computes the error, in [0, 1], for the regulated score; None if the metric has none."""
    resolution: Callable[[int], float] | None = None
    """Returns the smallest nonzero error for a number of samples."""
    baseline: str = ""
    """Description of the predictions of a trivial baseline; empty if none is known."""
    rows: tuple[str, ...] = ()
    """Names of the per-sample values that are collected, instead of sums, until all samples are
    evaluated: a number or a list of numbers per sample."""
    summarize: Callable[[Mapping[str, list[Any]]], dict[str, float]] | None = None
    """Computes the recorded sums from the rows of all samples, each a number or a list of numbers;
    None if there are no rows."""

    def __reduce__(self) -> tuple[Callable[[str], QualityMetric], tuple[str]]:
        """Pickle the metric by its name, because lambdas cannot be pickled."""
        return quality_metric_named, (self.name,)

    @property
    def parts(self) -> tuple[str, ...]:
        """Names of the values that an engine returns per batch, in order."""
        return self.rows or self.sums

    def check(self, sums: Sums, samples: int) -> None:
        """Raise ValueError if the sums are impossible for the number of samples."""
        if sums.keys() != set(self.sums):
            raise ValueError(f"{self.name} has the sums {sorted(self.sums)}, not {sorted(sums)}")
        if problem := self.impossible(sums, samples):
            raise ValueError(problem)

    def objective_value(self, quality: float) -> float:
        """Return the value that a search maximizes: the quality, negated if lower is better."""
        return quality if self.goal == "maximize" else 0.0 - quality

    def reaches(self, quality: float, target: float) -> bool:
        """Return whether a quality is at least as good as a target."""
        return self.objective_value(quality) >= self.objective_value(target)

    def regulated_error(self, sums: Sums, samples: int) -> float | None:
        """Return the error for the regulated score, at least the resolution, or None if undefined.

        docs/decisions/score.md explains why a perfect evaluation counts as one wrong sample.
        """
        if self.error is None or self.resolution is None:
            return None
        return max(self.error(sums, samples), self.resolution(samples))


def _no_share(sums: Sums, samples: int) -> str:
    correct = sums["correct"]
    if 0.0 <= correct <= samples and float(correct).is_integer():
        return ""
    return f"{correct:g} correct of {samples} samples"


def _no_mean(sums: Sums, samples: int) -> str:
    if sums["absolute_error"] >= 0 and sums["values"] >= samples:
        return ""
    return f"an absolute error of {sums['absolute_error']:g} in {sums['values']:g} values"


def _no_sum_of_shares(sums: Sums, samples: int) -> str:
    found = sums["intersection_over_union"]
    if 0.0 <= found <= samples:
        return ""
    return f"ratios of intersection to union add up to {found:g} over {samples} samples"


ACCURACY = QualityMetric(
    name="accuracy",
    label="accuracy",
    sums=("correct",),
    quality=lambda sums, samples: sums["correct"] / samples,
    impossible=_no_share,
    goal="maximize",
    perfect=1.0,
    # Computed from the counts to avoid rounding: 1 - 0.7 is more than 0.3.
    error=lambda sums, samples: (samples - sums["correct"]) / samples,
    resolution=lambda samples: 1.0 / samples,
    baseline="the most frequent class",
)
"""Top-1 accuracy: fraction of samples whose most probable class is the label."""

MEAN_ABSOLUTE_ERROR = QualityMetric(
    name="mean_absolute_error",
    label="mean absolute error",
    sums=("absolute_error", "values"),
    quality=lambda sums, _: sums["absolute_error"] / sums["values"],
    impossible=_no_mean,
    goal="minimize",
    perfect=0.0,
    baseline="zeros",
    # No error: it is unbounded and has the unit of the targets, so its logarithm has no meaning.
)
"""Mean of the absolute difference to the target, over all samples and their targets."""

INTERSECTION_OVER_UNION = QualityMetric(
    name="intersection_over_union",
    label="IoU",
    sums=("intersection_over_union",),
    quality=lambda sums, samples: sums["intersection_over_union"] / samples,
    impossible=_no_sum_of_shares,
    goal="maximize",
    perfect=1.0,
    baseline="background everywhere",
    # No error: a mean of ratios, unlike a fraction of samples, has no smallest nonzero error.
)
"""Mean over samples of the mean over classes of the intersection over union (IoU).

The IoU is computed per sample, not over the pixels of all samples. It is 1 for a class that is
absent from both the prediction and the target. [mlcommons/hpc,
deepcam/src/deepCam/utils/metric.py]
"""


def _no_precision(sums: Sums, _: int) -> str:
    found, classes = sums["average_precision"], sums["classes"]
    if classes >= 1 and float(classes).is_integer() and 0.0 <= found <= classes:
        return ""
    return f"average precisions of {found:g} in {classes:g} classes"


MOST_DETECTIONS = 100
"""Maximum number of detections per sample, those with the highest scores, as in COCO."""
_BOX, _DETECTION = 5, 6
"""Number of values of a ground-truth box (class last) and of a detection (score and class last)."""


def _precisions(rows: Mapping[str, list[Any]]) -> dict[str, float]:
    """Return the sum of the average precisions of the classes, and the number of classes."""
    found = average_precisions(
        [_of_length(_DETECTION, sample) for sample in rows["detections"]],
        [_of_length(_BOX, sample) for sample in rows["boxes"]],
    )
    return {"average_precision": sum(found.values()), "classes": float(len(found))}


def _of_length(length: int, numbers: list[float]) -> list[list[float]]:
    """Split ``numbers`` into rows of ``length`` and omit rows with a negative class (the last)."""
    parts = [numbers[i : i + length] for i in range(0, len(numbers), length)]
    return [part for part in parts if part[-1] >= 0]


MEAN_AVERAGE_PRECISION = QualityMetric(
    name="mean_average_precision",
    label="mean average precision at IoU 0.5",
    sums=("average_precision", "classes"),
    quality=lambda sums, _: sums["average_precision"] / sums["classes"],
    impossible=_no_precision,
    goal="maximize",
    perfect=1.0,
    rows=("detections", "boxes"),
    summarize=_precisions,
    baseline="no box",
    # No error: one minus the precision is not a fraction of wrong samples.
)
"""Mean over classes of the precision averaged over 101 recall levels, as defined by COCO."""

QUALITY_METRICS: dict[str, QualityMetric] = {
    m.name: m
    for m in (
        ACCURACY,
        MEAN_ABSOLUTE_ERROR,
        INTERSECTION_OVER_UNION,
        MEAN_AVERAGE_PRECISION,
    )
}
"""Metrics by name."""


def quality_metric_named(name: str) -> QualityMetric:
    """Return a metric. Raises KeyError if the name is unknown."""
    return QUALITY_METRICS[name]


def unknown_metric(name: str) -> str:
    """Return the error message for an unknown metric name."""
    return f"no metric '{name}'; known: {', '.join(sorted(QUALITY_METRICS))}"


def _known(name: str) -> str:
    if name not in QUALITY_METRICS:
        raise ValueError(unknown_metric(name))
    return name


class Objective(Value):
    """The objective of training."""

    kind: str
    """Kind of task in one word, such as classification or regression."""
    targets: dict[str, TensorSpec]
    """Arrays of a sample that the loss and the metric read, by name."""
    loss: str
    """Name of the loss in the engines' tables."""
    metric: Annotated[str, AfterValidator(_known)]
    """Name of the quality metric in ``QUALITY_METRICS`` and in the engines' tables."""
    dense: bool = False
    """Whether there is a target for every position of the output; the shape of a target is then
    that of the output without channels."""
    class_weights: tuple[float, ...] = ()
    """Weights of the classes in the loss; 1 if empty."""
    predictions: bool = False
    """Whether evaluations also return the most probable class of every sample."""

    @property
    def quality(self) -> QualityMetric:
        """Quality metric."""
        return QUALITY_METRICS[self.metric]


CLASSIFICATION = Objective(
    kind="classification",
    targets={"label": LABEL},
    loss="softmax_cross_entropy",
    metric=ACCURACY.name,
)
"""Classification objective: one class per sample, softmax cross-entropy."""


def segmentation(*class_weights: float) -> Objective:
    """Return the segmentation objective: one class per pixel, softmax cross-entropy.

    Args:
        class_weights: weights of the classes in the cross-entropy; 1 by default.
    """
    return Objective(
        kind="segmentation",
        targets={"mask": TensorSpec(shape=(None, None), dtype="int32")},
        loss="pixel_cross_entropy",
        metric=INTERSECTION_OVER_UNION.name,
        dense=True,
        class_weights=class_weights,
    )


def regression(*shape: int) -> Objective:
    """Return the regression objective: the loss is the mean squared error, the metric the mean
    absolute error.

    Args:
        shape: shape of a sample's targets, equal to that of the network's output.
    """
    return Objective(
        kind="regression",
        targets={"values": TensorSpec(shape=shape)},
        loss="mean_squared_error",
        metric=MEAN_ABSOLUTE_ERROR.name,
    )


def detection(most: int) -> Objective:
    """Return the detection objective: bounding boxes with classes.

    Args:
        most: maximum number of boxes per sample. Each is a row (top, left, bottom, right, class)
            in pixels, with bottom and right exclusive; unused rows are -1.
    """
    return Objective(
        kind="detection",
        targets={"boxes": TensorSpec(shape=(most, _BOX), dtype="int32")},
        loss="detection",
        metric=MEAN_AVERAGE_PRECISION.name,
    )


OVERLAP = 0.5
"""Minimum intersection over union of a detection that matches a ground-truth box."""
_SCORE = 4
"""Index of the score in a detection."""

Rows = Sequence[Sequence[Sequence[float]]]
"""Boxes of each sample, each (top, left, bottom, right, ..., class)."""


def average_precisions(detections: Rows, boxes: Rows) -> dict[int, float]:
    """Return the average precision at an IoU of 0.5 for each class with a ground-truth box.

    It is the mean of the precision at 101 recall levels. The detections of all samples, at most 100
    per sample and class, are ranked by decreasing score.

    Args:
        detections: detections of each sample, with the score before the class.
        boxes: ground-truth boxes of each sample.

    Raises:
        DatasetError: there is no ground-truth box.
    """
    # Imported here because only detection needs it.
    from pycocotools.coco import COCO
    from pycocotools.cocoeval import COCOeval

    classes = sorted({int(box[-1]) for sample in boxes for box in sample})
    if not classes:
        raise DatasetError("no validation sample has a box: there is nothing to find")
    with contextlib.redirect_stdout(io.StringIO()):  # pycocotools prints its progress.
        truth, found = (_put_into(COCO(), rows, classes) for rows in (boxes, detections))
        evaluation = COCOeval(truth, found, "bbox")
        evaluation.params.iouThrs = [OVERLAP]
        evaluation.params.areaRng, evaluation.params.areaRngLbl = [[0.0, 1e10]], ["all"]
        evaluation.evaluate()
        evaluation.accumulate()
    precision = evaluation.eval["precision"]  # (overlaps, recalls, classes, areas, most)
    return {each: float(precision[0, :, i, 0, -1].mean()) for i, each in enumerate(classes)}


def _put_into(collection: Any, samples: Rows, classes: Sequence[int]) -> Any:  # noqa: ANN401
    """Fill a COCO collection with the boxes of all samples. Ids start at 1; COCO reserves 0."""
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
