"""Rules on the dataset: ImageNet by its counts and its content, staged within the run."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final, NamedTuple

from aiperf_hpc.datasets import why_unofficial
from aiperf_hpc.rules.rule import Each, Findings, Found
from aiperf_hpc.rules.validity.evidence import RunEvidence
from aiperf_hpc.run.history import ReplicaHistory
from aiperf_hpc.trial import DatasetInfo, StorageFormat

OFFICIAL: Final = "imagenet"
SHAPE: Final = (224, 224, 3)
COUNTS: Final = {"classes": 1000, "train_samples": 1_281_167, "validation_samples": 50_000}


class Datasets(NamedTuple):
    """The datasets of the replicas of a run or a planned run."""

    distinct: Collection[DatasetInfo]
    storage_format: StorageFormat
    """The configured format of stored images."""


def datasets_of(run: RunEvidence) -> Datasets:
    """Return the datasets of a run's replicas."""
    distinct = {each.dataset for each in run.replicas if each.dataset is not None}
    return Datasets(distinct, run.config.dataset.storage_format)


def dataset(datasets: Datasets) -> Findings:
    """All replicas have ImageNet, by name, counts and configured format."""
    yield Found(", ".join(sorted(each.name for each in datasets.distinct)) or "none")
    if not datasets.distinct:
        yield "no replica loaded a dataset"
        return
    if len(datasets.distinct) > 1:
        yield f"replicas had {len(datasets.distinct)} different datasets"
        return
    (dataset,) = datasets.distinct
    if dataset.name != OFFICIAL:
        yield f"{dataset.name}; ImageNet is required"
        return
    spec = dataset.inputs.get("image")
    if spec is None or spec.shape != SHAPE:
        yield f"images of {None if spec is None else spec.shape}; {SHAPE} is required"
    has, wanted = dataset.storage_format, datasets.storage_format
    if has != wanted:
        yield f"images stored as {has}; dataset.storage_format is {wanted}"
    for key, value in COUNTS.items():
        if getattr(dataset, key) != value:
            has = getattr(dataset, key)
            yield f"{has if has is None else format(has, ',')} {key.replace('_', ' ')}; " + (
                f"ImageNet has {value:,}"
            )


def content(datasets: Datasets) -> Findings:
    """The content of all replicas' datasets is the official one."""
    in_order = sorted(datasets.distinct, key=lambda each: (each.name, each.sha256))
    yield Found(", ".join(each.sha256[:12] for each in in_order) or "none")
    yield from filter(None, map(why_unofficial, in_order))


def staging(run: RunEvidence) -> Findings:
    """Copies of the dataset on a node's disk are made during the run, not by an earlier run."""
    if run.config.dataset.cache != "disk":
        yield Found("no copies")
        return
    yield Found(f"{sum(each.staged_bytes for each in run.replicas) / 1e9:.1f} GB copied")
    copied = {_host(each) for each in run.replicas if each.staged_bytes}
    for each in run.replicas:
        if each.loads and _host(each) not in copied:
            yield Each(f"{each.id} found a copy of an earlier run; remove it before the start")


def _host(replica: ReplicaHistory) -> str:
    return "" if replica.machine is None else replica.machine.host
