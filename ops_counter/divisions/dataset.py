"""The dataset by its content."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Final

from aiperf_hpc.ops_counter.divisions.rule import RuleCheck
from aiperf_hpc.trial import DatasetInfo

OFFICIAL: Final = "imagenet"
SHAPE: Final = (224, 224, 3)
COUNTS: Final = {"classes": 1000, "train_samples": 1_281_167, "validation_samples": 50_000}

DIGESTS: Final[Mapping[str, frozenset[str]]] = {OFFICIAL: frozenset()}
"""The accepted SHA-256 of each dataset's content, as ``DatasetInfo.sha256`` states it.

None is known yet of ImageNet: it is that of a folder which was prepared from the official archives
(train 1d675b47d978889d74fa0da5fadfb00e, val 29b22e2961454d5413ddabcf34fc5622, devkit
fa75699e90414af021442c21a62c3abf, by MD5), and nobody has stated it. Until then no content passes.
"""


def dataset_rule(seen: Collection[DatasetInfo]) -> RuleCheck:
    """Return whether all replicas had ImageNet, by its name and numbers."""
    value = ", ".join(sorted(dataset.name for dataset in seen)) or "none"
    return RuleCheck.of("dataset", value, "ImageNet", _reasons(seen))


def _reasons(seen: Collection[DatasetInfo]) -> Iterator[str]:
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
    for key, value in COUNTS.items():
        if getattr(dataset, key) != value:
            has = getattr(dataset, key)
            yield f"{has if has is None else format(has, ',')} {key.replace('_', ' ')}; " + (
                f"ImageNet has {value:,}"
            )


def content_rule(
    seen: Collection[DatasetInfo], digests: Mapping[str, Collection[str]] = DIGESTS
) -> RuleCheck:
    """Return whether what all replicas had is the dataset by its content.

    Args:
        seen: the datasets that they had.
        digests: the accepted SHA-256 by the dataset's name.
    """
    value = ", ".join(sorted(dataset.sha256[:12] for dataset in seen)) or "none"
    return RuleCheck.of("content", value, "a published SHA-256", _unknown(seen, digests))


def _unknown(
    seen: Collection[DatasetInfo], digests: Mapping[str, Collection[str]]
) -> Iterator[str]:
    for dataset in sorted(seen, key=lambda each: (each.name, each.sha256)):
        known = digests.get(dataset.name, ())
        if not known:
            yield f"no SHA-256 of {dataset.name} is published yet that its content could have"
        elif dataset.sha256 not in known:
            yield f"SHA-256 {dataset.sha256[:12]} is not that of {dataset.name}; prepare it again"
