"""The dataset by its content."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Final

from aiperf_hpc.datasets import why_unofficial
from aiperf_hpc.ops_counter.divisions.rule import RuleCheck
from aiperf_hpc.trial import DatasetInfo, Stored

OFFICIAL: Final = "imagenet"
SHAPE: Final = (224, 224, 3)
COUNTS: Final = {"classes": 1000, "train_samples": 1_281_167, "validation_samples": 50_000}


def dataset_rule(seen: Collection[DatasetInfo], stored: Stored) -> RuleCheck:
    """Return whether all replicas had ImageNet, by its name, numbers and configured format."""
    value = ", ".join(sorted(dataset.name for dataset in seen)) or "none"
    return RuleCheck.of("dataset", value, "ImageNet", _reasons(seen, stored))


def _reasons(seen: Collection[DatasetInfo], stored: Stored) -> Iterator[str]:
    if not seen:
        yield "no replica loaded a dataset"
        return
    if len(seen) > 1:
        yield f"replicas had {len(seen)} different datasets"
        return
    (dataset,) = seen
    if dataset.name != OFFICIAL:
        yield f"{dataset.name}; ImageNet is required"
        return
    spec = dataset.inputs.get("image")
    if spec is None or spec.shape != SHAPE:
        yield f"images of {None if spec is None else spec.shape}; {SHAPE} is required"
    if dataset.stored != stored:
        yield f"images stored as {dataset.stored}; dataset.stored is {stored}"
    for key, value in COUNTS.items():
        if getattr(dataset, key) != value:
            has = getattr(dataset, key)
            yield f"{has if has is None else format(has, ',')} {key.replace('_', ' ')}; " + (
                f"ImageNet has {value:,}"
            )


def content_rule(seen: Collection[DatasetInfo]) -> RuleCheck:
    """Return whether what all replicas had is the official dataset by its content."""
    in_order = sorted(seen, key=lambda each: (each.name, each.sha256))
    value = ", ".join(each.sha256[:12] for each in in_order) or "none"
    reasons = filter(None, map(why_unofficial, in_order))
    return RuleCheck.of("content", value, "that of the official archives", reasons)
