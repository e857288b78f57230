"""What a network is trained for: its targets, its loss, and how its quality is measured.

Plain data beside the graph. What computes a loss or a measure on a device is a row in each
engine's table of that name (``replica/engines/*/objectives.py``); what the sums that it gives
mean is said here, so that whoever reads a run's records needs no engine.
"""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from pydantic import AfterValidator

from aiperf_hpc.errors import DatasetError
from aiperf_hpc.trial import LABEL, TensorSpec, Value

Sums = Mapping[str, float]
"""Sums over the samples that were evaluated, by name."""


@dataclass(frozen=True, slots=True)
class Measure:
    """A measure of quality, by the sums from which it follows.

    Sums are added over batches and ranks, so that the quality is the same however samples are
    divided among them. A measure that needs all samples at once (average precision, the area
    under a curve) has rows instead, one a sample, which are put behind each other, and
    ``summarize`` makes of them what is recorded.
    """

    name: str
    label: str
    """The measure's name in a table or on an axis."""
    sums: tuple[str, ...]
    """The names of the sums that are recorded."""
    quality: Callable[[Sums, int], float]
    """The quality of the recorded sums and the number of samples."""
    impossible: Callable[[Sums, int], str]
    """What is wrong with sums that so many samples cannot have; empty where nothing is."""
    goal: Literal["maximize", "minimize"]
    perfect: float
    """The quality that cannot be surpassed."""
    error: Callable[[Sums, int], float] | None = None
    """The error, in [0, 1], that the regulated score is made of; None where a quality has none."""
    resolution: Callable[[int], float] | None = None
    """The smallest error above zero that so many samples can show."""
    baseline: str = ""
    """What a predictor predicts that has learnt nothing, in words; empty where none is known."""
    rows: tuple[str, ...] = ()
    """The names of the values of each sample that are kept, in place of sums, until all samples
    are evaluated: one a sample, or so many."""
    summarize: Callable[[Mapping[str, list[Any]]], dict[str, float]] | None = None
    """What is recorded, of the rows of all samples, each a number or a list of numbers; None where
    there are no rows."""

    names: frozenset[str] = field(init=False)
    """The names of the recorded sums, to be compared with."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "names", frozenset(self.sums))

    def __reduce__(self) -> tuple[Callable[[str], Measure], tuple[str]]:
        """Go to another process by name: a measure is a row of ``MEASURES``, and its functions
        have no names of their own."""
        return measure_named, (self.name,)

    @property
    def parts(self) -> tuple[str, ...]:
        """The names of what an engine gives for a batch, in their order."""
        return self.rows or self.sums

    def check(self, sums: Sums, samples: int) -> None:
        """Raise ValueError unless these can be the sums over so many samples."""
        if len(sums) != len(self.sums) or not sums.keys() >= self.names:
            raise ValueError(f"{self.name} has the sums {sorted(self.sums)}, not {sorted(sums)}")
        if problem := self.impossible(sums, samples):
            raise ValueError(problem)

    def objective_value(self, quality: float) -> float:
        """Return what a search maximizes: the quality, or its negative where less is better."""
        return quality if self.goal == "maximize" else 0.0 - quality

    def reaches(self, quality: float, target: float) -> bool:
        """Return whether a quality is as good as a target."""
        return self.objective_value(quality) >= self.objective_value(target)

    def can_reach(self, target: float) -> bool:
        """Return whether any quality is as good as a target."""
        return self.reaches(self.perfect, target)

    def regulated_error(self, sums: Sums, samples: int) -> float | None:
        """Return the error for the regulated score, no less than samples can show; None for none.

        docs/decisions/score.md says why a perfect evaluation is taken for one wrong sample.
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


ACCURACY = Measure(
    name="accuracy",
    label="accuracy",
    sums=("correct",),
    quality=lambda sums, samples: sums["correct"] / samples,
    impossible=_no_share,
    goal="maximize",
    perfect=1.0,
    # From the counts, since 1 - 0.7 is more than 0.3.
    error=lambda sums, samples: (samples - sums["correct"]) / samples,
    resolution=lambda samples: 1.0 / samples,
    baseline="the most frequent class",
)
"""The share of samples whose most probable class is the label: top-1."""

MEAN_ABSOLUTE_ERROR = Measure(
    name="mean_absolute_error",
    label="mean absolute error",
    sums=("absolute_error", "values"),
    quality=lambda sums, _: sums["absolute_error"] / sums["values"],
    impossible=_no_mean,
    goal="minimize",
    perfect=0.0,
    baseline="zeros",
    # It has the unit of the targets and no bound: it is no share, so that -ln of it says nothing.
)
"""The mean over all samples and all their targets of the distance to the target."""

INTERSECTION_OVER_UNION = Measure(
    name="intersection_over_union",
    label="IoU",
    sums=("intersection_over_union",),
    quality=lambda sums, samples: sums["intersection_over_union"] / samples,
    impossible=_no_sum_of_shares,
    goal="maximize",
    perfect=1.0,
    baseline="background everywhere",
    # A mean of ratios has no smallest error above zero, as a share of samples has.
)
"""The mean over samples of the mean over classes of |found and there| / |found or there|.

Of each sample by itself, a class that is neither found nor there counting as 1: not the ratios of
all samples' pixels together. [mlcommons/hpc, deepcam/src/deepCam/utils/metric.py]
"""


def _no_precision(sums: Sums, _: int) -> str:
    found, classes = sums["average_precision"], sums["classes"]
    if classes >= 1 and float(classes).is_integer() and 0.0 <= found <= classes:
        return ""
    return f"average precisions of {found:g} in {classes:g} classes"


MOST_DETECTIONS = 100
"""Detections of a sample that are looked at, the best ones: COCO's."""
_BOX, _DETECTION = 5, 6
"""Numbers of a true box, its class the last, and of a detection, its score and class the last."""


def _precisions(rows: Mapping[str, list[Any]]) -> dict[str, float]:
    """Return the sum of the classes' average precisions, and of how many classes there are."""
    found = average_precisions(
        [_of_length(_DETECTION, sample) for sample in rows["detections"]],
        [_of_length(_BOX, sample) for sample in rows["boxes"]],
    )
    return {"average_precision": sum(found.values()), "classes": float(len(found))}


def _of_length(length: int, numbers: list[float]) -> list[list[float]]:
    """Return so many numbers each, of those whose last one, a class, is not below zero."""
    parts = [numbers[i : i + length] for i in range(0, len(numbers), length)]
    return [part for part in parts if part[-1] >= 0]


MEAN_AVERAGE_PRECISION = Measure(
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
    # One minus it is no share of samples that were wrong.
)
"""The mean over classes of the precision averaged over 101 recalls, as COCO measures it."""

MEASURES: dict[str, Measure] = {
    m.name: m
    for m in (
        ACCURACY,
        MEAN_ABSOLUTE_ERROR,
        INTERSECTION_OVER_UNION,
        MEAN_AVERAGE_PRECISION,
    )
}
"""The measures that records may name."""


def measure_named(name: str) -> Measure:
    """Return a measure. Raises KeyError when there is none of that name."""
    return MEASURES[name]


def unknown_measure(name: str) -> str:
    """Return what is to be said of the name of a measure that there is not."""
    return f"no measure '{name}'; known: {', '.join(sorted(MEASURES))}"


def _known(name: str) -> str:
    if name not in MEASURES:
        raise ValueError(unknown_measure(name))
    return name


class Objective(Value):
    """What a network is trained for."""

    kind: str
    """The kind of task in one word, such as classification or regression."""
    targets: dict[str, TensorSpec]
    """The arrays of a sample that the loss and the measure read."""
    loss: str
    """The loss's row in the engines' tables."""
    measure: Annotated[str, AfterValidator(_known)]
    """The quality's row in ``MEASURES`` and in the engines' tables."""
    dense: bool = False
    """Whether each target is told of every place of the output: its shape is then the output's
    without its channels."""
    class_weights: tuple[float, ...] = ()
    """By what the loss of each class is multiplied; none: by 1."""
    predictions: bool = False
    """Whether evaluations also tell the most probable class of every sample."""

    @property
    def quality(self) -> Measure:
        """The measure of quality."""
        return MEASURES[self.measure]


CLASSIFICATION = Objective(
    kind="classification",
    targets={"label": LABEL},
    loss="softmax_cross_entropy",
    measure=ACCURACY.name,
)
"""The objective of classes, one for each sample, by the network's softmax."""


def segmentation(*class_weights: float) -> Objective:
    """Return the objective of a class for each pixel, by the network's softmax.

    Args:
        class_weights: by what the cross-entropy of a pixel of each class is multiplied; none: 1.
    """
    return Objective(
        kind="segmentation",
        targets={"mask": TensorSpec(shape=(None, None), dtype="int32")},
        loss="pixel_cross_entropy",
        measure=INTERSECTION_OVER_UNION.name,
        dense=True,
        class_weights=class_weights,
    )


def regression(*shape: int) -> Objective:
    """Return the objective of real numbers: mean squared error, measured by the absolute one.

    Args:
        shape: of a sample's targets, which is that of the network's output.
    """
    return Objective(
        kind="regression",
        targets={"values": TensorSpec(shape=shape)},
        loss="mean_squared_error",
        measure=MEAN_ABSOLUTE_ERROR.name,
    )


def detection(most: int) -> Objective:
    """Return the objective of boxes about what is in a sample, each of a class.

    Args:
        most: rows for boxes of a sample: (top, left, bottom, right, class) in pixels, the latter
            two sides behind the last row and column; -1 where there is none.
    """
    return Objective(
        kind="detection",
        targets={"boxes": TensorSpec(shape=(most, _BOX), dtype="int32")},
        loss="detection",
        measure=MEAN_AVERAGE_PRECISION.name,
    )


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
